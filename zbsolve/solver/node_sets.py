"""Which backwards run fused: the choice that decides what operations there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zbsolve.opgraph import KINDS, OpGraph
from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.solver.kernels import Arrays
from zbsolve.solver.pattern import Pattern

__all__ = ["NodeSet", "NodeSets"]

_BACKWARD_INPUT = KINDS.index(Kind.BACKWARD_INPUT)
_BACKWARD_WEIGHT = KINDS.index(Kind.BACKWARD_WEIGHT)
_BACKWARD = KINDS.index(Kind.BACKWARD)


@dataclass(eq=False)
class NodeSet:
    """The operations with some backwards fused, in the two forms schedulers read."""

    graph: OpGraph

    @cached_property
    def pattern(self) -> Pattern:
        """Classes, for the list scheduler."""
        return Pattern.fold(self.graph)

    @cached_property
    def arrays(self) -> Arrays:
        """Nodes, for timing and annealing."""
        return Arrays.of(self.graph)


class NodeSets:
    """Makes and keeps the node sets of a problem.

    Parameters
    ----------
    problem
        What is asked; `allow` says what may be chosen.

    Attributes
    ----------
    cheap
        The stages whose fused backward takes less time than its two halves.
    must
        The stages where only the fused backward fits the memory at all.
    matters
        True if fusing may gain time or memory.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.stages = range(problem.placement.stages)
        self.may_split, self.may_fuse = "split" in problem.allow, "fused" in problem.allow
        self._made: dict[frozenset[int], NodeSet] = {}
        self.matters = False
        self.cheap, self.must = frozenset[int](), frozenset[int]()
        self._split_serves_all = False
        if self.may_split and self.may_fuse:
            split, fused = self.get(frozenset()).graph, self.get(frozenset(self.stages)).graph
            self.cheap = _cheaper(split, fused)
            self.must = _only_fused_fits(split)
            self._split_serves_all = _split_serves_all(split, fused)
            self.matters = not self._split_serves_all

    def get(self, stages: frozenset[int]) -> NodeSet:
        """The node set with these stages fused, as far as `allow` and the memory let one choose."""
        if not self.may_split:
            stages = frozenset(self.stages)
        elif not self.may_fuse:
            stages = frozenset()
        else:
            stages |= self.must
        if stages not in self._made:
            self._made[stages] = self._build(lambda stage, _: stage in stages)
        return self._made[stages]

    def mixed(self, fused: Callable[[int, int], bool]) -> NodeSet:
        """A node set with a choice for each stage and microbatch; only where both forms are allowed."""
        return self._build(lambda stage, microbatch: stage in self.must or fused(stage, microbatch))

    def speaks_for_all(self, graph: OpGraph) -> bool:
        """True if no other choice of fused and split can beat the best order of this graph.

        So it is where there is no choice, and for the graph with nothing fused if B and W one right
        after the other take no more time and no more memory than the fused backward.
        """
        if not (self.may_split and self.may_fuse):
            return True
        return self._split_serves_all and not np.any(graph.kind == _BACKWARD)

    def _build(self, fused: Callable[[int, int], bool]) -> NodeSet:
        rows: list[list[Op]] = [[] for _ in range(self.problem.placement.ranks)]
        for stage in self.stages:
            for microbatch in range(self.problem.microbatches):
                whole = fused(stage, microbatch)
                both = (Kind.BACKWARD,) if whole else (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
                row = rows[self.problem.rank_of(Op(Kind.FORWARD, stage, microbatch))]
                row += [Op(kind, stage, microbatch) for kind in (Kind.FORWARD, *both)]
        return NodeSet(OpGraph.build(self.problem, rows))


def _cheaper(split: OpGraph, fused: OpGraph) -> frozenset[int]:
    """Stages whose backwards take less time in all when fused."""
    stages = int(split.stage.max()) + 1
    both = np.isin(split.kind, (_BACKWARD_INPUT, _BACKWARD_WEIGHT))
    apart = np.bincount(split.stage[both], split.duration_ns[both].astype(float), stages)
    whole = fused.kind == _BACKWARD
    together = np.bincount(fused.stage[whole], fused.duration_ns[whole].astype(float), stages)
    return frozenset(np.flatnonzero(together < apart).tolist())


def _only_fused_fits(split: OpGraph) -> frozenset[int]:
    """Stages where one microbatch's B alone, its forwards on the rank still held, is beyond the limit."""
    pattern = Pattern.fold(split)
    return frozenset(
        pattern.stage[c]
        for c, r in enumerate(pattern.rank)
        if pattern.kind[c] == _BACKWARD_INPUT
        and pattern.base[r] + pattern.held[r] + pattern.start_bytes[c] > pattern.limit[r]
    )


def _split_serves_all(split: OpGraph, fused: OpGraph) -> bool:
    """True if B and W in a row always take at most the time and the memory of the fused backward."""
    gradient, weight, whole = (
        np.flatnonzero(g.kind == k)
        for g, k in ((split, _BACKWARD_INPUT), (split, _BACKWARD_WEIGHT), (fused, _BACKWARD))
    )
    gradient, weight = (n[np.lexsort((split.microbatch[n], split.stage[n]))] for n in (gradient, weight))
    whole = whole[np.lexsort((fused.microbatch[whole], fused.stage[whole]))]
    in_time = split.duration_ns[gradient] + split.duration_ns[weight] <= fused.duration_ns[whole]
    in_memory = split.start_bytes[gradient] <= fused.start_bytes[whole]
    return bool(np.all(in_time) and np.all(in_memory))
