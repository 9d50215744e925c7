"""Hanayo: a wave of stages down and up the ranks, filled by whatever is there first (arXiv 2308.15762).

With w waves a rank holds 2w short stages, so a microbatch passes every rank many times and the ramps
are as short as the stages, without a second copy of the parameters. Each rank runs, of what is there
when it is free, a backward first, then the forward nearest to the loss; no more microbatches are
under way than there are ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zbsolve.catalog.conditions import require_wave
from zbsolve.catalog.schedule import Member, Schedule, backward
from zbsolve.opgraph import KINDS, OpGraph
from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.simulate import Timer
from zbsolve.timetable import Order

__all__ = ["MEMBERS"]

_FORWARD, _WEIGHT = KINDS.index(Kind.FORWARD), KINDS.index(Kind.BACKWARD_WEIGHT)
_BELIEFS: tuple[dict[Kind, int], ...] = (
    {Kind.FORWARD: 1, Kind.BACKWARD: 2, Kind.BACKWARD_INPUT: 1, Kind.BACKWARD_WEIGHT: 1},
    {Kind.FORWARD: 2, Kind.BACKWARD: 2, Kind.BACKWARD_INPUT: 1, Kind.BACKWARD_WEIGHT: 1},
)


class _FirstCome:
    """Starts the nodes of a graph one by one, whichever can start first.

    Parameters
    ----------
    graph
        Its nodes, arcs and ranks.
    duration, lag
        What nodes and arcs are believed to take.
    """

    def __init__(self, graph: OpGraph, duration: Sequence[int], lag: Sequence[int]) -> None:
        self.duration, self.lag = duration, lag
        self.kind, self.stage, self.microbatch = graph.kind.tolist(), graph.stage.tolist(), graph.microbatch.tolist()
        self.rank, self.head = graph.rank.tolist(), graph.arc_head.tolist()
        self.out = [graph.succ_arc[a:b].tolist() for a, b in zip(graph.succ_ptr[:-1], graph.succ_ptr[1:], strict=True)]
        self.waits = np.diff(graph.pred_ptr).tolist()
        self.arrival, self.free = [0] * len(graph), [0] * graph.ranks
        self.there: list[list[int]] = [[] for _ in range(graph.ranks)]
        self.rows: list[list[int]] = [[] for _ in range(graph.ranks)]
        self.next: list[tuple[int, bool, int, int, int] | None] = [None] * graph.ranks
        self.touched: set[int] = set()
        first = [node for node, waits in enumerate(self.waits) if not waits]
        self.entering = sorted(first, key=self.microbatch.__getitem__, reverse=True)

    def run(self, under_way: int) -> list[list[int]]:
        """The nodes of each rank in the order they start, with at most so many microbatches between start and end."""
        for _ in range(under_way):
            self.admit()
        while True:
            for rank in self.touched:
                self.next[rank] = min((self.urgency(node) for node in self.there[rank]), default=None)
            self.touched.clear()
            chosen = min((first for first in self.next if first), default=None)
            if chosen is None:
                return self.rows
            node = chosen[-1]
            self.there[self.rank[node]].remove(node)
            self.start(node)

    def admit(self) -> None:
        if self.entering:
            self.arrive(self.entering.pop())

    def arrive(self, node: int) -> None:
        self.there[self.rank[node]].append(node)
        self.touched.add(self.rank[node])

    def urgency(self, node: int) -> tuple[int, bool, int, int, int]:
        """When it can start; then backwards first, then what is furthest on its way, then what came first; the node."""
        forward = self.kind[node] == _FORWARD
        further = -self.stage[node] if forward else self.stage[node]
        return max(self.free[self.rank[node]], self.arrival[node]), forward, further, self.microbatch[node], node

    def start(self, node: int) -> None:
        rank = self.rank[node]
        end = self.free[rank] = max(self.free[rank], self.arrival[node]) + self.duration[node]
        self.rows[rank].append(node)
        self.touched.add(rank)
        followers = []
        for arc in self.out[node]:
            follower = self.head[arc]
            self.arrival[follower] = max(self.arrival[follower], end + self.lag[arc])
            self.waits[follower] -= 1
            if not self.waits[follower]:
                followers.append(follower)
        for follower in followers:
            if self.kind[follower] == _WEIGHT:
                self.start(follower)
            else:
                self.arrive(follower)
        if not self.stage[node] and self.kind[node] not in (_FORWARD, _WEIGHT):
            self.admit()


def hanayo(problem: Problem) -> Order:
    """Hanayo on a wave: 1F1B by what is there first, with at most p microbatches under way.

    Bubble time (p-1)(F+B+W) of one chunk at equal stages, F = B+W, p dividing m and no latency: half of
    1F1B's with the same layers on one wave, a quarter on two. Made for the costs, for whole backwards twice
    as long as forwards and for ones as long, both without latency; the best of the three on the costs.

    Raises
    ------
    ScheduleConditionError
        If the placement is no wave.
    """
    ranks = len(require_wave(problem, "hanayo"))
    ops: list[list[Op]] = [[] for _ in range(ranks)]
    for stage in range(problem.placement.stages):
        for microbatch in range(problem.microbatches):
            both = (Op(Kind.FORWARD, stage, microbatch), *backward(problem, stage, microbatch))
            ops[problem.rank_of(both[0])] += both
    graph = OpGraph.build(problem, ops)
    no_lag = [0] * len(graph.arc_head)
    believed = [(graph.duration_ns.tolist(), graph.arc_lag_ns.tolist())]
    believed += [([lengths[KINDS[kind]] for kind in graph.kind.tolist()], no_lag) for lengths in _BELIEFS]
    best: tuple[int, list[list[int]]] | None = None
    for duration, lag in believed:
        rows = _FirstCome(graph, duration, lag).run(under_way=ranks)
        timer = Timer(graph, [np.asarray(row, dtype=np.int32) for row in rows])
        value = (timer.period() if problem.objective == "period" else timer.makespan()).value_ns
        if best is None or value < best[0]:
            best = value, rows
    assert best is not None
    return graph.decode(best[1])


MEMBERS = (
    Member(
        Schedule(
            name="hanayo",
            family="wave",
            placement="wave",
            source="Hanayo, arXiv 2308.15762",
            needs="a wave: stages down and up the ranks, any number of times; memory of p microbatches",
        ),
        hanayo,
    ),
)
