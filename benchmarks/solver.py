"""Solve every instance of a file at every memory limit it lists and set the results beside the references.

Run as ``python -m benchmarks.solver [--time-limit 60] [--gap 0] [--suite FILE] [--only TEXT] [--seeds 1]
[--json]``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from zbsolve.check import violations
from zbsolve.errors import Infeasible
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Link, Profile, StageCost
from zbsolve.solver import Progress, solve

SUITES = tuple(Path(__file__).parent / "instances" / name for name in ("schedule_instances.json", "more_limits.json"))
"""The shared instances, and more limits of two of them."""

ONE_CHUNK = frozenset({"ZB-1p", "ZB-2p", "1F1B"})
"""The first words of the names of references with one chunk a rank."""


@dataclass(frozen=True, slots=True)
class Row:
    """One instance at one limit."""

    instance: str
    memory: str
    period_ns: int
    lower_bound_ns: int
    gap: float
    best_reference_ns: int | None
    ratio_to_reference: float | None
    seconds: float
    seconds_to_1pct: float | None
    cpu_seconds: float
    peak_mib: int
    status: str
    method: str
    bound: str
    periods_ns: tuple[int, ...]
    """Of all seeds, least first; the row is that of the median."""


def read_suite(path: Path) -> list[dict[str, Any]]:
    """The instances of a file."""
    content: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["instances"]
    return content


def problem_of(instance: dict[str, Any], memory: str | int | None) -> Problem:
    """The problem of an instance at a memory limit."""
    profile = instance["profile"]
    return Problem(
        profile=Profile(
            stages=tuple(StageCost(**stage) for stage in profile["stages"]),
            link=Link(**profile.get("link", {})),
            name=profile.get("name", ""),
        ),
        placement=getattr(Placement, instance["placement"])(instance["ranks"]),
        microbatches=instance["microbatches"],
        memory_limit=memory,
    )


def best_reference(instance: dict[str, Any], memory: str | int) -> int | None:
    """The least period of the one-chunk references that fit a limit, ``"Kx"`` or bytes on each rank."""
    if isinstance(memory, str):
        limit = float(memory.rstrip("x"))
    else:
        limit = memory / (instance["ranks"] * max(s["activation_bytes"] for s in instance["profile"]["stages"]))
    periods = [
        row["period_ns"]
        for row in instance["reference"]
        if row["schedule"].split()[0] in ONE_CHUNK and float(row["peak"].rstrip("x")) <= limit
    ]
    return min(periods, default=None)


def rows(
    suites: Sequence[Path], *, only: str, time_limit_s: float, gap: float, seed: int, seeds: int = 1
) -> Iterator[Row]:
    """Solve one after the other, each with several seeds unless the first one closes the gap."""
    for instance in (each for suite in suites for each in read_suite(suite)):
        for memory in instance["memory"]:
            if only not in f"{instance['name']} {memory}":
                continue
            done: list[Row] = []
            for number in range(seed, seed + seeds):
                row = _row(instance, memory, time_limit_s, gap, number)
                if row is not None:
                    done.append(row)
                if row is None or row.gap <= gap:
                    break
            if done:
                done.sort(key=lambda row: row.period_ns)
                yield replace(done[(len(done) - 1) // 2], periods_ns=tuple(row.period_ns for row in done))


def _row(instance: dict[str, Any], memory: str | int, time_limit_s: float, gap: float, seed: int) -> Row | None:
    """One solve, judged; None if nothing fits."""
    problem = problem_of(instance, memory)
    reference = best_reference(instance, memory)
    began, busy, near = time.perf_counter(), _used()[0], []

    def listen(progress: Progress) -> None:
        if progress.gap <= 0.01:
            near.append(progress.seconds)

    try:
        solution = solve(problem, time_limit_s=time_limit_s, gap=gap, seed=seed, on_progress=listen)
    except Infeasible as error:
        print(f"{instance['name']} at {memory}: {error}", file=sys.stderr)
        return None
    wrong = violations(problem, solution.timetable)
    if wrong:
        raise SystemExit(f"{instance['name']} at {memory}: {wrong[0].message}")
    return Row(
        instance=instance["name"],
        memory=str(memory),
        period_ns=solution.value_ns,
        lower_bound_ns=solution.lower_bound_ns,
        gap=solution.gap,
        best_reference_ns=reference,
        ratio_to_reference=None if reference is None else solution.value_ns / reference,
        seconds=time.perf_counter() - began,
        seconds_to_1pct=near[0] if near else None,
        cpu_seconds=_used()[0] - busy,
        peak_mib=_used()[1],
        status=solution.status,
        method=solution.method,
        bound=solution.bound,
        periods_ns=(solution.value_ns,),
    )


def processor_seconds() -> float:
    """Processor time of this process and its workers so far."""
    return _used()[0]


def _used() -> tuple[float, int]:
    """Processor time of this process and its workers so far, and MiB that they have held at most, all at their most."""
    own, workers = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = own.ru_utime + own.ru_stime + workers.ru_utime + workers.ru_stime
    return busy, (own.ru_maxrss + len(os.sched_getaffinity(0)) * workers.ru_maxrss) // 1024


def show(row: Row) -> str:
    """A row as a line of text."""
    ratio = "      -" if row.ratio_to_reference is None else f"{row.ratio_to_reference:7.4f}"
    near = "     -" if row.seconds_to_1pct is None else f"{row.seconds_to_1pct:6.1f}"
    spread = "" if len(row.periods_ns) == 1 else f" / {row.periods_ns[0]} to {row.periods_ns[-1]}"
    return (
        f"{row.instance:<22} {row.memory:>6} {row.period_ns:>12} {row.lower_bound_ns:>12} {row.gap:7.2%} {ratio} "
        f"{row.seconds:6.1f} s {near} {row.cpu_seconds:6.1f} s {row.peak_mib:5} MiB {row.method} / {row.bound}{spread}"
    )


def summary(done: list[Row]) -> dict[str, float | int | str]:
    """Figures over all rows."""
    ratios = [row.ratio_to_reference for row in done if row.ratio_to_reference is not None]
    return {
        "rows": len(done),
        "optimal": sum(row.status == "optimal" for row in done),
        "within_1pct": sum(row.gap <= 0.01 for row in done),
        "geometric_mean_gap": math.exp(statistics.fmean(math.log1p(row.gap) for row in done)) - 1 if done else 0.0,
        "worst": max(((row.gap, f"{row.instance} {row.memory}") for row in done), default=(0.0, "-"))[1],
        "largest_gap": max((row.gap for row in done), default=0.0),
        "with_reference": len(ratios),
        "worse_than_reference": sum(ratio > 1 for ratio in ratios),
        "better_than_reference": sum(ratio < 1 for ratio in ratios),
        "geometric_mean_ratio": math.exp(statistics.fmean(map(math.log, ratios))) if ratios else 1.0,
        "seconds": sum(row.seconds for row in done),
    }


def main() -> None:
    """Read the command line, solve, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.solver", description=__doc__)
    parser.add_argument("--suite", type=Path, help="a file of instances (default: those in benchmarks/instances)")
    parser.add_argument(
        "--only", default="", help="only rows whose name and limit, such as 'unit-p4-m12 0.5x', contain this"
    )
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each (default: 60)")
    parser.add_argument("--gap", type=float, default=0.0, help="stop each at this gap (default: 0)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--seeds", type=int, default=1, help="seeds for each row that stays open; medians count")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    given = parser.parse_args()
    suites = SUITES if given.suite is None else (given.suite,)
    done = []
    for row in rows(
        suites,
        only=given.only,
        time_limit_s=given.time_limit,
        gap=given.gap,
        seed=given.seed,
        seeds=max(1, given.seeds),
    ):
        done.append(row)
        if not given.json:
            print(show(row), flush=True)
    if given.json:
        print(json.dumps({"rows": [asdict(row) for row in done], "summary": summary(done)}, indent=1))
    else:
        print(", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in summary(done).items()))


if __name__ == "__main__":
    main()
