"""A timetable as a network: its operations in a sequence in which every longest-path pass can go.

Everything that holds an operation back is an *edge* into it: what it needs (an arc of the operation
graph), and what stands ahead of it in its row: the last compute operation, and the last one of its
own lane. Nothing here knows what an operation does; new kinds and lanes change nothing.

Where transfers queue on links they are nodes as well, behind the operations: each needs the operation that it
comes from, and follows on the transfer ahead of it on its link; what it is for needs it. Links are *columns* behind the
ranks: an iteration begins with the first of a column and ends with the last.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from zbsolve.errors import OrderError
from zbsolve.opgraph import Int32, Int64, OpGraph
from zbsolve.ops import Op
from zbsolve.timetable import TimedOp, Timetable
from zbsolve.transfers import Sent, queued_transfers

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
    transfers
        Those on queueing links, at their times; nodes behind the operations, in this order.
    links
        By link: its name, and its transfers as nodes in the order in which it serves them.
    """

    timetable: Timetable
    graph: OpGraph
    rows: tuple[Int32, ...]
    timed: tuple[TimedOp, ...]
    edges: tuple[tuple[Edge, ...], ...]
    sequence: tuple[int, ...]
    transfers: tuple[Sent, ...] = ()
    links: tuple[tuple[str, tuple[int, ...]], ...] = ()

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
        transfers, links = _queued(timetable, graph)
        edges = _edges(graph, rows, links)
        in_order = tuple(timed[n] for n in range(len(graph)))
        return cls(timetable, graph, rows, in_order, edges, _sequence(edges), transfers, links)

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

    @property
    def columns(self) -> int:
        """The number of ranks and queueing links."""
        return self.ranks + len(self.links)

    @property
    def duration(self) -> Int64:
        """By node: how long it takes, in ns."""
        busy = np.asarray([sent.end_ns - sent.start_ns for sent in self.transfers], dtype=np.int64)
        return np.concatenate([self.graph.duration_ns, busy])

    def transfer(self, node: int) -> Sent | None:
        """The transfer that a node is; None if it is an operation."""
        return self.transfers[node - len(self.timed)] if node >= len(self.timed) else None

    def link(self, node: int) -> str:
        """The name of the link of a transfer."""
        return self.links[self.column(node) - self.ranks][0]

    def giver(self, node: int) -> int:
        """The operation that a transfer comes from; an operation itself."""
        return node if node < len(self.timed) else self.edges[node][0].tail

    def column(self, node: int) -> int:
        """The rank of a node; of a transfer its link, numbered behind the ranks."""
        if node < len(self.timed):
            return int(self.graph.rank[node])
        number = int(self.graph.arc_link[self.graph.sends[node - len(self.timed)]])
        return self.ranks + [name for name, _ in self.links].index(str(self.graph.links[number]))

    def op(self, node: int) -> Op:
        """The operation of a node; of a transfer the one that it comes from."""
        return self.timed[self.giver(node)].op

    def start(self, node: int) -> int:
        """Planned start in ns."""
        sent = self.transfer(node)
        return self.timed[node].start_ns if sent is None else sent.start_ns

    def end(self, node: int) -> int:
        """Planned end in ns."""
        sent = self.transfer(node)
        return self.timed[node].end_ns if sent is None else sent.end_ns

    def rank(self, node: int) -> int:
        """The rank in whose row a node stands; of a transfer the sender's."""
        return int(self.graph.rank[self.giver(node)])

    def on_compute(self, node: int) -> bool:
        """Whether it runs on the compute of its rank."""
        return int(self.graph.lane[node]) < self.ranks

    def compute_row(self, rank: int) -> list[int]:
        """The nodes of a rank that run on its compute, in issue order."""
        return [node for node in self.rows[rank].tolist() if self.on_compute(node)]

    def lasts(self, rank: int) -> list[int]:
        """The last node of a rank on each of its lanes: one of them ends last; of a link its last transfer."""
        if rank >= self.ranks:
            return [self.links[rank - self.ranks][1][-1]]
        found = {int(self.graph.lane[node]): node for node in self.rows[rank].tolist()}
        return list(found.values())


def _queued(timetable: Timetable, graph: OpGraph) -> tuple[tuple[Sent, ...], tuple[tuple[str, tuple[int, ...]], ...]]:
    """The transfers on queueing links, in the order of `OpGraph.sends`, and the nodes of each link in turn."""
    if not graph.links:
        return (), ()
    value = timetable.period_ns if timetable.problem.objective == "period" else None
    lines = queued_transfers(timetable.problem, timetable.rows, period_ns=value)
    arcs = graph.sends
    number = {
        (graph.op(tail), graph.op(head)): at
        for at, (tail, head) in enumerate(
            zip(graph.arc_tail[arcs].tolist(), graph.arc_head[arcs].tolist(), strict=True)
        )
    }
    transfers = {number[sent.tail, sent.head]: sent for line in lines.values() for sent in line}
    links = []
    for link in graph.links:
        line = lines.get((link.sender, link.receiver), [])
        if line:
            links.append((str(link), tuple(len(graph) + number[sent.tail, sent.head] for sent in line)))
    return tuple(transfers[at] for at in range(len(number))), tuple(links)


def _edges(
    graph: OpGraph, rows: tuple[Int32, ...], links: tuple[tuple[str, tuple[int, ...]], ...] = ()
) -> tuple[tuple[Edge, ...], ...]:
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
    data = {a: Edge(tails[a], lags[a], False) for a in range(len(tails))}
    for number, arc in enumerate(graph.sends.tolist()):
        data[arc] = Edge(len(graph) + number, lags[arc] - int(graph.arc_busy_ns[arc]), False)
    edges = [
        tuple(data[a] for a in range(pointers[node], pointers[node + 1]))
        + tuple(Edge(tail, 0, True) for tail in ahead[node])
        for node in range(len(graph))
    ]
    before = {node: last for _, line in links for last, node in itertools.pairwise(line)}
    for number, arc in enumerate(graph.sends.tolist()):
        served = before.get(len(graph) + number)
        edges.append((Edge(tails[arc], 0, False), *(() if served is None else (Edge(served, 0, True),))))
    return tuple(edges)


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
