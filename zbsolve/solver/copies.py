"""Putting copies where they run beside the computing: releases later and reloads earlier, as far as memory has room.

A release waits for its copy, and with it all that stands behind it in the row; a backward waits for its reload::

    row       F0 U0 X0 F1 ...     L0 B0          compute waits for U0 at X0, and for L0 at B0
              F0 U0 F1 X0 ... L0 F5 B0           both run beside F1 and F5; memory holds U0's bytes during F1,
                                                 and L0's during F5, too

Round by round the order is timed, and whatever waits for a copy is given so much more of what computes beside it.
The sequence of the copies on their engines stays that of the forwards, and of the backwards.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from zbsolve.metrics import memory_levels
from zbsolve.opgraph import KINDS, OpGraph
from zbsolve.ops import Kind
from zbsolve.problem import Problem
from zbsolve.simulate import Timer, Times
from zbsolve.solver.away import reserves, stay
from zbsolve.timetable import Order

__all__ = ["arranged", "beside"]

_ROUNDS = 12
_RELEASE, _RELOAD = KINDS.index(Kind.RELEASE), KINDS.index(Kind.RELOAD)


def arranged(problem: Problem, order: Order) -> Order:
    """The best order found by leaving out copies that memory does not need and putting others beside the computing.

    Never slower than the order itself, and within the limits if that is.
    """
    best: tuple[int, int, Order] | None = None
    tried: set[Order] = set()
    for way in (order, *(stay(problem, order, reserve) for reserve in reserves(problem))):
        if way in tried:
            continue
        tried.add(way)
        value, found = beside(problem, way)
        count = sum(map(len, found.rows))
        if best is None or (value, count) < best[:2]:
            best = value, count, found
    assert best is not None
    return stay(problem, best[2])


def beside(problem: Problem, order: Order) -> tuple[int, Order]:
    """The order with its copies where the computing waits least for them, and the value of its objective in ns."""
    graph = OpGraph.build(problem, order.rows)
    rows = [row.tolist() for row in graph.encode(order)]
    best: tuple[int, list[list[int]]] | None = None
    for _ in range(_ROUNDS):
        times = _timed(graph, rows)
        if best is None or times.value_ns < best[0]:
            best = times.value_ns, [list(row) for row in rows]
        changed = [_Row(graph, rank, row).relax(times) for rank, row in enumerate(rows)]
        if not any(changed):
            break
    assert best is not None
    return best[0], graph.decode(best[1])


def _timed(graph: OpGraph, rows: list[list[int]]) -> Times:
    timer = Timer(graph, [np.asarray(row, dtype=np.int32) for row in rows])
    return timer.period() if graph.problem.objective == "period" else timer.makespan()


class _Row:
    """One row in motion, with the bytes held before each of its operations."""

    def __init__(self, graph: OpGraph, rank: int, row: list[int]) -> None:
        self.row = row
        self.before = memory_levels(graph, np.asarray(row, dtype=np.int32), rank)[:, 0].tolist()
        self.limit = int(graph.limit_bytes[rank])
        self.start_bytes, self.end_bytes = graph.start_bytes.tolist(), graph.end_bytes.tolist()
        self.kind = graph.kind.tolist()
        self.cell = list(zip(graph.stage.tolist(), graph.microbatch.tolist(), strict=True))
        self.compute_ns = np.where(graph.lane == rank, graph.duration_ns, 0).tolist()
        self.computes = (graph.lane == rank).tolist()

    def relax(self, times: Times) -> bool:
        """Move what is waited for, each by about as long as it is waited for; whether anything moved."""
        waits = list(self._waits(times))
        moved = [
            self._later(node, wait) if self.kind[node] == _RELEASE else self._earlier(node, wait)
            for node, wait in waits
        ]
        return any(moved)

    def _waits(self, times: Times) -> Iterator[tuple[int, int]]:
        """Releases, and reloads, that compute waits for, with the ns it does."""
        start, end = times.start_ns, times.end_ns
        reload_of = {self.cell[node]: node for node in self.row if self.kind[node] == _RELOAD}
        done = -1
        for node in self.row:
            if not self.computes[node]:
                continue
            if 0 <= done < start[node]:
                reload = reload_of.get(self.cell[node], -1)
                if self.kind[node] == _RELEASE:
                    yield node, start[node] - done
                elif reload >= 0 and end[reload] == start[node]:
                    yield reload, start[node] - done
            done = end[node]

    def _later(self, node: int, ns: int) -> bool:
        """Move a release behind so much of what computes; whether it moved."""
        at = origin = self.row.index(node)
        while ns > 0 and at + 1 < len(self.row):
            other = self.row[at + 1]
            if self.cell[other] == self.cell[node] or not self._exchange(at):
                break
            ns -= self.compute_ns[other]
            at += 1
        return at > origin

    def _earlier(self, node: int, ns: int) -> bool:
        """Move a reload ahead of so much of what computes, and so those ahead of it on its engine; whether it moved."""
        origin = self.row.index(node)
        at = origin
        while ns > 0 and at > 0:
            other = self.row[at - 1]
            if self.kind[other] == _RELOAD:
                if not self._earlier(other, ns):
                    break
                continue
            if self.cell[other] == self.cell[node] or not self._exchange(at - 1):
                break
            ns -= self.compute_ns[other]
            at -= 1
        return at < origin

    def _exchange(self, at: int) -> bool:
        """Exchange two neighbours if memory allows; whether it does."""
        first, then = self.row[at], self.row[at + 1]
        before = self.before[at]
        between = before + self.start_bytes[then] + self.end_bytes[then]
        if max(before + self.start_bytes[then], between + self.start_bytes[first]) > self.limit:
            return False
        self.row[at], self.row[at + 1] = then, first
        self.before[at + 1] = between
        return True
