"""Orders worth improving: the best few hundred different ones that were seen."""

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
    """

    value_ns: int
    sequence: Int32
    fused: Int8
    method: str


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

    @property
    def entries(self) -> list[Entry]:
        """The kept entries, best first; of equals the older first."""
        self._entries.sort(key=lambda e: e.value_ns)
        del self._entries[self._most :]
        return self._entries

    def add(self, value_ns: int, sequence: Int32, fused: Int8, method: str) -> bool:
        """Take an order in that fits the memory; False if the pool has it already."""
        problem = self.case.problem
        self.incumbent.offer(value_ns, lambda: order_of(problem, sequence.tolist(), fused.tolist()), method)
        by_rank = sequence[np.argsort(self.case.rank[sequence], kind="stable")]
        key = hash((by_rank.tobytes(), fused.tobytes()))
        if key in self._seen:
            return False
        self._seen.add(key)
        self._entries.append(Entry(value_ns, sequence, fused, method))
        if len(self._entries) > 4 * self._most:
            _ = self.entries
        return True

    def add_order(self, order: Order, method: str) -> bool:
        """Take an order of the problem in; False if it does not fit, can never finish, or is known."""
        found = self.case.read(order)
        return found is not None and self.add(found.value_ns, found.sequence, found.fused, method)
