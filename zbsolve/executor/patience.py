"""How long one operation may run before its rank counts as stalled."""

from __future__ import annotations

from dataclasses import dataclass

from zbsolve.errors import InvalidInput
from zbsolve.timetable import Timetable

__all__ = ["Patience"]

_LEAST_S = 8.0
_TIMES_PLANNED = 20
_FIRST_STEP_S = 120.0


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds an operation may take.

    Parameters
    ----------
    usual
        In any step but the first.
    first_step
        In the first step, where kernels are compiled and libraries loaded.
    """

    usual: float
    first_step: float

    @classmethod
    def of(cls, timetable: Timetable, stall_s: float | None) -> Patience:
        """What was asked for, or 8 s (20 times the longest planned operation, if that is more) and 2 minutes."""
        if stall_s is not None:
            if not stall_s > 0:
                raise InvalidInput(f"stall_s must be above 0, got {stall_s}")
            return cls(stall_s, stall_s)
        longest = max((timed.end_ns - timed.start_ns for row in timetable.rows for timed in row), default=0) / 1e9
        usual = max(_LEAST_S, _TIMES_PLANNED * longest)
        return cls(usual, max(usual, _FIRST_STEP_S))

    def seconds(self, *, first: bool) -> float:
        """The limit in a step."""
        return self.first_step if first else self.usual

    def complaint(self, doing: str, seconds: float) -> str:
        """Why a rank counts as stalled."""
        what = doing.partition(" is in ")[2] or doing
        return f"{what} stalls: it has been running for {seconds:.1f} s (stall_s sets how long it may)"
