"""`zbsolve check`: judge a timetable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from zbsolve.cli import _inputs
from zbsolve.cli._claims import ANALYTIC_BOUNDS, broken_claims, false_bounds
from zbsolve.cli._figures import grid
from zbsolve.cli._output import Output, talk_options
from zbsolve.cli._problem import memory_option, with_memory
from zbsolve.cli._text import inert
from zbsolve.errors import Infeasible
from zbsolve.units import counted, format_ns

if TYPE_CHECKING:
    from zbsolve.ops import Op
    from zbsolve.problem import Problem
    from zbsolve.timetable import Timetable, Violation

__all__ = ["check"]

MOST_SHOWN = 20


@click.command()
@click.argument("timetable", metavar="T.json")
@memory_option("the one in the file")
@click.option(
    "--bound",
    is_flag=True,
    help="Also tell the proven lower bound and the gap, and compute the bound that the file claims.",
)
@talk_options
def check(*, timetable: str, memory: str | None, bound: bool, out: Output) -> int:
    """Judge the timetable T.json by the problem in it, or by another memory limit.

    Every claim of the solver in the file is judged too. Exit code 1 where a rule is broken or a
    claim is false.
    """
    from zbsolve.check import violations

    given, record = _inputs.read_claimed(timetable)
    problem = with_memory(given.problem, memory)
    claimed = record.value_ns if record is not None and record.objective == problem.objective else None
    found = (*violations(problem, given, claimed_ns=claimed), *broken_claims(given, record))
    proof: dict[str, object] = {}
    if bound:
        found += false_bounds(given, record)
        proof = _bound_fields(problem, given)
        if record is not None and record.bound not in ANALYTIC_BOUNDS:
            out.say(f"the bound that the file claims, by {record.bound!r}, takes a search: it was not computed again")
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


def _op_fields(op: Op) -> dict[str, object]:
    return {"kind": op.kind.value, "stage": op.stage, "microbatch": op.microbatch}


def _listed(found: tuple[Violation, ...]) -> list[str]:
    lines = [f"{counted(len(found), 'violation')}:"]
    lines += [f"  {inert(v.code)}: {inert(v.message)}" for v in found[:MOST_SHOWN]]
    if len(found) > MOST_SHOWN:
        lines.append(f"  ... and {len(found) - MOST_SHOWN} more; --json lists them all")
    return lines
