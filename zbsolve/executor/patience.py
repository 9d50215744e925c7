"""How long one operation may run, and how long a rank may stay between calls, before the others are stopped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zbsolve.errors import InvalidInput
from zbsolve.timetable import Timetable

__all__ = ["LEAST_S", "Patience"]

LEAST_S = 6.0
_TIMES_PLANNED = 20
_FIRST_TIME_S = 120.0
_AWAY_S = 300.0


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits in seconds.

    Parameters
    ----------
    usual
        Of one operation.
    first_time
        Of one operation of a training step, or of an evaluation, before the first one has ended: kernels
        are compiled and libraries loaded there.
    away
        Of staying between calls while other ranks wait in the next one.
    """

    usual: float
    first_time: float
    away: float = _AWAY_S

    @classmethod
    def of(cls, timetable: Timetable, stall_s: float | None, away_s: float | None = None) -> Patience:
        """What was asked for, or 6 s (20 times the longest planned operation, if that is more), 2 and 5 minutes."""
        asked: dict[str, Any] = {"stall_s": stall_s, "away_s": away_s}
        for name, value in asked.items():
            if value is None:
                continue
            if not isinstance(value, int | float):
                raise InvalidInput(f"{name} is a number of seconds, got {value!r}")
            if not value > 0:
                raise InvalidInput(f"{name} must be above 0, got {value}; float('inf') sets no limit")
        away = _AWAY_S if away_s is None else away_s
        if stall_s is not None:
            return cls(stall_s, stall_s, away)
        longest = max((timed.end_ns - timed.start_ns for row in timetable.rows for timed in row), default=0) / 1e9
        usual = max(LEAST_S, _TIMES_PLANNED * longest)
        return cls(usual, max(usual, _FIRST_TIME_S), away)

    def seconds(self, *, first: bool) -> float:
        """The limit of an operation."""
        return self.first_time if first else self.usual

    def complaint(self, doing: str, seconds: float) -> str:
        """Why a rank counts as stalled."""
        what = doing.partition(" is in ")[2] or doing
        return f"{what} stalls: it has been running for {seconds:.1f} s (stall_s sets how long it may)"
