"""`zbsolve check`: judge a timetable."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from zbsolve.cli import _inputs
from zbsolve.cli._figures import grid
from zbsolve.cli._output import Output, talk_options
from zbsolve.cli._problem import memory_limit, memory_option
from zbsolve.cli._text import inert
from zbsolve.errors import Infeasible
from zbsolve.units import format_ns

if TYPE_CHECKING:
    from zbsolve.files import SolverRecord
    from zbsolve.ops import Op
    from zbsolve.problem import Problem
    from zbsolve.timetable import Timetable, Violation

__all__ = ["check"]

MOST_SHOWN = 20


@click.command()
@click.argument("timetable", metavar="T.json")
@memory_option
@click.option(
    "--bound", is_flag=True, help="Also tell the proven lower bound and the gap, and prove the bound in the file anew."
)
@click.option(
    "--bound-time",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True, max=86_400),
    default=60.0,
    show_default=True,
    help="How long that proof may take.",
)
@talk_options
def check(*, timetable: str, memory: str | None, bound: bool, bound_time: float, out: Output) -> int:
    """Judge the timetable T.json by the problem in it, or by another memory limit.

    Exit code 1 where a rule is broken, or where the bound in the file is not proven by what it names.
    """
    from zbsolve.check import violations

    given, record = _inputs.read_claimed(timetable)
    problem = given.problem
    if memory is not None:
        problem = dataclasses.replace(problem, memory_limit=memory_limit(memory))
    claimed = record.value_ns if record is not None and record.objective == problem.objective else None
    found = (*violations(problem, given, claimed_ns=claimed), *_broken_claims(given, record))
    proof = _bound_fields(problem, given) if bound else {}
    if bound and record is not None and record.digest == problem.digest:
        proof |= _verdict_fields(problem, record, bound_time)
    if out.as_json:
        listed = [{"code": v.code, "message": v.message, "ops": [_op_fields(op) for op in v.ops]} for v in found]
        out.data({"ok": not found, "violations": listed, **proof})
    elif found:
        out.show(*_listed(found))
    else:
        value = given.period_ns if problem.objective == "period" else given.makespan_ns
        count = sum(map(len, given.rows))
        out.show(f"no violation: {count} operations on {len(given.rows)} ranks, {problem.objective} {format_ns(value)}")
    if proof and not out.as_json:
        out.show(grid([(name, "none" if value is None else str(value)) for name, value in proof.items()]))
    return 1 if found or proof.get("verdict") == "wrong" else 0


def _broken_claims(given: Timetable, record: SolverRecord | None) -> tuple[Violation, ...]:
    """What the record of the solver says that cannot be true of this file."""
    from zbsolve.timetable import Violation

    if record is None:
        return ()
    wrong = []
    if record.digest != given.problem.digest:
        wrong.append(f"the solver's record is of problem {record.digest}, the file holds {given.problem.digest}")
    if record.objective != given.problem.objective:
        wrong.append(
            f"the solver's record is of the {record.objective}, the problem asks for {given.problem.objective}"
        )
    if record.lower_bound_ns > record.value_ns:
        wrong.append(f"the claimed bound, {record.lower_bound_ns} ns, is above the claimed value, {record.value_ns} ns")
    if record.status == "optimal" and record.lower_bound_ns < record.value_ns:
        wrong.append(f"it is claimed optimal, but bound {record.lower_bound_ns} and value {record.value_ns} differ")
    return tuple(Violation("claim", message) for message in wrong)


def _bound_fields(problem: Problem, given: Timetable) -> dict[str, object]:
    """The proven lower bound and how far the timetable is above it; null where nothing fits the limit."""
    from zbsolve.bounds import lower_bound

    try:
        bound = lower_bound(problem)
    except Infeasible:
        return {"lower_bound_ns": None, "bound": None, "gap": None}
    value = given.period_ns if problem.objective == "period" else given.makespan_ns
    gap = value / bound.value_ns - 1 if bound.value_ns else None
    return {"lower_bound_ns": bound.value_ns, "bound": bound.name, "gap": gap}


def _verdict_fields(problem: Problem, record: SolverRecord, seconds: float) -> dict[str, object]:
    """Whether the bound in the file, proven anew from its name alone, holds."""
    from zbsolve.solution import Bound
    from zbsolve.solver.certificate import verify_bound

    try:
        verdict = verify_bound(problem, Bound(record.lower_bound_ns, record.bound), time_limit_s=seconds)
    except Infeasible:
        return {}
    return {
        "claimed_bound": inert(record.bound),
        "claimed_bound_ns": record.lower_bound_ns,
        "verdict": verdict.status,
        "verdict_message": inert(verdict.message),
    }


def _op_fields(op: Op) -> dict[str, object]:
    return {"kind": op.kind.value, "stage": op.stage, "microbatch": op.microbatch}


def _listed(found: tuple[Violation, ...]) -> list[str]:
    lines = ["1 violation:" if len(found) == 1 else f"{len(found)} violations:"]
    lines += [f"  {inert(v.code)}: {inert(v.message)}" for v in found[:MOST_SHOWN]]
    if len(found) > MOST_SHOWN:
        lines.append(f"  ... and {len(found) - MOST_SHOWN} more; --json lists them all")
    return lines
