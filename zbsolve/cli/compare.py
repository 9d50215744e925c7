"""`zbsolve compare`: published schedules and the solved one, or given timetables, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from zbsolve.cli import _inputs
from zbsolve.cli._deliver import judge, require_optimal
from zbsolve.cli._errors import limits_that_fit
from zbsolve.cli._figures import fits, metrics_fields, problem_fields, table
from zbsolve.cli._interrupts import no_interruption, one_interruption
from zbsolve.cli._output import Output, output_option, talk_options
from zbsolve.cli._problem import Asked, Search, problem_options, search_options
from zbsolve.cli._search import run_search
from zbsolve.cli._text import inert
from zbsolve.errors import Infeasible, NothingFound, ScheduleConditionError, ZbsolveError
from zbsolve.units import format_bytes, format_ns

if TYPE_CHECKING:
    from zbsolve.problem import Problem
    from zbsolve.solution import Bound, Metrics, Solution

__all__ = ["compare"]


@dataclass(frozen=True)
class Row:
    """One schedule with its figures; None for a bound where nothing can fit the limit."""

    schedule: str
    problem: Problem
    metrics: Metrics
    bound: Bound | None

    @property
    def fits(self) -> bool:
        """Whether it keeps the memory limit of its problem."""
        return fits(self.problem, self.metrics)

    @property
    def gap(self) -> float | None:
        """How far above the bound; none where it does not fit, since the bound holds for those that do."""
        metrics = self.metrics
        value = metrics.period_ns if self.problem.objective == "period" else metrics.makespan_ns
        return value / self.bound.value_ns - 1 if self.fits and self.bound and self.bound.value_ns else None

    def fields(self) -> dict[str, object]:
        """All of it, for JSON."""
        return {
            "schedule": self.schedule,
            **metrics_fields(self.problem, self.metrics),
            "gap": self.gap,
            "lower_bound_ns": self.bound and self.bound.value_ns,
            "bound": self.bound and self.bound.name,
        }


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
    out = out.for_file(output, *files, search.start)
    _on_profile(files[0], asked, search, output, out)


def _on_profile(path: str, asked: Asked, search: Search, output: str | None, out: Output) -> None:
    _inputs.titles(tuple(p for p in (path, search.start) if p))
    problem = asked.problem(_inputs.read_profile(path))
    published, left_out = _published(problem)
    trouble: ZbsolveError | None = None
    with one_interruption():
        try:
            solution = run_search(problem, search, out)
        except (Infeasible, NothingFound) as error:  # the published schedules are still worth telling
            solution, trouble = None, error
        with no_interruption():
            _tell_all(problem, published, left_out, solution, output, out)
    if trouble is not None:
        raise trouble
    if search.require_optimal and solution is not None:
        require_optimal(solution)


def _tell_all(
    problem: Problem,
    published: dict[str, Metrics],
    left_out: dict[str, str],
    solution: Solution | None,
    output: str | None,
    out: Output,
) -> None:
    """Write the solution, if there is one, and tell it beside the published schedules."""
    from zbsolve.files import timetable_bytes
    from zbsolve.solution import Bound

    if solution is None:
        bound = _bound(problem)
    else:
        judge(solution.timetable, must_fit=True, claimed_ns=solution.value_ns)
        bound = Bound(solution.lower_bound_ns, solution.bound)
        published = {**published, "solved": solution.metrics}
        if output is not None:
            out.write(output, timetable_bytes(solution))
    for name, why in left_out.items():
        out.say(f"left out {name}: {why}")
    rows = [Row(name, problem, metrics, bound) for name, metrics in published.items()]
    _tell(rows, {**problem_fields(problem), "left_out": left_out, "file": output if solution else None}, out)


def _published(problem: Problem) -> tuple[dict[str, Metrics], dict[str, str]]:
    """The figures of all schedules whose conditions hold, and why the others are left out."""
    from zbsolve.catalog import baseline, schedules
    from zbsolve.metrics import metrics
    from zbsolve.simulate import simulate

    found, left_out = {}, {}
    for schedule in schedules():
        try:
            timetable = simulate(problem, baseline(schedule.name, problem))
        except Infeasible as error:
            left_out[schedule.name] = limits_that_fit(error)
            continue
        except ScheduleConditionError as error:
            left_out[schedule.name] = str(error)
            continue
        judge(timetable, must_fit=False)
        found[schedule.name] = metrics(timetable)
    return found, left_out


def _bound(problem: Problem) -> Bound | None:
    """The best bound that needs no search; none where nothing can fit the limit."""
    from zbsolve.bounds import lower_bound

    try:
        return lower_bound(problem)
    except Infeasible:
        return None


def _row_of_file(path: str, title: str) -> Row:
    from zbsolve.metrics import metrics

    timetable = _inputs.read_sound(path)
    return Row(title, timetable.problem, metrics(timetable), _bound(timetable.problem))


def _tell(rows: list[Row], about: dict[str, object], out: Output) -> None:
    if out.as_json:
        out.data({"rows": [row.fields() for row in rows], **about})
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
    formulas = dict.fromkeys(row.metrics.bubble_formula for row in rows)
    bounds = dict.fromkeys(row.bound for row in rows if row.bound)
    if any(row.gap is None for row in rows):
        rest = ["- where there is no gap: the bound is of timetables that fit the memory limit"]
    else:
        rest = []
    out.show(
        made,
        *(f"bubble = {formula}" for formula in formulas),
        "gap = value / bound - 1",
        *rest,
        *(_about_bound(bound, rows) for bound in bounds),
    )


def _about_bound(bound: Bound, rows: list[Row]) -> str:
    """Which bound, and whose, where there are several."""
    of = [row.schedule for row in rows if row.bound == bound]
    whose = "" if len(of) == len(rows) else f" of {', '.join(of)}"
    return inert(f"bound{whose} = {bound.value_ns} ns by {bound.name}")
