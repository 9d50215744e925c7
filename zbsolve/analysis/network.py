"""A timetable as a network: its operations in a sequence in which every longest-path pass can go.

Everything that holds an operation back is an *edge* into it: what it needs (an arc of the operation
graph), and what stands ahead of it in its row: the last compute operation, and the last one of its
own lane. Nothing here knows what an operation does; new kinds and lanes change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from zbsolve.errors import OrderError
from zbsolve.opgraph import Int32, OpGraph
from zbsolve.ops import Op
from zbsolve.timetable import TimedOp, Timetable

__all__ = ["Edge", "Network"]


@dataclass(frozen=True, slots=True)
class Edge:
    """An operation starts no earlier than the end of `tail` plus `lag_ns`."""

    tail: int
    lag_ns: int
    in_row: bool
    """Whether it is the row that says so, not data."""


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """A timetable and all that holds its operations back.

    Parameters
    ----------
    timetable
        What is looked at, at its planned times.
    graph
        Its operations as arrays; a *node* is an index into them.
    rows
        The nodes of each rank, in issue order.
    timed
        By node: the operation with its planned times.
    edges
        By node: what it waits for, data first.
    sequence
        All nodes, each after those that it waits for.
    """

    timetable: Timetable
    graph: OpGraph
    rows: tuple[Int32, ...]
    timed: tuple[TimedOp, ...]
    edges: tuple[tuple[Edge, ...], ...]
    sequence: tuple[int, ...]

    @classmethod
    def of(cls, timetable: Timetable) -> Network:
        """Read a timetable.

        Raises
        ------
        OrderError
            If its rows are no order of its problem or can never finish.
        """
        order = timetable.order
        graph = OpGraph.build(timetable.problem, order.rows)
        rows = graph.encode(order)
        timed = {
            node: entry
            for nodes, row in zip(rows, timetable.rows, strict=True)
            for node, entry in zip(nodes.tolist(), row, strict=True)
        }
        edges = _edges(graph, rows)
        return cls(timetable, graph, rows, tuple(timed[n] for n in range(len(graph))), edges, _sequence(edges))

    @property
    def by_period(self) -> bool:
        """Whether the iteration repeats with no barrier, so that it wraps around."""
        return self.timetable.problem.objective == "period"

    @property
    def value_ns(self) -> int:
        """What the planned times attain."""
        return self.timetable.period_ns if self.by_period else self.timetable.makespan_ns

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.graph.ranks

    def op(self, node: int) -> Op:
        """The operation of a node."""
        return self.timed[node].op

    def start(self, node: int) -> int:
        """Planned start in ns."""
        return self.timed[node].start_ns

    def end(self, node: int) -> int:
        """Planned end in ns."""
        return self.timed[node].end_ns

    def rank(self, node: int) -> int:
        """The rank in whose row a node stands."""
        return int(self.graph.rank[node])

    def on_compute(self, node: int) -> bool:
        """Whether it runs on the compute of its rank."""
        return int(self.graph.lane[node]) < self.ranks

    def compute_row(self, rank: int) -> list[int]:
        """The nodes of a rank that run on its compute, in issue order."""
        return [node for node in self.rows[rank].tolist() if self.on_compute(node)]

    def lasts(self, rank: int) -> list[int]:
        """The last node of a rank on each of its lanes: one of them ends last."""
        found = {int(self.graph.lane[node]): node for node in self.rows[rank].tolist()}
        return list(found.values())


def _edges(graph: OpGraph, rows: tuple[Int32, ...]) -> tuple[tuple[Edge, ...], ...]:
    tails, lags, pointers = graph.arc_tail.tolist(), graph.arc_lag_ns.tolist(), graph.pred_ptr.tolist()
    lane = graph.lane.tolist()
    ahead: list[list[int]] = [[] for _ in range(len(graph))]
    for row in rows:
        last: dict[int, int] = {}
        compute = -1
        for node in row.tolist():
            own = last.get(lane[node], -1)
            ahead[node] = [n for n in dict.fromkeys((compute, own)) if n >= 0]
            last[lane[node]] = node
            if lane[node] < graph.ranks:
                compute = node
    return tuple(
        tuple(Edge(tails[a], lags[a], False) for a in range(pointers[node], pointers[node + 1]))
        + tuple(Edge(tail, 0, True) for tail in ahead[node])
        for node in range(len(graph))
    )


def _sequence(edges: tuple[tuple[Edge, ...], ...]) -> tuple[int, ...]:
    heads: list[list[int]] = [[] for _ in edges]
    missing = [len(into) for into in edges]
    for node, into in enumerate(edges):
        for edge in into:
            heads[edge.tail].append(node)
    ready = [node for node, count in enumerate(missing) if not count]
    for node in ready:  # grows while it is walked
        for head in heads[node]:
            missing[head] -= 1
            if not missing[head]:
                ready.append(head)
    if len(ready) < len(edges):
        raise OrderError("the order can never finish: its rows wait for each other; check tells who waits for whom")
    return tuple(ready)
