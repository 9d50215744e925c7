"""The best order so far, the best bound so far, and when to stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from zbsolve.solution import Bound, relative_gap
from zbsolve.timetable import Order

__all__ = ["Incumbent", "Progress"]


_MOST_LETTERS = 200
"""Of what is told of a lost task, as many as a file takes."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What is known at one moment of a solve.

    Parameters
    ----------
    seconds
        Since its start.
    value_ns
        Of the best order so far.
    lower_bound_ns
        The best proven bound so far.
    gap
        value / bound - 1.
    method
        What found the order.
    bound
        The name of what proves the bound.
    arm
        What the search has just done, or begins to do.
    lost
        Which tasks were lost so far, and why: their worker ended, did not come back, or they raised.
    """

    seconds: float
    value_ns: int
    lower_bound_ns: int
    gap: float
    method: str
    bound: str
    arm: str = ""
    lost: tuple[str, ...] = ()


class Incumbent:
    """Keeps the best order and the best bound; tells `on_progress` whenever either improves.

    Parameters
    ----------
    bound
        The bound to begin with.
    gap
        Stop at this gap.
    started
        When the solve began, on the clock of `time.perf_counter`.
    on_progress
        Called after the improvement has been kept, so whatever it raises loses nothing.
    """

    def __init__(
        self, bound: Bound, gap: float, started: float, on_progress: Callable[[Progress], None] | None
    ) -> None:
        self.bound = bound
        self.value_ns = 2**63
        self.method = ""
        self.arm = ""
        self.lost: tuple[str, ...] = ()
        self._order: Callable[[], Order] | None = None
        self._gap = gap
        self._started = started
        self._on_progress = on_progress

    @property
    def order(self) -> Order | None:
        """The best order; None if there is none yet."""
        return None if self._order is None else self._order()

    @property
    def known(self) -> bool:
        """True when there is an order."""
        return self._order is not None

    @property
    def gap(self) -> float:
        """Value / bound - 1."""
        return relative_gap(self.value_ns, self.bound.value_ns)

    @property
    def done(self) -> bool:
        """True when an order is known and its gap is small enough."""
        if self._order is None:
            return False
        return self.value_ns <= self.bound.value_ns or self.gap <= self._gap

    def offer(self, value_ns: int, order: Callable[[], Order], method: str) -> bool:
        """Keep an order if it is better than all before it; `order` is asked for at the end."""
        if value_ns >= self.value_ns:
            return False
        self._order, self.value_ns, self.method = order, value_ns, method
        self._tell()
        return True

    def prove(self, bound: Bound) -> None:
        """Keep a bound if it is better than all before it; one above a value that is attained can only be wrong."""
        if self.bound.value_ns < bound.value_ns <= self.value_ns:
            self.bound = bound
            self._tell()

    def tell(self, arm: str) -> None:
        """Say what the search is about to do, where that takes time."""
        self.arm = arm
        self._tell()

    def miss(self, arm: str, why: str) -> None:
        """Note that a task of an arm was lost, and why; told at once if an order is known."""
        self.lost = (*self.lost, f"{arm}: {why}"[:_MOST_LETTERS])
        self._tell()

    def _tell(self) -> None:
        if self._on_progress is not None and self._order is not None:
            seconds = time.perf_counter() - self._started
            self._on_progress(
                Progress(
                    seconds,
                    self.value_ns,
                    self.bound.value_ns,
                    self.gap,
                    self.method,
                    self.bound.name,
                    self.arm,
                    self.lost,
                )
            )
