"""Published schedules and a solved timetable on one problem, side by side.

A schedule that looks at no limit may exceed it. It is told all the same, with the smallest limit that
would hold it, in bytes where the limit was, since "does not fit" alone helps nobody to decide on memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

from zbsolve.catalog import baseline, schedules
from zbsolve.errors import Infeasible, ScheduleConditionError, ZbsolveError
from zbsolve.metrics import metrics
from zbsolve.problem import Limit, Problem
from zbsolve.simulate import simulate
from zbsolve.solution import Bound, Metrics, Solution
from zbsolve.timetable import Timetable
from zbsolve.units import format_bytes

__all__ = [
    "SOLVED",
    "Compared",
    "beside",
    "best_bound",
    "best_published",
    "compare",
    "needed_factor",
    "published",
    "row_of",
]

SOLVED = "solved"
"""The name of what the solver found."""

_DECIMALS = 100
"""A factor is told in hundredths, rounded up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One schedule on a problem.

    Parameters
    ----------
    schedule
        Its name.
    timetable
        Its order with exact times.
    metrics
        Of it.
    bound
        Of timetables that fit the memory limit; None where none can.
    """

    schedule: str
    timetable: Timetable
    metrics: Metrics
    bound: Bound | None

    @property
    def problem(self) -> Problem:
        """What was asked."""
        return self.timetable.problem

    @property
    def fits(self) -> bool:
        """Whether it keeps the memory limit of its problem."""
        limits = self.problem.limit_bytes
        return all(limit is None or peak <= limit for peak, limit in zip(self.metrics.peak_bytes, limits, strict=True))

    @property
    def needs(self) -> str | None:
        """The least memory limit that would hold it, told as the limit was: ``Kx`` or bytes; None where it fits.

        Of limits in bytes, what the largest of the ranks that exceed theirs needs; `Kx` stands behind it.
        """
        if self.fits:
            return None
        factor = needed_factor(self.problem, self.metrics)
        if factor is not None and _as_factor(self.problem.memory_limit):
            return f"{factor}x"
        limits = self.problem.limit_bytes
        over = [(p, x) for p, x in zip(self.metrics.peak_bytes, limits, strict=True) if x is not None and p > x]
        most = max(peak for peak, _ in over)
        told = format_bytes(most)
        if told in {format_bytes(limit) for _, limit in over}:  # in four digits both look alike
            told = f"{most} bytes"
        return told if factor is None else f"{told} ({factor}x)"

    @property
    def fit_text(self) -> str:
        """``"yes"``, or what it would need."""
        return "yes" if self.fits else f"does not fit: needs {self.needs}"

    @property
    def value_ns(self) -> int:
        """The objective's value."""
        return self.metrics.period_ns if self.problem.objective == "period" else self.metrics.makespan_ns

    @property
    def gap(self) -> float | None:
        """How far above the bound; none where it does not fit, since the bound holds for those that do."""
        return self.value_ns / self.bound.value_ns - 1 if self.fits and self.bound and self.bound.value_ns else None


def _as_factor(limit: Limit | tuple[Limit, ...]) -> bool:
    """Whether some limit was given as ``Kx``, not all in bytes."""
    return any(
        isinstance(one, str) and one.strip().endswith("x") for one in (limit if isinstance(limit, tuple) else [limit])
    )


def needed_factor(problem: Problem, found: Metrics) -> Decimal | None:
    """The least K, in hundredths, for which a limit of ``Kx`` holds these peaks on every rank.

    None where no K does: a rank needs workspace but holds no activations.
    """
    held = [0] * problem.placement.ranks
    assert problem.route_of is not None
    for microbatch, route in enumerate(problem.route_of):
        for stage, rank in enumerate(problem.placement.routes[route]):
            held[rank] += problem.cost(stage, microbatch).activation_bytes
    most = Fraction(0)
    for rank, peak in enumerate(found.peak_bytes):
        above = peak - problem.static_bytes(rank)
        if above and not held[rank]:
            return None
        if above:
            most = max(most, Fraction(above * problem.microbatches, problem.placement.ranks * held[rank]))
    return Decimal(-(-most.numerator * _DECIMALS // most.denominator)) / _DECIMALS


def row_of(schedule: str, timetable: Timetable, bound: Bound | None = None) -> Compared:
    """A timetable with its figures."""
    return Compared(schedule=schedule, timetable=timetable, metrics=metrics(timetable), bound=bound)


def published(
    problem: Problem, names: Iterable[str] | None = None
) -> tuple[tuple[Compared, ...], dict[str, ZbsolveError]]:
    """Time schedules of the catalog; their rows have no bound yet.

    Parameters
    ----------
    problem
        What is asked.
    names
        Of the schedules; default all.

    Returns
    -------
    A row for each schedule whose conditions hold, and by name why the others are left out.

    Raises
    ------
    InvalidInput
        If there is no schedule of such a name.
    """
    rows: list[Compared] = []
    left_out: dict[str, ZbsolveError] = {}
    for name in names if names is not None else [schedule.name for schedule in schedules()]:
        try:
            rows.append(row_of(name, simulate(problem, baseline(name, problem))))
        except (Infeasible, ScheduleConditionError) as error:
            left_out[name] = error
    return tuple(rows), left_out


def best_published(problem: Problem) -> Compared | None:
    """Find the published schedule of the least value that fits the memory limit; of equals the oldest idea."""
    fitting = [row for row in published(problem)[0] if row.fits]
    return min(fitting, key=lambda row: row.value_ns, default=None)


def beside(rows: Iterable[Compared], problem: Problem, solution: Solution | None) -> tuple[Compared, ...]:
    """Give rows their bound, and put what the solver found last; the bound needs no search where it found nothing."""
    if solution is None:
        bound = best_bound(problem)
        return tuple(replace(row, bound=bound) for row in rows)
    bound = Bound(solution.lower_bound_ns, solution.bound)
    solved = Compared(schedule=SOLVED, timetable=solution.timetable, metrics=solution.metrics, bound=bound)
    return (*(replace(row, bound=bound) for row in rows), solved)


def compare(
    problem: Problem, solution: Solution | None = None, *, names: Iterable[str] | None = None
) -> tuple[Compared, ...]:
    """Put schedules of the catalog side by side, and what the solver found last.

    The arguments are those of `published` and `beside`; schedules whose conditions fail are left out.
    """
    return beside(published(problem, names)[0], problem, solution)


def best_bound(problem: Problem) -> Bound | None:
    """Get the best bound that needs no search; none where nothing can fit the limit."""
    from zbsolve.bounds import lower_bound

    try:
        return lower_bound(problem)
    except Infeasible:
        return None
