"""What the solver's record in a file says, against what the file itself gives."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from zbsolve.errors import InvalidInput
from zbsolve.solution import relative_gap
from zbsolve.timetable import Violation
from zbsolve.units import counted

if TYPE_CHECKING:
    from zbsolve.files import SolverRecord
    from zbsolve.timetable import Timetable

__all__ = ["broken_claims"]

TOLERANCE = 1e-9
"""Relative error of a ratio that was written as a decimal number."""


def broken_claims(given: Timetable, record: SolverRecord | None) -> tuple[Violation, ...]:
    """Judge every figure of the record but the value, which `violations` holds against the times."""
    if record is None:
        return ()
    wrong = [*_of_another_problem(given, record), *_about_the_bound(record), *_about_the_order(given, record)]
    return tuple(Violation("claim", message) for message in wrong)


def _of_another_problem(given: Timetable, record: SolverRecord) -> list[str]:
    wrong = []
    if record.digest != given.problem.digest:
        wrong.append(f"the solver's record is of problem {record.digest}, the file holds {given.problem.digest}")
    if record.objective != given.problem.objective:
        wrong.append(
            f"the solver's record is of the {record.objective}, the problem asks for {given.problem.objective}"
        )
    return wrong


def _about_the_bound(record: SolverRecord) -> list[str]:
    value, bound = record.value_ns, record.lower_bound_ns
    if bound > value:
        return [f"the claimed bound, {bound} ns, is above the claimed value, {value} ns"]
    wrong = []
    if record.status == "optimal" and bound < value:
        wrong.append(f"it is claimed optimal, but bound {bound} and value {value} differ")
    if record.status == "feasible" and bound == value:
        wrong.append(f"it is claimed feasible only, but bound and value are both {value} ns, which is optimal")
    gap = relative_gap(value, bound)
    if not _close(record.gap, gap):
        wrong.append(f"a gap of {_ratio(record.gap)} is claimed, value / bound - 1 is {_ratio(gap)}")
    return wrong


def _about_the_order(given: Timetable, record: SolverRecord) -> list[str]:
    """Period, makespan, bubble and peaks of the order; nothing where its rows have no such figures."""
    from zbsolve.metrics import metrics

    try:
        found = metrics(given)
    except InvalidInput:  # no order of the problem, which has been told, or sums beyond 2^62
        return []
    wrong = [
        f"a {what} of {claimed} ns is claimed, the order gives {ns} ns"
        for what, claimed, ns in (
            ("period", record.period_ns, found.period_ns),
            ("makespan", record.makespan_ns, found.makespan_ns),
        )
        if claimed != ns
    ]
    # a difference of two ratios near 1: the error is that of 1
    if not abs(record.bubble - found.bubble) <= TOLERANCE:
        wrong.append(f"a bubble of {_ratio(record.bubble)} is claimed, the order gives {_ratio(found.bubble)}")
    wrong += [
        f"a peak of {counted(claimed, 'byte')} is claimed for rank {rank}, the order gives {counted(peak, 'byte')}"
        for rank, (claimed, peak) in enumerate(zip(record.peak_bytes, found.peak_bytes, strict=True))
        if claimed != peak
    ]
    return wrong


def _close(claimed: float, exact: float) -> bool:
    return claimed == exact or math.isclose(claimed, exact, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _ratio(value: float) -> str:
    return "infinity" if math.isinf(value) else f"{value:.12g}"
