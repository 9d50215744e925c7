"""How long a search may go on: in seconds, or in steps that do not depend on the machine.

A step is one evaluated schedule: a list schedule, a baseline, an annealing move. CP-SAT's
deterministic time is converted at a fixed rate. With a work limit only steps decide what happens
next, so the same seed gives the same order on a slow and on a fast day; the time limit remains as
a cap.
"""

from __future__ import annotations

import time

__all__ = ["PUNCTUAL", "STEPS_PER_DETERMINISTIC_SECOND", "Budget"]

STEPS_PER_DETERMINISTIC_SECOND = 300_000
"""What one unit of CP-SAT's deterministic time costs of a work limit."""

PUNCTUAL = 0.95
"""The part of its time that CP-SAT is given; it takes some more to notice the end."""


class Budget:
    """Seconds and steps left, of a whole solve or of a part of it.

    Parameters
    ----------
    deadline
        On the clock of `time.perf_counter`.
    steps
        None for no limit.
    """

    __slots__ = ("_parent", "deadline", "spent", "steps")

    def __init__(self, deadline: float, steps: int | None, parent: Budget | None = None) -> None:
        self.deadline = deadline
        self.steps = steps
        self.spent = 0
        self._parent = parent

    def spend(self, steps: int) -> None:
        """Count steps, here and in what this is a part of."""
        self.spent += steps
        if self._parent is not None:
            self._parent.spend(steps)

    def spend_deterministic(self, work: float) -> None:
        """Count what CP-SAT has worked, in its own measure."""
        self.spend(int(work * STEPS_PER_DETERMINISTIC_SECOND))

    @property
    def steps_left(self) -> int | None:
        """Steps left; None for no limit."""
        return None if self.steps is None else max(0, self.steps - self.spent)

    @property
    def deterministic_left(self) -> float | None:
        """What is left in CP-SAT's measure of work; None for no limit."""
        return None if self.steps_left is None else self.steps_left / STEPS_PER_DETERMINISTIC_SECOND

    @property
    def seconds_left(self) -> float:
        """Seconds left, 0 when over."""
        return max(0.0, self.deadline - time.perf_counter())

    @property
    def over(self) -> bool:
        """True when steps or seconds have run out."""
        return (self.steps is not None and self.spent >= self.steps) or time.perf_counter() >= self.deadline

    def part(self, share: float, *, most_steps: int | None = None) -> Budget:
        """A part of what is left: of the steps where they are limited, else of the seconds."""
        if self.steps is None:
            now = time.perf_counter()
            return Budget(now + share * max(0.0, self.deadline - now), None, self)
        steps = max(1, int(share * max(0, self.steps - self.spent)))
        return Budget(self.deadline, steps if most_steps is None else min(steps, most_steps), self)
