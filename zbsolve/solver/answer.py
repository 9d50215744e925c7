"""What a search hands out in the end: the best timetable, with what is proven of it."""

from __future__ import annotations

import time

from zbsolve.metrics import metrics
from zbsolve.solution import Bound, Solution, relative_gap
from zbsolve.timetable import Timetable

__all__ = ["solution_of"]


def solution_of(
    timetable: Timetable, value: int, bound: Bound, *, method: str, started: float, seed: int, lost: tuple[str, ...]
) -> Solution:
    """The solution that a timetable is, optimal if value and bound have met; `started` is by `time.perf_counter`."""
    return Solution(
        timetable=timetable,
        metrics=metrics(timetable),
        status="optimal" if value == bound.value_ns else "feasible",
        value_ns=value,
        lower_bound_ns=bound.value_ns,
        bound=bound.name,
        gap=relative_gap(value, bound.value_ns),
        seconds=time.perf_counter() - started,
        seed=seed,
        method=method,
        digest=timetable.problem.digest,
        lost=lost,
    )
