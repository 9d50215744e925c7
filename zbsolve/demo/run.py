"""The whole way, step by step, ending in a table of what was predicted and what was measured."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zbsolve.catalog import baseline
from zbsolve.check import check
from zbsolve.errors import InvalidInput, MissingExtra, RunError
from zbsolve.files import write_profile, write_timetable
from zbsolve.interop.torch import merged, write_torch_csv
from zbsolve.metrics import metrics
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.simulate import simulate
from zbsolve.solution import Solution
from zbsolve.solver import solve
from zbsolve.timetable import Timetable
from zbsolve.units import format_bytes, format_ns

if TYPE_CHECKING:
    from zbsolve.executor.gradients import Named
    from zbsolve.profile import Profile

__all__ = ["DemoResult", "DemoRow", "run_demo"]

RANKS = 4
MICROBATCHES = 8
MEMORY_LIMIT = "1.5x"
LARGEST_ERROR = 1e-10


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRow:
    """One schedule's figures.

    Parameters
    ----------
    schedule
        Its name.
    predicted_ns, measured_ns, torch_measured_ns
        A step's time when steps follow each other: by the profile, on our runtime, and on torch's.
    bubble
        Predicted: 1 - compute work / (ranks x period).
    peak_bytes
        Predicted peak memory of the fullest rank.
    gradient_error, torch_gradient_error
        The largest relative error of a gradient, against the plain model in one process.
    """

    schedule: str
    predicted_ns: int
    measured_ns: int
    torch_measured_ns: int
    bubble: float
    peak_bytes: int
    gradient_error: float
    torch_gradient_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """What the demo found and wrote."""

    rows: tuple[DemoRow, ...]
    solution: Solution
    files: tuple[Path, ...]
    cores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """How much work the demo does."""

    model: dict[str, Any]
    repeats: int
    solve_s: float
    blocks: int
    steps_a_block: int


_FULL = _Size(model={"width": 256, "length": 64, "sequences": 4}, repeats=10, solve_s=8.0, blocks=2, steps_a_block=2)
_QUICK = _Size(model={"width": 64, "length": 32, "sequences": 2}, repeats=3, solve_s=2.0, blocks=1, steps_a_block=2)


def run_demo(
    directory: str | os.PathLike[str] = "zbsolve-demo",
    *,
    seed: int = 0,
    quick: bool = False,
    say: Callable[[str], object] = print,
) -> DemoResult:
    """Measure a small transformer, solve, check, draw, export, run on four processes, compare.

    Parameters
    ----------
    directory
        Where the files go; made if it is not there, files of earlier runs are replaced.
    seed
        Of the weights and of the search.
    quick
        A tiny model and a few steps: shows that all works, measures little.
    say
        Takes each line of the report.

    Raises
    ------
    MissingExtra
        If torch is not installed.
    InvalidInput
        If the directory cannot be used.
    RunError
        If a rank fails, or a gradient is further than 1e-10 (relative) from the plain model's.
    """
    import zbsolve.executor  # noqa: F401  says that torch is missing before any work is done

    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"cannot make the directory {folder}: {error.strerror or error}") from None
    size = _QUICK if quick else _FULL
    talk = _Talk(say)

    talk.step("measure", "a transformer of 8 blocks in 4 stages, in float64, one thread, in processor time")
    profile = _measure(size, seed)
    _show_profile(profile, talk)

    problem = Problem(
        profile=profile, placement=Placement.linear(RANKS), microbatches=MICROBATCHES, memory_limit=MEMORY_LIMIT
    )
    talk.step("solve", f"{RANKS} ranks, {MICROBATCHES} microbatches, at most {MEMORY_LIMIT} of 1F1B's activations")
    classic = simulate(problem, baseline("1f1b", problem))
    solution = solve(problem, time_limit_s=size.solve_s, seed=seed)
    for line in str(solution).splitlines():
        talk.line(line)

    talk.step("check", "both timetables by a judge that shares no code with the solver")
    named = (("1F1B", classic), ("solved", solution.timetable))
    for _, timetable in named:
        check(problem, timetable)
    talk.line("no violations")

    talk.step("write", f"profile, timetables, picture and torch's CSVs into {folder}")
    csvs = [folder / "1f1b.csv", folder / "solved.csv"]
    written = _write(folder, profile, solution, named, csvs, talk)
    _draw(named, talk)

    talk.step(
        "run", f"both orders on zbsolve's runtime and on torch's, in turn, {RANKS} gloo processes, steps back to back"
    )
    rows = _run(size, seed, problem, named, csvs)
    cores = _cores()
    _show_rows(rows, talk)
    _show_distortion(rows, named, cores, talk)
    talk.line("")
    for path in written:
        talk.line(str(path))
    talk.line(f"done in {talk.seconds:.0f} s")
    return DemoResult(rows=rows, solution=solution, files=tuple(written), cores=cores)


class _Talk:
    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start

    def step(self, verb: str, text: str) -> None:
        self._say(f"\n[{self.seconds:4.0f} s] {verb}: {text}")

    def line(self, text: str) -> None:
        self._say(f"  {text}".rstrip())


def _measure(size: _Size, seed: int) -> Profile:
    from zbsolve.demo.model import build
    from zbsolve.executor.measure import measure_profile

    stages, sample, loss_fn = build(seed=seed, **size.model)
    return measure_profile(stages, sample, loss_fn, repeats=size.repeats, clock="processor", name="demo transformer")


def _show_profile(profile: Profile, talk: _Talk) -> None:
    talk.line("stage        F        B        W    fused   held after F   after B   (medians)")
    for number, stage in enumerate(profile.stages):
        times = (stage.forward_ns, stage.backward_input_ns, stage.backward_weight_ns, stage.backward_ns)
        shown = " ".join(f"{ns / 1e6:5.2f} ms" for ns in times)
        held = f"{format_bytes(stage.activation_bytes):>12} {format_bytes(stage.backward_weight_bytes):>11}"
        talk.line(f"{number:>5} {shown} {held}")
    talk.line(
        "B and W as zbsolve's runtime splits them; torch splits otherwise (on stage 0 its W is the whole backward)"
    )


def _write(
    folder: Path,
    profile: Profile,
    solution: Solution,
    named: Sequence[tuple[str, Timetable]],
    csvs: Sequence[Path],
    talk: _Talk,
) -> list[Path]:
    write_profile(folder / "profile.json", profile)
    write_timetable(folder / "1f1b.json", named[0][1])
    write_timetable(folder / "solved.json", solution)
    written = [folder / "profile.json", folder / "1f1b.json", folder / "solved.json"]
    for (_, timetable), csv in zip(named, csvs, strict=True):
        written += write_torch_csv(timetable, csv)
    from zbsolve.draw.figure import draw_timetables

    try:
        written.append(draw_timetables(named, folder / "timetables.svg"))
    except MissingExtra as error:
        talk.line(f"no picture: {error}")
    return written


def _draw(named: Sequence[tuple[str, Timetable]], talk: _Talk) -> None:
    from zbsolve.draw.terminal import gantt_stack

    for line in gantt_stack(named, width=98, colour=False).splitlines():
        talk.line(line)


def _run(
    size: _Size, seed: int, problem: Problem, named: Sequence[tuple[str, Timetable]], csvs: Sequence[Path]
) -> tuple[DemoRow, ...]:
    from zbsolve.demo.both import run_both
    from zbsolve.demo.model import build
    from zbsolve.executor.gradients import plain_gradients

    arguments = {**size.model, "seed": seed, "microbatches": MICROBATCHES}
    # what is emitted for torch has fewer splits, so predict and run that on both
    orders = [simulate(problem, merged(timetable)) for _, timetable in named]
    runs = run_both(orders, csvs, arguments, blocks=size.blocks, steps_a_block=size.steps_a_block)
    reference, _ = plain_gradients(*build(**arguments), MICROBATCHES)
    rows = []
    for (name, _), timetable, (ours, torchs) in zip(named, orders, runs, strict=True):
        figures = metrics(timetable)
        rows.append(
            DemoRow(
                schedule=name,
                predicted_ns=figures.period_ns,
                measured_ns=ours.step_ns,
                torch_measured_ns=torchs.step_ns,
                bubble=figures.bubble,
                peak_bytes=max(figures.peak_bytes),
                gradient_error=_error(f"{name} on zbsolve's runtime", ours.gradients, reference),
                torch_gradient_error=_error(f"{name} on torch's runtime", torchs.gradients, reference),
            )
        )
    return tuple(rows)


def _error(what: str, gradients: Named, reference: Named) -> float:
    from zbsolve.executor.gradients import largest_relative_error

    error = largest_relative_error(gradients, reference)
    if not error <= LARGEST_ERROR:
        raise RunError(
            f"{what}: a gradient differs from the plain model's by {error:.1e} (relative); at most "
            f"{LARGEST_ERROR:g} is rounding"
        )
    return error


def _show_rows(rows: Sequence[DemoRow], talk: _Talk) -> None:
    head = ("schedule", "predicted", "measured", "torch's", "bubble", "peak memory", "gradient error", "torch's")
    table = [
        (
            row.schedule,
            format_ns(row.predicted_ns),
            format_ns(row.measured_ns),
            format_ns(row.torch_measured_ns),
            f"{row.bubble:.4f}",
            format_bytes(row.peak_bytes),
            f"{row.gradient_error:.1e}",
            f"{row.torch_gradient_error:.1e}",
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in (head, *table)) for column in range(len(head))]
    for line in (head, *table):
        first, *others = (
            cell.ljust(w) if c == 0 else cell.rjust(w) for c, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        talk.line("   ".join((first, *others)))
    talk.line("a step's time: predicted, measured on zbsolve's runtime, on torch's; gradient errors of both, relative")
    talk.line("bubble = 1 - compute work / (ranks x period), predicted; peak memory predicted, of the fullest rank")


def _show_distortion(rows: Sequence[DemoRow], named: Sequence[tuple[str, Timetable]], cores: int, talk: _Talk) -> None:
    """With fewer cores than ranks the ranks wait for cores, which no schedule can help."""
    if cores >= RANKS:
        return
    talk.line(
        f"{RANKS} processes shared {cores} core{'s' * (cores > 1)}: a prediction gives each rank a core of its own, so "
        "measured steps are longer and say little about the bubble."
    )
    floors = [
        sum(timed.end_ns - timed.start_ns for row in timetable.rows for timed in row) / cores for _, timetable in named
    ]
    told = ", ".join(f"{row.schedule} {format_ns(floor)}" for row, floor in zip(rows, floors, strict=True))
    talk.line(f"The work divided by the cores, about what any order takes here at least: {told}.")


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
