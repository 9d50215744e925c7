"""`zbsolve check`: judge a timetable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from zbsolve.cli import _inputs
from zbsolve.cli._claims import broken_claims
from zbsolve.cli._figures import grid
from zbsolve.cli._output import FILE, Output, talk_options
from zbsolve.cli._problem import memory_option, with_memory
from zbsolve.cli._text import inert
from zbsolve.errors import Infeasible
from zbsolve.timetable import Violation
from zbsolve.units import counted, format_ns

if TYPE_CHECKING:
    from zbsolve.files import SolverRecord
    from zbsolve.ops import Op
    from zbsolve.problem import Problem
    from zbsolve.timetable import Timetable

__all__ = ["check"]

MOST_SHOWN = 20


@click.command()
@click.argument("timetable", metavar="T.json", type=FILE)
@memory_option("the one in the file")
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

    Every claim of the solver in the file is judged too. Exit code 1 where a rule is broken or a claim is
    false, with --bound also where the bound in the file is not proven by what it names.
    """
    from zbsolve.check import violations

    given, record = _inputs.read_claimed(timetable)
    problem = with_memory(given.problem, memory)
    claimed = record.value_ns if record is not None and record.objective == problem.objective else None
    found = (*violations(problem, given, claimed_ns=claimed), *broken_claims(given, record))
    proof: dict[str, object] = {}
    if bound:
        proof = _bound_fields(problem, given)
        if record is not None and record.digest == given.problem.digest:
            verdict = _verdict_fields(given.problem, record, bound_time)
            proof |= verdict
            if verdict.get("verdict") == "wrong":
                found += (
                    Violation("claim", f"the file claims a bound that does not hold: {verdict['verdict_message']}"),
                )
    if out.as_json:
        listed = [{"code": v.code, "message": v.message, "ops": [_op_fields(op) for op in v.ops]} for v in found]
        out.data({"ok": not found, "violations": listed, **proof})
    elif found:
        out.show(*_listed(found))
    else:
        value = given.period_ns if problem.objective == "period" else given.makespan_ns
        size = f"{counted(sum(map(len, given.rows)), 'operation')} on {counted(len(given.rows), 'rank')}"
        out.show(f"no violation: {size}, {problem.objective} {format_ns(value)}")
    if proof and not out.as_json:
        out.show(grid([(name, "none" if value is None else str(value)) for name, value in proof.items()]))
    return 1 if found else 0


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
    return op.fields


def _listed(found: tuple[Violation, ...]) -> list[str]:
    lines = [f"{counted(len(found), 'violation')}:"]
    lines += [f"  {inert(v.code)}: {inert(v.message)}" for v in found[:MOST_SHOWN]]
    if len(found) > MOST_SHOWN:
        lines.append(f"  ... and {len(found) - MOST_SHOWN} more; --json lists them all")
    return lines
