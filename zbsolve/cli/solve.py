"""`zbsolve solve`: the best timetable for a profile."""

from __future__ import annotations

import click

from zbsolve.cli import _inputs
from zbsolve.cli._deliver import deliver, require_optimal
from zbsolve.cli._interrupts import no_interruption, one_interruption
from zbsolve.cli._output import Output, output_option, talk_options
from zbsolve.cli._problem import Asked, Search, problem_options, search_options
from zbsolve.cli._search import no_answer_told, run_search

__all__ = ["solve"]


@click.command()
@click.argument("profile")
@problem_options()
@search_options
@output_option("Write the timetable there.")
@talk_options
def solve(*, profile: str, asked: Asked, search: Search, output: str | None, out: Output) -> None:
    """Find the best timetable for PROFILE and prove how good it is.

    Ctrl-C ends the search and keeps the best timetable so far.
    """
    out = out.for_file(output, profile, search.start)
    _inputs.titles(tuple(path for path in (profile, search.start) if path))
    problem = asked.problem(_inputs.read_profile(profile))
    with one_interruption():
        with no_answer_told(out):
            solution = run_search(problem, search, out)
        with no_interruption():
            deliver(solution, out, output, must_fit=True)
    if search.require_optimal:
        require_optimal(solution)
