"""`zbsolve sweep`: the best value over memory limits, microbatches and placements."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zbsolve.cli import _inputs
from zbsolve.cli._deliver import judge
from zbsolve.cli._figures import table
from zbsolve.cli._interrupts import no_interruption, one_interruption
from zbsolve.cli._output import FILE, STDOUT, Output, output_option, talk_options
from zbsolve.cli._problem import Asked, complete_placement, seconds_option, with_memory
from zbsolve.cli._ranges import limits, numbers
from zbsolve.cli._text import inert
from zbsolve.errors import FileFormatError
from zbsolve.units import counted, format_bytes, format_ns

if TYPE_CHECKING:
    from zbsolve.analysis.sweep import SweepOutcome, SweepPoint
    from zbsolve.profile import Profile
    from zbsolve.solution import Solution

__all__ = ["sweep"]

SUFFIX = ".timetable.json"

MOST_POINTS = 2000


@click.command()
@click.argument("profile", type=FILE)
@click.option(
    "-m", "--microbatches", metavar="LIST", required=True, help="Microbatches: 24, 8,16,32 or START:STOP:STEP."
)
@click.option(
    "--memory",
    metavar="LIST",
    default="0.3x:2x:0.1x",
    show_default=True,
    help="Limits per rank by commas, or START:STOP:STEP: 0.3x:2x:0.1x, 40GiB:80GiB:8GiB, 0.5x,1x,unlimited.",
)
@click.option(
    "--placement",
    "placements",
    metavar="NAME|LIST",
    multiple=True,
    shell_complete=complete_placement,
    help="As for solve; any number of times. Default linear.",
)
@click.option("--ranks", metavar="N", type=click.IntRange(min=1), help="Pipeline ranks; default stages / chunks.")
@click.option("--chunks", metavar="K", type=click.IntRange(min=1), help="Stages a rank; default stages / ranks.")
@click.option(
    "--objective", type=click.Choice(["period", "makespan"]), default="period", show_default=True, help="As for solve."
)
@click.option("--rank-factors", metavar="LIST", help="As for solve.")
@click.option("--forward-only", is_flag=True, help="Forwards alone, for evaluation and serving.")
@click.option("--recompute", is_flag=True, help="As for solve.")
@click.option("--offload", is_flag=True, help="As for solve.")
@click.option("--slices", metavar="K", type=click.IntRange(min=1), default=1, help="As for solve.")
@seconds_option("--time-limit", default=10.0, what="For each point.")
@click.option("--work-limit", type=click.IntRange(min=1), metavar="STEPS", help="For each point, in search steps.")
@click.option(
    "--seed", metavar="N", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Of random choices."
)
@click.option(
    "--jobs", metavar="N", type=click.IntRange(1, 1024), help="Points solved at once; default what CPUs there are."
)
@click.option("--draw", "picture", type=FILE, metavar="FILE", help="Draw the frontier there: x.svg or x.png.")
@click.option(
    "--timetables",
    type=FILE,
    metavar="FOLDER",
    help="Keep the timetable of each point there, and go on with what is there. Default: beside the CSV.",
)
@output_option("Write the table there, as CSV.")
@talk_options
def sweep(
    *,
    profile: str,
    microbatches: str,
    memory: str,
    placements: tuple[str, ...],
    time_limit: float,
    work_limit: int | None,
    seed: int,
    jobs: int | None,
    picture: str | None,
    timetables: str | None,
    output: str | None,
    out: Output,
    **asked: Any,
) -> None:
    """Solve PROFILE for several memory limits, microbatches and placements.

    Each point starts from its neighbour with less memory, so more memory is never worse. What is
    solved is kept: interrupted and called again, the sweep goes on where it was.
    """
    from zbsolve.analysis.sweep import sweep as swept
    from zbsolve.analysis.whatif import Effort
    from zbsolve.files.sweep import outcome_fields, sweep_csv

    if picture is not None and not picture.lower().endswith((".svg", ".png")):
        raise click.UsageError(f"--draw {picture}: a picture is written as .svg or .png.")
    if picture is not None and picture == output:
        raise click.UsageError(f"--draw and -o both name {picture}; give another file to one of them.")
    out.for_file(picture, profile)
    out = out.for_file(output, profile)
    costs = _inputs.read_profile(profile)
    points = _points(costs, microbatches, memory, placements or ("linear",), asked)
    for line in _base(asked, points[0].problem.microbatches, points[0].placement).of_no_use(costs):
        out.say(line)
    if timetables is None and output is not None and output != STDOUT:
        timetables = str(Path(output).with_suffix("")) + "-timetables"
    folder = None if timetables is None else _folder(timetables)
    known = {} if folder is None else _known(points, folder)
    done: list[SweepOutcome] = []

    def note(outcome: SweepOutcome) -> None:
        done.append(outcome)
        digest = outcome.point.problem.digest
        if outcome.solution is not None and digest not in known:
            _keep(outcome.solution, folder)
        again = " (known)" if digest in known else ""
        out.say(f"{len(done)}/{len(points)}  {_one_line(outcome)}{again}")

    effort = Effort(time_limit_s=time_limit, work_limit=work_limit, seed=seed)
    with one_interruption():
        try:
            outcomes = swept(points, effort, jobs=jobs or _cpus(), known=known, on_outcome=note)
        except KeyboardInterrupt:
            if folder is not None:
                out.say(f"{counted(len(done), 'point')} of {len(points)} kept in {folder}; the same command goes on")
            raise
        with no_interruption():
            if output is not None:
                out.write(output, sweep_csv(outcomes))
            if picture is not None and any(outcome.solution for outcome in outcomes):
                from zbsolve.draw.frontier import draw_frontier

                out.say(f"wrote {draw_frontier(outcomes, picture)}")
            if out.as_json:
                told = {"file": output, "picture": picture, "timetables": timetables}
                out.data({"rows": [outcome_fields(outcome) for outcome in outcomes], **told})
            else:
                out.show(_table(outcomes), "gap = value / bound - 1; a bound for more memory holds for less")


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _points(
    profile: Profile, microbatches: str, memory: str, placements: tuple[str, ...], asked: dict[str, Any]
) -> list[SweepPoint]:
    from zbsolve.analysis.sweep import SweepPoint
    from zbsolve.cli._problem import check_placement

    many, sizes = numbers("--microbatches", microbatches), limits(memory)
    placements = tuple(dict.fromkeys(placements))
    if len(placements) * len(many) * len(sizes) > MOST_POINTS:
        raise click.UsageError(f"that makes more than {MOST_POINTS} points; take larger steps.")
    found = []
    for placement in placements:
        check_placement(placement)
        for count in many:
            base = _base(asked, count, placement).problem(profile)
            found += [SweepPoint(placement=placement, memory=size, problem=with_memory(base, size)) for size in sizes]
    return found


def _base(asked: dict[str, Any], microbatches: int, placement: str) -> Asked:
    """What is asked at a point, but for the memory."""
    return Asked(microbatches=microbatches, placement=placement, memory=None, **asked)


def _folder(path: str) -> Path:
    folder = Path(path)
    try:
        folder.mkdir(exist_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileFormatError(path, f"cannot be made into a folder for timetables: {reason}") from None
    return folder


def _known(points: Sequence[SweepPoint], folder: Path) -> dict[str, Solution]:
    """What an earlier sweep has left, judged anew."""
    from zbsolve.files import solution_of

    found = {}
    for point in points:
        digest = point.problem.digest
        path = str(folder / f"{digest}{SUFFIX}")
        if not os.path.lexists(path):
            continue
        given, _ = _inputs.read_proven(path)
        _, record = _inputs.read_claimed(path)
        if record is None or given.problem.digest != digest:
            raise FileFormatError(path, "is no timetable of this sweep; remove it, or give another --timetables")
        found[digest] = solution_of(given, record)
    return found


def _keep(solution: Solution, folder: Path | None) -> None:
    from zbsolve.files import timetable_bytes, write_atomic

    judge(solution.timetable, must_fit=True, claimed_ns=solution.value_ns)
    if folder is not None:
        with no_interruption():
            write_atomic(folder / f"{solution.digest}{SUFFIX}", timetable_bytes(solution))


def _one_line(outcome: SweepOutcome) -> str:
    point, solution = outcome.point, outcome.solution
    name = f"{point.placement}, {counted(point.problem.microbatches, 'microbatch')}, {point.memory}"
    if solution is None:
        return inert(f"{name}: {outcome.status}")
    return inert(f"{name}: {format_ns(solution.value_ns)}, gap {solution.gap:.2%}")


def _table(outcomes: Sequence[SweepOutcome]) -> Any:
    made = table("placement", "microbatches", "memory", "limit", "period", "makespan", "bubble", "peak", "gap")
    for outcome in outcomes:
        point, solution = outcome.point, outcome.solution
        limit = point.problem.limit_bytes
        where = (inert(point.placement), str(point.problem.microbatches), inert(point.memory))
        size = "-" if None in limit else format_bytes(max(b or 0 for b in limit))
        if solution is None:
            made.add_row(*where, size, outcome.status, "", "", "", "")
            continue
        found = solution.metrics
        made.add_row(
            *where,
            size,
            format_ns(found.period_ns),
            format_ns(found.makespan_ns),
            f"{found.bubble:.4f}",
            format_bytes(max(found.peak_bytes)),
            f"{solution.gap:.2%}",
        )
    return made
