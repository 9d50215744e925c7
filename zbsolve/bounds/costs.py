"""What every bound reads: the costs of each stage and microbatch, from the operation graph.

A backward may be split or fused, microbatch by microbatch and stage by stage, so a bound must hold
for every choice. Here the choices that cannot fit the memory limit are struck out, and the least
times over the others are formed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from zbsolve.bounds.lighter import lighter
from zbsolve.bounds.slices import held_so_far, way_back
from zbsolve.bounds.unpaired import unpaired
from zbsolve.errors import Infeasible
from zbsolve.opgraph import KINDS, Int32, Int64, OpGraph
from zbsolve.ops import Kind
from zbsolve.problem import Problem
from zbsolve.units import format_bytes

__all__ = ["Costs", "read_costs", "refuse_infeasible"]

_F, _B, _W, _BW = (KINDS.index(k) for k in (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT, Kind.BACKWARD))


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Times in ns and bytes of every stage (S) and microbatch (m), arrays of shape (S, m) unless said otherwise.

    Parameters
    ----------
    problem
        What was asked.
    rank
        Where each stage of each microbatch runs.
    forward_ns
        Duration of F.
    input_ns, weight_ns, keep_bytes
        B, W and what the end of B leaves; None where no split is allowed.
    fused_ns
        The fused backward; None where it is not allowed.
    held_bytes, workspace_bytes
        What F holds at least; the extra of every operation.
    again_bytes
        What the backward needs of F beyond that, where F may hold a checkpoint alone or be moved away.
    again_ns
        What computing F again takes, where that is the one way to hold less; else None.
    down_ns, up_ns
        Lags over the boundary after a stage, of the output and of its gradient; shape (S - 1, m).
    reduce_ns, optimizer_ns
        Once an iteration, of each stage on each rank, shape (S, ranks); 0 where it is not held.
    base_bytes, limit_bytes
        Static bytes and limit of each rank (2^62: none), shape (ranks,).
    """

    problem: Problem
    rank: Int32
    forward_ns: Int64
    input_ns: Int64 | None
    weight_ns: Int64 | None
    keep_bytes: Int64 | None
    fused_ns: Int64 | None
    held_bytes: Int64
    workspace_bytes: Int64
    again_bytes: Int64
    again_ns: Int64 | None
    down_ns: Int64
    up_ns: Int64
    reduce_ns: Int64
    optimizer_ns: Int64
    base_bytes: Int64
    limit_bytes: Int64

    @property
    def stages(self) -> int:
        """The number of stages, S."""
        return len(self.forward_ns)

    @property
    def microbatches(self) -> int:
        """The number of microbatches, m."""
        return self.problem.microbatches

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.base_bytes)

    @cached_property
    def single(self) -> bool:
        """Whether every rank holds one stage, on one route, and there is a turn at the loss to argue about."""
        placement = self.problem.placement
        return not self.problem.forward_only and len(placement.routes) == 1 and placement.ranks == placement.stages

    @cached_property
    def fused_need(self) -> Int64:
        """Least bytes (static ones apart) on its rank until a fused backward of a stage has run.

        While F or the backward runs, the same microbatch's forwards of the earlier stages on that rank have
        started, and none of their backwards may: each comes after the backward of this stage. That needs
        all of what F makes, held since F, computed again or moved back. Of a sequence in slices the same is true
        of the slices before this one, on this stage and the earlier ones.
        """
        held = np.zeros_like(self.held_bytes)
        running = np.zeros((self.ranks, self.microbatches), dtype=np.int64)
        columns = np.arange(self.microbatches)
        for s in range(self.stages):
            running[self.rank[s], columns] += held_so_far(self.held_bytes[s], self.problem.slices)
            held[s] = running[self.rank[s], columns]
        need: Int64 = held + self.again_bytes + self.workspace_bytes
        return need

    @cached_property
    def split_need(self) -> Int64:
        """The same while B runs: what it will leave may exceed what F held, and is taken at its start."""
        assert self.keep_bytes is not None
        need: Int64 = self.fused_need + np.maximum(self.keep_bytes - self.held_bytes - self.again_bytes, 0)
        return need

    @cached_property
    def after_ns(self) -> Int64:
        """Least time on each rank from the end of its last backward to its last end, shape (ranks,).

        The stage of that backward still has to be reduced and its optimizer to run.
        """
        least = np.full(self.ranks, np.iinfo(np.int64).max)
        after = self.reduce_ns + self.optimizer_ns
        for s in range(self.stages):
            for rank in set(self.rank[s].tolist()):
                least[rank] = min(least[rank], after[s, rank])
        return np.where(least == np.iinfo(np.int64).max, 0, least)

    @cached_property
    def smallest_limits(self) -> tuple[int, ...]:
        """The least limit of each rank with which some timetable exists."""
        need = self.split_need if self.fused_ns is None else self.fused_need
        smallest = np.zeros(self.ranks, dtype=np.int64)
        np.maximum.at(smallest, self.rank.ravel(), need.ravel())
        if self.problem.slices > 1 and not self.single:
            self._turn_sequences_back(smallest)
        return tuple(int(v) for v in smallest + self.base_bytes)

    def _turn_sequences_back(self, smallest: Int64) -> None:
        """Raise the limits to what each sequence in slices needs on its way back through several stages of a rank."""
        slices = self.problem.slices
        extra = self.again_bytes + self.workspace_bytes
        if self.fused_ns is None and self.keep_bytes is not None:
            extra = extra + np.maximum(self.keep_bytes - self.held_bytes - self.again_bytes, 0)
        for first in range(0, self.microbatches, slices):
            run = slice(first, first + slices)
            for rank in np.unique(self.rank[:, first]).tolist():
                own = np.flatnonzero(self.rank[:, first] == rank)
                peak = way_back(self.held_bytes[own, run], extra[own, run])
                smallest[rank] = max(smallest[rank], peak)

    @cached_property
    def splittable(self) -> NDArray[np.bool_]:
        """Where B and W may stand apart: allowed, and B alone fits the limit."""
        if self.input_ns is None:
            return np.zeros(self.forward_ns.shape, dtype=np.bool_)
        return self.split_need <= (self.limit_bytes - self.base_bytes)[self.rank]

    @cached_property
    def gradient_ns(self) -> Int64:
        """Least time from the start of the backward until its input gradient is there."""
        return self._least(self.input_ns, self.fused_ns, self.splittable)

    @cached_property
    def backward_ns(self) -> Int64:
        """Least work of the whole backward."""
        split = None if self.input_ns is None or self.weight_ns is None else self.input_ns + self.weight_ns
        return self._least(split, self.fused_ns, self.splittable)

    @staticmethod
    def _least(split: Int64 | None, fused: Int64 | None, splittable: NDArray[np.bool_]) -> Int64:
        """The lesser of two ways as far as each is possible."""
        if split is None or fused is None:
            only = fused if split is None else split
            assert only is not None
            return only
        return np.where(splittable, np.minimum(split, fused), fused)

    @cached_property
    def head_ns(self) -> Int64:
        """Least time from the first F of a microbatch to the start of F of a stage."""
        head = np.zeros_like(self.forward_ns)
        for s in range(1, self.stages):
            head[s] = head[s - 1] + self.forward_ns[s - 1] + self.down_ns[s - 1]
        return head

    @cached_property
    def turn_ns(self) -> Int64:
        """L: least time from the start of F to the start of the backward, of one stage and microbatch.

        With forwards only there is an empty backward right after F.
        """
        turn = self.forward_ns.copy()
        if self.problem.forward_only:
            return turn
        for s in range(self.stages - 2, -1, -1):
            turn[s] += self.down_ns[s] + turn[s + 1] + self.gradient_ns[s + 1] + self.up_ns[s]
        return turn

    @cached_property
    def finish_ns(self) -> Int64:
        """Least time from the start of the backward to the end of all backwards of this and earlier stages.

        Split: W and what follows B on the earlier stages run side by side. Fused: all of it comes first.
        """
        return self._finish_and_tail[0]

    @cached_property
    def tail_ns(self) -> Int64:
        """Least time from the end of B (or of the fused backward) to the end of all backwards of earlier stages.

        With forwards only: from the end of F to the end of the forwards of all later stages.
        """
        return self._finish_and_tail[1]

    @cached_property
    def _finish_and_tail(self) -> tuple[Int64, Int64]:
        finish, tail = np.zeros_like(self.forward_ns), np.zeros_like(self.forward_ns)
        if self.problem.forward_only:
            for s in range(self.stages - 2, -1, -1):
                finish[s] = tail[s] = self.down_ns[s] + self.forward_ns[s + 1] + tail[s + 1]
            return finish, tail
        for s in range(self.stages):
            if s:
                tail[s] = self.up_ns[s - 1] + finish[s - 1]
            split = fused = None
            if self.input_ns is not None and self.weight_ns is not None:
                split = self.input_ns[s] + np.maximum(self.weight_ns[s], tail[s])
            if self.fused_ns is not None:
                fused = self.fused_ns[s] + tail[s]
            finish[s] = self._least(split, fused, self.splittable[s])
        return finish, tail


def read_costs(problem: Problem) -> Costs:
    """Read the costs from the operation graphs of the split and of the fused operations, as far as they are allowed.

    Where forwards may be computed again or moved away, these are the graphs of the lighter problem; where operations
    may run together, of the unpaired one.
    With forwards only the backward is one that takes nothing, and what F holds counts as workspace.

    Raises
    ------
    ProblemError
        If durations or bytes of the iteration exceed 2^62.
    """
    problem = unpaired(problem)
    if problem.forward_only:
        return _forwards(OpGraph.build(problem))
    light = lighter(problem)
    split = OpGraph.build(replace(light, allow=frozenset({"split"}))) if "split" in problem.allow else None
    fused = OpGraph.build(replace(light, allow=frozenset({"fused"}))) if "fused" in problem.allow else None
    graph = split if split is not None else fused
    assert graph is not None
    forward = _nodes(graph, _F)
    held = (graph.start_bytes + graph.end_bytes)[forward]
    whole = held
    if light is not problem:
        plain = OpGraph.build(problem)
        whole = (plain.start_bytes + plain.end_bytes)[_nodes(plain, _F)]
    input_ns = weight_ns = keep = None
    if split is not None:
        b, w = _nodes(split, _B), _nodes(split, _W)
        input_ns, weight_ns = split.duration_ns[b], split.duration_ns[w]
        keep = held + (split.start_bytes + split.end_bytes)[b]
    return Costs(
        problem=problem,
        rank=graph.rank[forward],
        forward_ns=graph.duration_ns[forward],
        input_ns=input_ns,
        weight_ns=weight_ns,
        keep_bytes=keep,
        fused_ns=None if fused is None else fused.duration_ns[_nodes(fused, _BW)],
        held_bytes=held,
        workspace_bytes=-graph.end_bytes[forward],
        again_bytes=whole - held,
        again_ns=_again_ns(problem),
        down_ns=_lags(graph, forward[:-1], forward[1:]),
        up_ns=_lags(graph, (back := _nodes(graph, _BW if split is None else _B))[1:], back[:-1]),
        reduce_ns=_once(graph, Kind.REDUCE_GRADIENT),
        optimizer_ns=_once(graph, Kind.OPTIMIZER),
        base_bytes=graph.base_bytes,
        limit_bytes=graph.limit_bytes,
    )


def _again_ns(problem: Problem) -> Int64 | None:
    if "recompute" not in problem.allow or "offload" in problem.allow:
        return None
    stages, microbatches = range(problem.placement.stages), range(problem.microbatches)
    times = [[problem.cost(s, j).recomputing_ns for j in microbatches] for s in stages]
    return np.asarray(times, dtype=np.int64)


def _forwards(graph: OpGraph) -> Costs:
    forward = _nodes(graph, _F)
    nothing = np.zeros(forward.shape, dtype=np.int64)
    return Costs(
        problem=graph.problem,
        rank=graph.rank[forward],
        forward_ns=graph.duration_ns[forward],
        input_ns=None,
        weight_ns=None,
        keep_bytes=None,
        fused_ns=nothing,
        held_bytes=nothing,
        workspace_bytes=graph.start_bytes[forward],
        again_bytes=nothing,
        again_ns=None,
        down_ns=_lags(graph, forward[:-1], forward[1:]),
        up_ns=nothing[1:],
        reduce_ns=(none := np.zeros((len(forward), graph.ranks), dtype=np.int64)),
        optimizer_ns=none,
        base_bytes=graph.base_bytes,
        limit_bytes=graph.limit_bytes,
    )


def refuse_infeasible(costs: Costs) -> None:
    """Raise if some rank's limit is below the least with which a timetable exists.

    Raises
    ------
    Infeasible
        Naming the smallest limits that would do.
    """
    one = "microbatch" if costs.problem.slices == 1 else "sequence"
    for rank, (limit, least) in enumerate(zip(costs.limit_bytes.tolist(), costs.smallest_limits, strict=True)):
        if limit < least:
            raise Infeasible(
                f"no timetable fits: rank {rank} may use {limit} bytes ({format_bytes(limit)}), but even one "
                f"{one} at a time needs {least} bytes ({format_bytes(least)}); raise the memory limit",
                costs.smallest_limits,
                one,
            )


def _nodes(graph: OpGraph, kind: int) -> Int64:
    """The node of each stage and microbatch that is of one kind, shape (S, m)."""
    nodes = np.flatnonzero(graph.kind == kind)
    table = np.empty((graph.problem.placement.stages, graph.problem.microbatches), dtype=np.int64)
    table[graph.stage[nodes], graph.microbatch[nodes]] = nodes
    return table


def _once(graph: OpGraph, kind: Kind) -> Int64:
    """Durations of what is done once an iteration, by stage and rank."""
    table = np.zeros((graph.problem.placement.stages, graph.ranks), dtype=np.int64)
    nodes = np.flatnonzero(graph.kind == KINDS.index(kind))
    table[graph.stage[nodes], graph.rank[nodes]] = graph.duration_ns[nodes]
    return table


def _lags(graph: OpGraph, tail: Int64, head: Int64) -> Int64:
    """The lag of the arc between each pair of nodes."""
    key = graph.arc_tail.astype(np.int64) * len(graph) + graph.arc_head
    order = np.argsort(key)
    wanted = tail * len(graph) + head
    return graph.arc_lag_ns[order[np.searchsorted(key, wanted.ravel(), sorter=order)]].reshape(wanted.shape)
