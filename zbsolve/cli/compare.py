"""`zbsolve compare`: published schedules and the solved one, or given timetables, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from zbsolve.cli import _inputs
from zbsolve.cli._deliver import judge, require_optimal
from zbsolve.cli._figures import metrics_fields, problem_fields, table
from zbsolve.cli._output import Output, output_option, talk_options
from zbsolve.cli._problem import Asked, Search, problem_options, search_options
from zbsolve.cli._search import run_search
from zbsolve.cli._text import inert
from zbsolve.errors import Infeasible, NothingFound, ScheduleConditionError, ZbsolveError
from zbsolve.units import format_bytes, format_ns

if TYPE_CHECKING:
    from zbsolve.problem import Problem
    from zbsolve.solution import Metrics, Solution

__all__ = ["compare"]


@dataclass(frozen=True)
class Row:
    """One schedule: its problem, its figures, and the bound its gap is taken from."""

    schedule: str
    problem: Problem
    metrics: Metrics
    lower_bound_ns: int
    bound: str

    @property
    def fits(self) -> bool:
        """Whether it keeps the memory limit of its problem."""
        return bool(self.fields()["fits"])

    @property
    def gap(self) -> float | None:
        """How far above the bound; none where it does not fit, since the bound holds for those that do."""
        metrics = self.metrics
        value = metrics.period_ns if self.problem.objective == "period" else metrics.makespan_ns
        fitting = metrics_fields(self.problem, metrics)["fits"]
        return value / self.lower_bound_ns - 1 if fitting and self.lower_bound_ns else None

    def fields(self) -> dict[str, object]:
        """Its figures for JSON, without the gap."""
        return {"schedule": self.schedule, **metrics_fields(self.problem, self.metrics)}


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="PROFILE | A.json B.json ...")
@problem_options(required=False)
@search_options
@output_option("Write the solved timetable there.")
@talk_options
@click.pass_context
def compare(
    ctx: click.Context, *, files: tuple[str, ...], asked: Asked, search: Search, output: str | None, out: Output
) -> None:
    """Put schedules side by side.

    With one PROFILE: every published schedule whose conditions hold, and the solved one. With two
    timetables or more: those.
    """
    if len(files) > 1:
        given = [p for p in ctx.params if ctx.get_parameter_source(p) is click.core.ParameterSource.COMMANDLINE]
        unfit = sorted(set(given) - {"files", "as_json", "quiet"})
        if unfit:
            raise click.UsageError(f"--{unfit[0].replace('_', '-')} is for comparing on a PROFILE, not for timetables.")
        _tell([_row_of_file(path, title) for path, title in zip(files, _inputs.titles(files), strict=True)], {}, out)
        return
    if not asked.microbatches:
        raise click.UsageError("with a PROFILE, give --microbatches; timetables are compared two or more at a time.")
    out = out.for_file(output)
    _on_profile(files[0], asked, search, output, out)


def _on_profile(path: str, asked: Asked, search: Search, output: str | None, out: Output) -> None:
    from zbsolve.files import timetable_bytes

    _inputs.titles(tuple(p for p in (path, search.start) if p))
    problem = asked.problem(_inputs.read_profile(path))
    rows, left_out = _published(problem)
    trouble: ZbsolveError | None = None
    solution: Solution | None = None
    try:
        solution = run_search(problem, search, Output(quiet=out.quiet))
    except (Infeasible, NothingFound) as error:
        trouble = error
    if solution is not None:
        judge_solved(solution)
        bound = (solution.lower_bound_ns, solution.bound)
        solved = Row("solved", problem, solution.metrics, *bound)
        rows = [*(Row(row.schedule, row.problem, row.metrics, *bound) for row in rows), solved]
        if output is not None:
            out.write(output, timetable_bytes(solution))
    for name, why in left_out.items():
        out.say(f"left out {name}: {why}")
    _tell(rows, {**problem_fields(problem), "left_out": left_out, "file": output if solution else None}, out)
    if trouble is not None:
        raise trouble
    if search.require_optimal and solution is not None:
        require_optimal(solution)


def judge_solved(solution: Solution) -> None:
    """Refuse a solved timetable with any violation at all."""
    from zbsolve.check import check

    judge(solution.timetable)
    check(solution.timetable.problem, solution.timetable)


def _published(problem: Problem) -> tuple[list[Row], dict[str, str]]:
    """The rows of all schedules whose conditions hold, and why the others are left out."""
    from zbsolve.bounds import lower_bound
    from zbsolve.catalog import baseline, schedules
    from zbsolve.metrics import metrics
    from zbsolve.simulate import simulate

    bound = lower_bound(problem)
    rows, left_out = [], {}
    for schedule in schedules():
        try:
            timetable = simulate(problem, baseline(schedule.name, problem))
        except ScheduleConditionError as error:
            left_out[schedule.name] = str(error)
            continue
        judge(timetable)
        rows.append(Row(schedule.name, problem, metrics(timetable), bound.value_ns, bound.name))
    return rows, left_out


def _row_of_file(path: str, title: str) -> Row:
    from zbsolve.bounds import lower_bound
    from zbsolve.check import check
    from zbsolve.metrics import metrics

    timetable = _inputs.read_timetable(path)
    check(timetable.problem, timetable)
    bound = lower_bound(timetable.problem)
    return Row(title, timetable.problem, metrics(timetable), bound.value_ns, bound.name)


def _tell(rows: list[Row], about: dict[str, object], out: Output) -> None:
    if out.as_json:
        fields = [
            {**row.fields(), "gap": row.gap, "lower_bound_ns": row.lower_bound_ns, "bound": row.bound} for row in rows
        ]
        out.data({"rows": fields, **about})
        return
    made = table("schedule", "period", "makespan", "bubble", "peak memory", "fits", "gap")
    for row in rows:
        metrics = row.metrics
        made.add_row(
            inert(row.schedule),
            format_ns(metrics.period_ns),
            format_ns(metrics.makespan_ns),
            f"{metrics.bubble:.4f}",
            format_bytes(max(metrics.peak_bytes)),
            "yes" if row.fits else "no",
            "-" if row.gap is None else f"{row.gap:.2%}",
        )
    out.show(made)
    for formula in dict.fromkeys(row.metrics.bubble_formula for row in rows):
        out.say(f"bubble = {formula}")
    for bound in dict.fromkeys((row.lower_bound_ns, row.bound) for row in rows):
        out.say(f"gap = value / bound - 1, bound {bound[0]} ns by {bound[1]}")
