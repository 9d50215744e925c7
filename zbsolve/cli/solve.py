"""`zbsolve solve`: the best timetable for a profile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from zbsolve.cli import _inputs
from zbsolve.cli._deliver import deliver, require_optimal
from zbsolve.cli._interrupts import no_interruption, one_interruption
from zbsolve.cli._jitter import Jitter, jitter_options, robust_fields, robust_tables, share_option
from zbsolve.cli._output import FILE, STDOUT, Output, output_option, talk_options
from zbsolve.cli._problem import Asked, Search, problem_options, search_options
from zbsolve.cli._search import no_answer_told, run_robust_search, run_search

if TYPE_CHECKING:
    from zbsolve.solution import Solution

__all__ = ["solve"]

ROBUST = ("within", "jitter", "trials", "iterations")
"""Options that say nothing without --robust."""


@click.command()
@click.argument("profile", type=FILE)
@problem_options()
@search_options
@click.option(
    "--robust",
    is_flag=True,
    help="Choose, of what the search met, what has the best p95 under jitter; not with --recompute.",
)
@share_option("--within", default="1%", what="With --robust: how much worse than the best it may be without jitter.")
@jitter_options("5%", what="With --robust: how much durations vary, or as much as was measured.")
@click.option(
    "--report",
    "page",
    type=FILE,
    metavar="FILE",
    help="Write a page for a browser there: the timetable beside the best published schedule that fits.",
)
@output_option("Write the timetable there.")
@talk_options
@click.pass_context
def solve(
    ctx: click.Context,
    *,
    profile: str,
    asked: Asked,
    search: Search,
    robust: bool,
    within: float,
    jitter: Jitter,
    page: str | None,
    output: str | None,
    out: Output,
) -> None:
    """Find the best timetable for PROFILE and prove how good it is.

    Ctrl-C ends the search and keeps the best timetable so far.
    """
    if not robust:
        unfit = [name for name in ROBUST if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
        if unfit:
            raise click.UsageError(f"--{unfit[0]} is for --robust.")
    if page is not None:
        if page in (STDOUT, output):
            raise click.UsageError(f"--report {page}: give the page a file of its own.")
        out.for_file(page, profile, search.start)
    out = out.for_file(output, profile, search.start)
    _inputs.titles(tuple(path for path in (profile, search.start) if path))
    costs = _inputs.read_profile(profile)
    problem = asked.problem(costs)
    for line in asked.of_no_use(costs):
        out.say(line)
    with one_interruption():
        with no_answer_told(out):
            if robust:
                found = run_robust_search(problem, search, jitter, within, out)
                solution, more, shown = found.solution, robust_fields(found), tuple(robust_tables(found))
            else:
                solution, more, shown = run_search(problem, search, out), None, ()
        with no_interruption():
            if page is not None:
                _report(solution, page, out)
            deliver(solution, out, output, must_fit=True, more=more, shown=shown)
    if search.require_optimal:
        require_optimal(solution)


def _report(solution: Solution, page: str, out: Output) -> None:
    from zbsolve.analysis.compare import best_published
    from zbsolve.draw.report import Entry, render_report

    entries = [Entry.of("solved", solution)]
    known = best_published(solution.timetable.problem)
    if known is not None:
        entries.append(Entry.of(known.schedule, known.timetable))
    out.write(page, render_report(entries))
