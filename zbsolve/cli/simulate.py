"""`zbsolve simulate`: time the order of a timetable again."""

from __future__ import annotations

import dataclasses

import click

from zbsolve.cli import _inputs
from zbsolve.cli._deliver import deliver
from zbsolve.cli._jitter import Jitter, jitter_fields, jitter_options, jitter_tables, now_and_then
from zbsolve.cli._output import FILE, Output, output_option, talk_options
from zbsolve.cli._problem import memory_option, with_memory
from zbsolve.errors import InvalidTimetable

__all__ = ["simulate"]


@click.command()
@click.argument("timetable", metavar="T.json", type=FILE)
@click.option("--profile", type=FILE, metavar="PROFILE", help="Costs to time it under, instead of those in the file.")
@memory_option("the one in the file")
@click.option(
    "--objective", type=click.Choice(["period", "makespan"]), help="What the times attain; default as in the file."
)
@jitter_options(None, what="Time it also with durations that vary: by so much, or as much as was measured.")
@click.option("--seed", metavar="N", type=click.IntRange(0, 2**31 - 1), default=0, help="Of the jitter.")
@click.option(
    "--blame",
    metavar="N",
    type=click.IntRange(0, 100_000),
    default=8,
    show_default=True,
    help="How many of the operations to tell that lateness under jitter is due to.",
)
@output_option("Write the new timetable there.")
@talk_options
def simulate(
    *,
    timetable: str,
    profile: str | None,
    memory: str | None,
    objective: str | None,
    jitter: Jitter | None,
    seed: int,
    blame: int,
    output: str | None,
    out: Output,
) -> None:
    """Time the order of T.json exactly, under its own costs or those of another PROFILE.

    With --jitter also under durations that vary: which period half and 95 of 100 runs keep, and
    which operations are most to blame.

    Only its order is used: planned times in the file do not matter. Exit code 1 where the order
    breaks a rule, and nothing is written then.
    """
    from zbsolve.check import violations
    from zbsolve.metrics import metrics
    from zbsolve.simulate import simulate as timed

    out = out.for_file(output, timetable, profile)
    _inputs.titles(tuple(path for path in (timetable, profile) if path))
    given = _inputs.read_timetable(timetable)
    changes: dict[str, object] = {}
    if profile is not None:
        changes["profile"] = _inputs.read_profile(profile)
    if objective is not None:
        changes["objective"] = objective
    problem = with_memory(dataclasses.replace(given.problem, **changes), memory)  # type: ignore[arg-type]
    broken = [violation for violation in violations(problem, given.order) if violation.code != "memory"]
    if broken:  # memory is told with the figures
        raise InvalidTimetable(broken)
    made = timed(problem, given.order)
    if jitter is None:
        deliver((made, metrics(made)), out, output)
        return
    from zbsolve.analysis.jitter import under_jitter

    found = under_jitter(
        made,
        jitter.relative,
        trials=jitter.trials,
        iterations=jitter.iterations,
        seed=seed,
        on_progress=now_and_then(out, "trial"),
    )
    told, shown = {"jitter": jitter_fields(found, blame)}, tuple(jitter_tables(found, blame))
    deliver((made, metrics(made)), out, output, more=told, shown=shown)
