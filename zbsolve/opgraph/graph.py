"""The operation graph itself: arrays over nodes, lanes and arcs, and how orders are read into it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from zbsolve.errors import OrderError, ProblemError
from zbsolve.opgraph.arcs import backward_chain, end_of_iteration, forward_chain, join, within_stage
from zbsolve.opgraph.effects import effects
from zbsolve.opgraph.kinds import KINDS, Int8, Int32, Int64
from zbsolve.opgraph.lanes import Lane, lanes_of
from zbsolve.opgraph.links import QueueingLink, links_of
from zbsolve.opgraph.nodes import default_nodes, given_nodes
from zbsolve.opgraph.pairs import Beside, key_of, no_pairs, paired_with
from zbsolve.opgraph.parts import index_parts
from zbsolve.opgraph.slices import slice_chains
from zbsolve.opgraph.twins import twins_of
from zbsolve.ops import Op
from zbsolve.problem import Problem
from zbsolve.timetable import Order
from zbsolve.units import MAX_AMOUNT

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpGraph:
    """All operations of a problem with duration, lane and memory effect, and the arcs between them.

    N nodes, L lanes, E arcs, R ranks. Arrays are read-only.

    Parameters
    ----------
    kind, stage, microbatch, rank
        Shape N: which operation (`kind` indexes `KINDS`), in whose row; of a pair, its forward.
    beside
        The backwards that run together with forwards, by node.
    lane
        Shape N; lanes 0..R-1 are the ranks' compute; then come R for their networks, R for their copies to
        host memory and R for those back, each where any rank uses it.
    lanes
        What each lane is.
    duration_ns
        Shape N.
    start_bytes, end_bytes
        Shape N: >= 0 at the start and <= 0 at the end, of its rank's memory; workspace is in both.
    arc_tail, arc_head
        Shape E, sorted by head.
    arc_lag_ns
        Shape E: start[head] >= end[tail] + lag.
    arc_bytes
        Shape E: of the tensor handed along, -1 where it is order alone.
    links
        Those on which transfers queue (`zbsolve.opgraph.links`).
    arc_link, arc_busy_ns
        Shape E: which of them the tensor takes, -1 if it has to wait for no other; and for how long, a part of
        the lag.
    sends
        The arcs that take a link, by tail; those of one tail in the order in which it sends.
    pred_ptr
        Shape N+1: the arcs into node i are ``pred_ptr[i]:pred_ptr[i+1]``.
    succ_ptr, succ_arc
        Shape N+1 and E: the arcs out of node i are ``succ_arc[succ_ptr[i]:succ_ptr[i+1]]``.
    twin
        Shape N: class id; operations of one class have equal costs, route and arcs, and the same place
        in their sequence where there are slices, so running them in microbatch order loses nothing.
    base_bytes, limit_bytes
        Shape R: static bytes; the limit, 2^62 where there is none.
    problem
        What it was built from.
    """

    kind: Int8
    stage: Int32
    microbatch: Int32
    rank: Int32
    beside: Beside
    lane: Int32
    lanes: tuple[Lane, ...]
    duration_ns: Int64
    start_bytes: Int64
    end_bytes: Int64
    arc_tail: Int32
    arc_head: Int32
    arc_lag_ns: Int64
    arc_bytes: Int64
    links: tuple[QueueingLink, ...]
    arc_link: Int32
    arc_busy_ns: Int64
    sends: Int32
    pred_ptr: Int32
    succ_ptr: Int32
    succ_arc: Int32
    twin: Int32
    base_bytes: Int64
    limit_bytes: Int64
    problem: Problem

    @classmethod
    def build(cls, problem: Problem, ops: Sequence[Iterable[Op]] | None = None) -> OpGraph:
        """Flatten a problem.

        Parameters
        ----------
        problem
            What is asked.
        ops
            The operations of each rank; default `problem.operations()`. For an order, its rows.

        Raises
        ------
        OrderError
            If the operations do not do every part exactly once, each on its rank.
        ProblemError
            If all durations or bytes together exceed 2^62.
        """
        given = None if ops is None else [tuple(row) for row in ops]
        kind, stage, microbatch, rank = default_nodes(problem) if given is None else given_nodes(problem, given)
        beside = no_pairs() if given is None else paired_with(problem, given)
        parts = index_parts(problem, kind, stage, microbatch, beside)
        duration, start_bytes, end_bytes = effects(problem, parts, kind, stage, microbatch, rank, beside)
        families = [forward_chain(problem, parts), *slice_chains(problem, parts)]
        if not problem.forward_only:
            families += [backward_chain(problem, parts), within_stage(parts)]
            families += end_of_iteration(parts, kind, stage, rank)
        arcs = join(families)
        order = np.argsort(arcs.head, kind="stable")
        tail, head, lag = arcs.tail[order], arcs.head[order], arcs.lag_ns[order]
        nodes = len(kind)
        lane, lanes = lanes_of(problem.placement.ranks, kind, rank)
        base = [problem.static_bytes(r) for r in range(problem.placement.ranks)]
        _refuse_overflow("durations and lags", duration, lag)
        _refuse_overflow("bytes", start_bytes, np.asarray(base, dtype=object))
        graph = cls(
            kind=kind,
            stage=stage,
            microbatch=microbatch,
            rank=rank,
            beside=beside,
            lane=lane,
            lanes=lanes,
            duration_ns=duration,
            start_bytes=start_bytes,
            end_bytes=end_bytes,
            arc_tail=tail,
            arc_head=head,
            arc_lag_ns=lag,
            arc_bytes=arcs.bytes[order],
            links=links_of(problem),
            arc_link=arcs.link[order],
            arc_busy_ns=arcs.busy_ns[order],
            sends=_sends(tail, arcs.link[order], order),
            pred_ptr=_pointers(head, nodes),
            succ_ptr=_pointers(tail, nodes),
            succ_arc=np.argsort(tail, kind="stable").astype(np.int32),
            twin=twins_of(problem, kind, stage, microbatch, rank, beside),
            base_bytes=np.asarray(base, dtype=np.int64),
            limit_bytes=np.asarray([MAX_AMOUNT if b is None else b for b in problem.limit_bytes], dtype=np.int64),
            problem=problem,
        )
        for name in cls.__slots__:
            value = getattr(graph, name)
            if isinstance(value, np.ndarray):
                value.setflags(write=False)
        return graph

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def ranks(self) -> int:
        """The number of ranks, R."""
        return len(self.base_bytes)

    def op(self, node: int) -> Op:
        """The operation that a node stands for."""
        microbatch = int(self.microbatch[node])
        beside = self.beside.at(node)
        return Op(KINDS[self.kind[node]], int(self.stage[node]), None if microbatch < 0 else microbatch, beside)

    def index(self, rank: int, op: Op) -> int:
        """The node of an operation in a rank's row.

        Raises
        ------
        OrderError
            If the graph has no such node.
        """
        kind, stage, microbatch = key_of(op)
        found = np.flatnonzero(
            (self.rank == rank) & (self.kind == kind) & (self.stage == stage) & (self.microbatch == microbatch)
        )
        if len(found) != 1 or self.op(int(found[0])) != op:
            raise OrderError(f"{op} is not an operation of rank {rank} here")
        return int(found[0])

    def encode(self, order: Order) -> tuple[Int32, ...]:
        """Each rank's row as an array of nodes.

        Raises
        ------
        OrderError
            If the rows are not a permutation of this graph's nodes, each on its rank.
        """
        if len(order.rows) != self.ranks:
            raise OrderError(f"the order has {len(order.rows)} rows, the problem has {self.ranks} ranks")
        key = zip(self.rank.tolist(), self.kind.tolist(), self.stage.tolist(), self.microbatch.tolist(), strict=True)
        node_of = {k: i for i, k in enumerate(key)}
        beside = self.beside.by_node()
        rows = []
        for rank, row in enumerate(order.rows):
            nodes = []
            for op in row:
                node = node_of.pop((rank, *key_of(op)), None)
                if node is None or beside.get(node) != op.beside:
                    raise OrderError(f"rank {rank} cannot run {op}: it stands twice, or does not belong there")
                nodes.append(node)
            rows.append(np.asarray(nodes, dtype=np.int32))
        if node_of:
            missing = self.op(next(iter(node_of.values())))
            raise OrderError(
                f"the order lacks {missing}" + (f" and {len(node_of) - 1} more" if len(node_of) > 1 else "")
            )
        return tuple(rows)

    def decode(self, rows: Sequence[Sequence[int] | Int32]) -> Order:
        """The order that arrays of nodes, one a rank, stand for."""
        kind, stage, microbatch = self.kind.tolist(), self.stage.tolist(), self.microbatch.tolist()
        number = [None if j < 0 else j for j in microbatch]
        beside = self.beside.by_node()
        return Order(
            tuple(tuple(Op(KINDS[kind[i]], stage[i], number[i], beside.get(int(i))) for i in row) for row in rows)
        )

    def by_lane(self, rows: Sequence[Sequence[int] | Int32]) -> list[list[int]]:
        """The rows of the ranks as one row a lane: what each lane runs, in that sequence."""
        lane = self.lane.tolist()
        sorted_out: list[list[int]] = [[] for _ in self.lanes]
        for row in rows:
            for node in row:
                sorted_out[lane[node]].append(int(node))
        return sorted_out

    def to_networkx(self) -> nx.DiGraph:
        """The graph for people: nodes are operations, edges carry ``lag_ns`` and ``bytes``."""
        import networkx as nx

        graph = nx.DiGraph()
        for node in range(len(self)):
            graph.add_node(
                self.op(node),
                rank=int(self.rank[node]),
                duration_ns=int(self.duration_ns[node]),
                start_bytes=int(self.start_bytes[node]),
                end_bytes=int(self.end_bytes[node]),
            )
        columns = (self.arc_tail, self.arc_head, self.arc_lag_ns, self.arc_bytes)
        for tail, head, lag, size in zip(*(c.tolist() for c in columns), strict=True):
            edge = self.op(tail), self.op(head)
            known = graph.edges.get(edge)  # two pairs may hand each other two tensors
            if known is None:
                graph.add_edge(*edge, lag_ns=lag, bytes=size)
            else:
                known["lag_ns"] = max(known["lag_ns"], lag)
                known["bytes"] = max(known["bytes"], 0) + max(size, 0)
        return graph


def _sends(tail: Int32, link: Int32, family: Int64) -> Int32:
    """The arcs that take a link, by tail; what a tail sends in the order of the families that its arcs come from."""
    arcs = np.lexsort((family, tail))
    return arcs[link[arcs] >= 0].astype(np.int32)


def _pointers(ends: Int32, nodes: int) -> Int32:
    return np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=nodes))]).astype(np.int32)


def _refuse_overflow(what: str, *arrays: Int64 | NDArray[np.object_]) -> None:
    total = sum(int(np.sum(np.asarray(a, dtype=object), initial=0)) for a in arrays)
    if total > MAX_AMOUNT:
        raise ProblemError(f"all {what} of the iteration together exceed 2^62; check the units of the profile")
