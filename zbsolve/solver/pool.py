"""Orders worth improving: the best few hundred different ones that were seen, each with its graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zbsolve.opgraph import OpGraph
from zbsolve.problem import Problem
from zbsolve.solver.incumbent import Incumbent
from zbsolve.solver.kernels import Arrays, makespan, period, rows_of, sequence_of
from zbsolve.solver.twins import in_turn
from zbsolve.timetable import Order

__all__ = ["Entry", "Pool", "fits"]


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """An order of the pool.

    Parameters
    ----------
    value_ns
        Its exact objective value.
    arrays
        Its graph: which operations are fused is part of it.
    sequence
        Its nodes, each after what it needs.
    method
        What made it.
    """

    value_ns: int
    arrays: Arrays
    sequence: list[int]
    method: str

    @property
    def order(self) -> Order:
        """The order itself."""
        return self.arrays.graph.decode(rows_of(self.arrays, self.sequence))


def fits(arrays: Arrays, sequence: Sequence[int]) -> bool:
    """True if no rank's memory exceeds its limit along the sequence."""
    level = list(arrays.base)
    rank, start, end, limit = arrays.rank, arrays.start_bytes, arrays.end_bytes, arrays.limit
    if any(b > most for b, most in zip(level, limit, strict=True)):
        return False
    for node in sequence:
        r = rank[node]
        during = level[r] + start[node]
        if during > limit[r]:
            return False
        level[r] = during + end[node]
    return True


class Pool:
    """Collects orders, keeps the best, and hands each improvement to the incumbent.

    Parameters
    ----------
    problem
        What is asked.
    incumbent
        Learns of every better order.
    most
        How many entries to keep.
    """

    def __init__(self, problem: Problem, incumbent: Incumbent, most: int = 300) -> None:
        self.problem = problem
        self.incumbent = incumbent
        self._most = most
        self._entries: list[Entry] = []
        self._seen: set[tuple[int, int]] = set()

    @property
    def entries(self) -> list[Entry]:
        """The kept entries, best first; of equals the older first."""
        self._entries.sort(key=lambda e: e.value_ns)
        del self._entries[self._most :]
        return self._entries

    def value(self, arrays: Arrays, sequence: Sequence[int]) -> int:
        """The exact objective value of a sequence."""
        if self.problem.objective == "period":
            return period(arrays, sequence)[0]
        return makespan(arrays, sequence)

    def add(self, arrays: Arrays, sequence: list[int], method: str, value_ns: int | None = None) -> Entry | None:
        """Take an order in that fits the memory; None if the pool has it already."""
        value = self.value(arrays, sequence) if value_ns is None else value_ns
        entry = Entry(value, arrays, sequence, method)
        self.incumbent.offer(value, lambda: entry.order, method)
        key = (value, hash(tuple(map(tuple, rows_of(arrays, sequence)))))
        if key in self._seen:
            return None
        self._seen.add(key)
        self._entries.append(entry)
        if len(self._entries) > 4 * self._most:
            _ = self.entries
        return entry

    def add_order(self, order: Order, method: str) -> Entry | None:
        """Take any order of the problem in; None if it does not fit, can never finish, or is known.

        Raises
        ------
        OrderError
            If the rows are no order of the problem.
        """
        graph = OpGraph.build(self.problem, order.rows)
        arrays = Arrays.of(graph)
        sequence = sequence_of(arrays, [row.tolist() for row in graph.encode(order)])
        if sequence is None or not fits(arrays, sequence):
            return None
        return self.add(arrays, in_turn(arrays.twin, graph.microbatch.tolist(), sequence), method)
