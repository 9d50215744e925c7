"""`zbsolve baseline`: a published schedule on your costs."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from zbsolve.cli import _inputs
from zbsolve.cli._deliver import deliver, require_optimal
from zbsolve.cli._figures import table
from zbsolve.cli._output import FILE, Output, output_option, talk_options
from zbsolve.cli._problem import Asked, Search, complete_schedule, problem_options, search_options
from zbsolve.cli._search import no_answer_told
from zbsolve.cli._text import inert

if TYPE_CHECKING:
    from zbsolve.catalog import Schedule
    from zbsolve.problem import Problem
    from zbsolve.solution import Solution

__all__ = ["as_solution", "baseline"]

MEMORY_OF = {"zb-1p": "1x", "zb-v": "1x", "zb-2p": "2x"}
"""The limit a schedule is made for, where `--memory` gives none."""

SEARCH_OPTIONS = ("time_limit", "work_limit", "gap", "start", "seed", "workers")


@click.command()
@click.argument("name", required=False, shell_complete=complete_schedule)
@click.argument("profile", required=False, type=FILE)
@click.option("--list", "listed", is_flag=True, help="Name the published schedules; needs no profile.")
@problem_options(required=False, memory_default="what the schedule is made for, else unlimited")
@search_options
@output_option("Write the timetable there.")
@talk_options
@click.pass_context
def baseline(
    ctx: click.Context,
    *,
    name: str | None,
    profile: str | None,
    listed: bool,
    asked: Asked,
    search: Search,
    output: str | None,
    out: Output,
) -> None:
    """Time the published schedule NAME on the costs of PROFILE.

    The options of a search are accepted, so that a `solve` command line can be reused, but there is
    nothing to search. Without --memory, a schedule that is made for a memory limit takes that one;
    --list tells what each needs.
    """
    from zbsolve.catalog import schedules

    known = schedules()
    if listed:
        _list(known, out)
        return
    if name is None or profile is None:
        raise click.UsageError("give a NAME and a PROFILE, or --list.")
    if not asked.microbatches:
        raise click.UsageError("Missing option '-m' / '--microbatches'.")
    schedule = next((schedule for schedule in known if schedule.name == name), None)
    if schedule is None:
        raise click.UsageError(f"there is no schedule {name!r}; choose one of {', '.join(s.name for s in known)}.")
    out = out.for_file(output, profile)
    for option in SEARCH_OPTIONS:
        if ctx.get_parameter_source(option) is click.core.ParameterSource.COMMANDLINE:
            out.say(f"--{option.replace('_', '-')} has no effect: a published schedule is not searched for")
    placement = "linear" if schedule.placement == "any" else schedule.placement
    asked = replace(asked, forward_only=asked.forward_only or name == "forward-only")
    costs = _inputs.read_profile(profile)
    for line in asked.of_no_use(costs):
        out.say(line)
    asked = replace(asked, recompute=asked.recompute or name == "gpipe-recompute")
    problem = asked.problem(costs, placement=placement, memory=MEMORY_OF.get(name))
    with no_answer_told(out):
        made = as_solution(name, problem)
    deliver(made, out, output, published=name)
    if search.require_optimal:
        require_optimal(made)


def as_solution(name: str, problem: Problem) -> Solution:
    """The schedule, timed, beside the best lower bound known without a search."""
    from zbsolve.bounds import lower_bound
    from zbsolve.catalog import baseline as order_of
    from zbsolve.metrics import metrics
    from zbsolve.simulate import simulate
    from zbsolve.solution import Solution, relative_gap

    began = time.perf_counter()
    timetable = simulate(problem, order_of(name, problem))
    found, bound = metrics(timetable), lower_bound(problem)
    value = found.period_ns if problem.objective == "period" else found.makespan_ns
    return Solution(
        timetable=timetable,
        metrics=found,
        status="optimal" if value == bound.value_ns else "feasible",
        value_ns=value,
        lower_bound_ns=bound.value_ns,
        bound=bound.name,
        gap=relative_gap(value, bound.value_ns),
        seconds=time.perf_counter() - began,
        seed=0,
        method=name,
        digest=problem.digest,
    )


def _list(known: tuple[Schedule, ...], out: Output) -> None:
    if out.as_json:
        columns = ("name", "family", "placement", "needs", "source")
        out.data([{column: getattr(schedule, column) for column in columns} for schedule in known])
        return
    made = table("name", "family", "placement", "needs", "source")
    for column in made.columns:
        column.justify = "left"
    for s in known:
        made.add_row(s.name, s.family, s.placement, inert(s.needs), inert(s.source))
    out.show(made)
