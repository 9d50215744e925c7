"""Orders worth improving: the best few hundred different ones that were seen, and which came from which.

Orders that one search improved step by step differ in little: they are one *line*, and the best few of all are mostly
of one line. What leaves a local optimum is another line, so the best of each stays as long as the pool has room.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zbsolve.solver.case import Case
from zbsolve.solver.incumbent import Incumbent
from zbsolve.solver.network import order_of
from zbsolve.solver.tasks import Int8, Int32
from zbsolve.timetable import Order

__all__ = ["Entry", "Pool"]


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """An order of the pool.

    Parameters
    ----------
    value_ns
        Its exact objective value.
    sequence, fused
        As nodes of the network, each after what it needs; by node, whether it is fused.
    method
        What made it.
    line
        The number of its line.
    """

    value_ns: int
    sequence: Int32
    fused: Int8
    method: str
    line: int = 0


class Pool:
    """Collects orders, keeps the best, and hands each improvement to the incumbent.

    Parameters
    ----------
    case
        What is asked.
    incumbent
        Learns of every better order.
    most
        How many entries to keep.
    """

    def __init__(self, case: Case, incumbent: Incumbent, most: int = 300) -> None:
        self.case = case
        self.incumbent = incumbent
        self._most = most
        self._entries: list[Entry] = []
        self._seen: set[int] = set()
        self._lines = 0

    @property
    def entries(self) -> list[Entry]:
        """The kept entries, best first; of equals the older first."""
        self._entries.sort(key=lambda e: e.value_ns)
        if len(self._entries) > self._most:
            heads = {id(entry) for entry in self._heads()[: self._most // 4]}
            rest = [entry for entry in self._entries if id(entry) not in heads][: self._most - len(heads)]
            kept = heads | {id(entry) for entry in rest}
            self._entries = [entry for entry in self._entries if id(entry) in kept]
        return self._entries

    @property
    def heads(self) -> list[Entry]:
        """The best entry of each line, best first."""
        _ = self.entries
        return self._heads()

    def _heads(self) -> list[Entry]:
        heads: dict[int, Entry] = {}
        for entry in self._entries:
            heads.setdefault(entry.line, entry)
        return list(heads.values())

    def new_line(self) -> int:
        """A number for what one search will find."""
        self._lines += 1
        return self._lines

    def add(self, value_ns: int, sequence: Int32, fused: Int8, method: str, line: int | None = None) -> bool:
        """Take an order in that fits the memory, on a line of its own unless one is given; False if it is known."""
        problem = self.case.problem
        self.incumbent.offer(value_ns, lambda: order_of(problem, sequence.tolist(), fused.tolist()), method)
        by_rank = sequence[np.argsort(self.case.rank[sequence], kind="stable")]
        key = hash((by_rank.tobytes(), fused.tobytes()))
        if key in self._seen:
            return False
        self._seen.add(key)
        line = self.new_line() if line is None else line
        self._entries.append(Entry(value_ns, sequence, fused, method, line))
        if len(self._entries) > 4 * self._most:
            _ = self.entries
        return True

    def add_order(self, order: Order, method: str) -> bool:
        """Take an order of the problem in; False if it does not fit, can never finish, or is known."""
        found = self.case.read(order)
        return found is not None and self.add(found.value_ns, found.sequence, found.fused, method)
