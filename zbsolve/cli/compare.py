"""`zbsolve compare`: published schedules and the solved one, or given timetables, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from zbsolve.cli import _inputs
from zbsolve.cli._deliver import judge, require_optimal
from zbsolve.cli._errors import limits_that_fit
from zbsolve.cli._figures import metrics_fields, problem_fields, table
from zbsolve.cli._interrupts import no_interruption, one_interruption
from zbsolve.cli._output import FILE, Output, output_option, talk_options
from zbsolve.cli._problem import Asked, Search, complete_schedule, problem_options, search_options
from zbsolve.cli._search import run_search
from zbsolve.cli._text import inert
from zbsolve.errors import Infeasible, NothingFound, ZbsolveError
from zbsolve.units import format_bytes, format_ns

if TYPE_CHECKING:
    from zbsolve.analysis.compare import Compared
    from zbsolve.solution import Bound, Solution

__all__ = ["compare"]


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="PROFILE | A.json B.json ...", type=FILE)
@problem_options(required=False)
@search_options
@click.option(
    "--schedule",
    "schedules",
    metavar="NAME",
    multiple=True,
    shell_complete=complete_schedule,
    help="With PROFILE: a published schedule to compare with, any number of times; default all.",
)
@click.option(
    "--draw", "picture", type=FILE, metavar="FILE", help="Draw all of them below each other there: x.svg or x.png."
)
@output_option("Write the solved timetable there.")
@talk_options
@click.pass_context
def compare(
    ctx: click.Context,
    *,
    files: tuple[str, ...],
    asked: Asked,
    search: Search,
    schedules: tuple[str, ...],
    picture: str | None,
    output: str | None,
    out: Output,
) -> None:
    """Put schedules side by side.

    With one PROFILE: every published schedule whose conditions hold, and the solved one. With two
    timetables or more: those. One that does not fit the memory limit is told with what it needs.
    """
    if picture is not None:
        _check_picture(picture, output)
        out.for_file(picture, *files, search.start)
    if len(files) > 1:
        given = [p for p in ctx.params if ctx.get_parameter_source(p) is click.core.ParameterSource.COMMANDLINE]
        unfit = sorted(set(given) - {"files", "picture", "as_json", "quiet"})
        if unfit:
            raise click.UsageError(f"--{unfit[0].replace('_', '-')} is for comparing on a PROFILE, not for timetables.")
        rows = [_row_of_file(path, title) for path, title in zip(files, _inputs.titles(files), strict=True)]
        _tell(rows, _drawn(rows, picture, out), out)
        return
    if not asked.microbatches:
        raise click.UsageError("with a PROFILE, give --microbatches; timetables are compared two or more at a time.")
    out = out.for_file(output, *files, search.start)
    _on_profile(files[0], asked, search, schedules, picture, output, out)


def _check_picture(picture: str, output: str | None) -> None:
    if not picture.lower().endswith((".svg", ".png")):
        raise click.UsageError(f"--draw {picture}: a picture is written as .svg or .png.")
    if picture == output:
        raise click.UsageError(f"--draw and -o both name {picture}; give another file to one of them.")


def _on_profile(
    path: str,
    asked: Asked,
    search: Search,
    schedules: tuple[str, ...],
    picture: str | None,
    output: str | None,
    out: Output,
) -> None:
    from zbsolve.analysis.compare import beside, published

    _inputs.titles(tuple(p for p in (path, search.start) if p))
    costs = _inputs.read_profile(path)
    problem = asked.problem(costs)
    for line in asked.of_no_use(costs):
        out.say(line)
    found, refused = published(problem, schedules or None)
    for row in found:
        judge(row.timetable, must_fit=False)
    left_out = {name: limits_that_fit(e) if isinstance(e, Infeasible) else str(e) for name, e in refused.items()}
    trouble: ZbsolveError | None = None
    with one_interruption():
        try:
            solution = run_search(problem, search, out)
        except (Infeasible, NothingFound) as error:  # the published schedules are still worth telling
            solution, trouble = None, error
        with no_interruption():
            rows = list(beside(found, problem, solution))
            if solution is not None:
                _keep(solution, output, out)
            for name, why in left_out.items():
                out.say(f"left out {name}: {why}")
            about = {"left_out": left_out, "file": output if solution else None}
            _tell(rows, {**problem_fields(problem), **about, **_drawn(rows, picture, out)}, out)
    if trouble is not None:
        raise trouble
    if search.require_optimal and solution is not None:
        require_optimal(solution)


def _keep(solution: Solution, output: str | None, out: Output) -> None:
    from zbsolve.files import timetable_bytes

    judge(solution.timetable, must_fit=True, claimed_ns=solution.value_ns)
    if output is not None:
        out.write(output, timetable_bytes(solution))


def _row_of_file(path: str, title: str) -> Compared:
    from zbsolve.analysis.compare import best_bound, row_of

    timetable = _inputs.read_sound(path)
    return row_of(title, timetable, best_bound(timetable.problem))


def _drawn(rows: list[Compared], picture: str | None, out: Output) -> dict[str, object]:
    """Draw the rows as one picture; of too many the best that fit, as they stand."""
    if picture is None or not rows:
        return {}
    from zbsolve.analysis.compare import SOLVED
    from zbsolve.draw.figure import MOST_PANELS, draw_timetables

    shown = rows
    if len(rows) > MOST_PANELS:
        best = sorted(rows, key=lambda row: (row.schedule != SOLVED, not row.fits, row.value_ns))[:MOST_PANELS]
        kept = {row.schedule for row in best}
        shown = [row for row in rows if row.schedule in kept]
        out.say(f"one picture holds {MOST_PANELS} timetables, so {len(rows) - len(shown)} are left out; see --schedule")
    titled = [(row.schedule if row.fits else f"{row.schedule} ({row.fit_text})", row.timetable) for row in shown]
    out.say(f"wrote {draw_timetables([(inert(title), t) for title, t in titled], picture, memory=False)}")
    return {"picture": picture}


def _fields(row: Compared) -> dict[str, object]:
    from zbsolve.solution import recomputing_ns

    return {
        "schedule": row.schedule,
        **metrics_fields(row.problem, row.metrics),
        "recompute_ns": recomputing_ns(row.timetable),
        "needs": row.needs,
        "gap": row.gap,
        "lower_bound_ns": row.bound and row.bound.value_ns,
        "bound": row.bound and row.bound.name,
    }


def _tell(rows: list[Compared], about: dict[str, object], out: Output) -> None:
    if out.as_json:
        out.data({"rows": [_fields(row) for row in rows], **about})
        return
    made = table("schedule", "period", "makespan", "bubble", "peak memory", "fits the limit", "gap")
    for row in rows:
        metrics = row.metrics
        made.add_row(
            inert(row.schedule),
            format_ns(metrics.period_ns),
            format_ns(metrics.makespan_ns),
            f"{metrics.bubble:.4f}",
            format_bytes(max(metrics.peak_bytes)),
            row.fit_text,
            "-" if row.gap is None else f"{row.gap:.2%}",
        )
    formulas = dict.fromkeys(row.metrics.bubble_formula for row in rows)
    bounds = dict.fromkeys(row.bound for row in rows if row.bound)
    if any(row.gap is None for row in rows):
        rest = ["- where there is no gap: the bound is of timetables that fit the memory limit"]
    else:
        rest = []
    out.show(
        made,
        *(f"bubble = {formula}" for formula in formulas),
        *_about_recomputing(rows),
        "gap = value / bound - 1",
        *rest,
        *(_about_bound(bound, rows) for bound in bounds),
    )


def _about_recomputing(rows: list[Compared]) -> list[str]:
    """Computing a forward again is no idle time, so what does it has less bubble, and more work."""
    from zbsolve.solution import recomputing_ns

    shares = []
    for row in rows:
        work = row.metrics.compute_ns
        again = recomputing_ns(row.timetable)
        if again:
            shares.append(f"{row.schedule} {again / work:.1%}")
    told = f"recomputing counts as work, of which it is: {', '.join(shares)}; compare periods"
    return [inert(told)] if shares else []


def _about_bound(bound: Bound, rows: list[Compared]) -> str:
    """Which bound, and whose, where there are several."""
    of = [row.schedule for row in rows if row.bound == bound]
    whose = "" if len(of) == len(rows) else f" of {', '.join(of)}"
    return inert(f"bound{whose} = {bound.value_ns} ns by {bound.name}")
