"""`zbsolve read`: another tool's schedule as a timetable."""

from __future__ import annotations

import click

from zbsolve.cli import _inputs
from zbsolve.cli._deliver import deliver
from zbsolve.cli._output import FILE, Output, output_option, talk_options
from zbsolve.cli._problem import memory_option, with_memory

__all__ = ["read"]

FORMATS = ("torch-csv",)


@click.command()
@click.argument("kind", metavar="FORMAT", type=click.Choice(FORMATS))
@click.argument("file", metavar="FILE", type=FILE)
@click.option("--profile", type=FILE, metavar="PROFILE", required=True, help="What the stages cost.")
@memory_option("unlimited")
@click.option(
    "--objective",
    type=click.Choice(["period", "makespan"]),
    default="period",
    show_default=True,
    help="What the times attain.",
)
@click.option("--paired", is_flag=True, help="What torch runs together (OVERLAP_F_B) is a pair, not one by one.")
@output_option("Write the timetable there.")
@talk_options
def read(
    *,
    kind: str,
    file: str,
    profile: str,
    memory: str | None,
    objective: str,
    paired: bool,
    output: str | None,
    out: Output,
) -> None:
    """Read the schedule in FILE and time it on the costs of PROFILE.

    torch-csv is what torch.distributed.pipelining dumps and loads, compute_only or compute_comms: which of
    the two is told by what stands in it, as are ranks, placement and microbatches. Exit code 2 where torch
    would hang on it or compute something else, with row and cell; 1 where it does not fit --memory.
    """
    from zbsolve.interop.torch import parse_torch_csv
    from zbsolve.metrics import metrics

    out = out.for_file(output, file, profile)
    _inputs.titles((file, profile))
    costs = _inputs.read_profile(profile)
    schedule = parse_torch_csv(*_inputs.content(file), paired=paired)
    problem = with_memory(schedule.problem(costs, objective=objective), memory)  # type: ignore[arg-type]
    made = schedule.timetable(problem)
    where = problem.placement
    out.say(
        f"{schedule.layout}: {where.stages} stages on {where.ranks} ranks ({where.name} placement), "
        f"{schedule.microbatches} microbatches"
    )
    for note in schedule.notes:
        out.say(note)
    deliver((made, metrics(made)), out, output)
