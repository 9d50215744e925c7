"""The last steps of every verb that makes a timetable: judge it, write it, tell it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from zbsolve.cli._figures import figures, metrics_fields, problem_fields, solution_fields
from zbsolve.cli._output import Output
from zbsolve.errors import InvalidTimetable, NotProvenOptimal

if TYPE_CHECKING:
    from rich.console import RenderableType

    from zbsolve.solution import Metrics, Solution
    from zbsolve.timetable import Timetable, Violation

__all__ = ["deliver", "judge", "require_optimal"]


class FailedOwnCheck(Exception):
    """A timetable that zbsolve made breaks a rule; never the fault of the input."""


def judge(timetable: Timetable, *, must_fit: bool, claimed_ns: int | None = None) -> tuple[Violation, ...]:
    """Judge a timetable of ours by its own problem, and the value we claim; a violation is a bug.

    Returns
    -------
    The memory violations, which are none unless `must_fit` is off: a published schedule looks at no limit.
    """
    from zbsolve.check import violations

    found = violations(timetable.problem, timetable, claimed_ns=claimed_ns)
    for violation in found:
        if must_fit or violation.code != "memory":
            raise FailedOwnCheck(f"{violation.code}: {violation.message}")
    return found


def deliver(
    made: Solution | tuple[Timetable, Metrics],
    out: Output,
    output: str | None,
    *,
    must_fit: bool = False,
    published: str | None = None,
    more: Mapping[str, object] | None = None,
    shown: Sequence[RenderableType] = (),
) -> None:
    """Write a timetable if asked to, and tell its figures; one that does not fit its limit is told but not written.

    A `published` schedule, which nobody searched for, is told by its name. `more` are further fields for
    JSON, `shown` what people read below the figures.

    Raises
    ------
    InvalidTimetable
        If a rank needs more memory than its limit.
    """
    from zbsolve.files import timetable_bytes

    if isinstance(made, tuple):
        timetable, metrics = made
        proof, fields = None, {**metrics_fields(timetable.problem, metrics), **problem_fields(timetable.problem)}
    else:
        timetable, metrics, proof = made.timetable, made.metrics, made
        fields = solution_fields(made)
    unfit = judge(timetable, must_fit=must_fit, claimed_ns=None if proof is None else proof.value_ns)
    written = output if not unfit else None
    if written is not None:
        out.write(written, timetable_bytes(timetable if proof is None else proof))
    if out.as_json:
        out.data({**fields, **(more or {}), "file": written})
    else:
        out.show(figures(timetable.problem, metrics, proof, published), *shown)
    if unfit:
        if output is not None:
            out.say(f"nothing was written to {output}: the timetable does not fit the memory limit")
        raise InvalidTimetable(unfit)
    if output is None:
        out.say("add -o FILE to keep this timetable")


def require_optimal(solution: Solution) -> None:
    """Refuse a timetable without proof.

    Raises
    ------
    NotProvenOptimal
        If value and bound do not meet.
    """
    if solution.status != "optimal":
        raise NotProvenOptimal(
            f"--require-optimal: {solution.value_ns} ns found, {solution.lower_bound_ns} ns proven, a gap of "
            f"{solution.gap:.2%}; give more --time-limit or --work-limit"
        )
