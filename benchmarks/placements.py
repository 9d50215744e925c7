"""Solve problems with several chunks a rank, or two routes, and set the results beside the catalog.

A row is an instance at a memory limit. Its reference is the best schedule of the catalog that fits, also told for those
made for a V alone; where nothing fits, a timetable is what the row has to show. Pipelines are those of
`benchmarks.solver` with every rank's stage cut into equal chunks, so the work of a rank is the same on every placement.

Run as ``python -m benchmarks.placements [--time-limit 30] [--work-limit N] [--placement v] [--only TEXT] [--json]``.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.solver import SUITES, processor_seconds, read_suite
from zbsolve.catalog import baseline, schedules
from zbsolve.check import violations
from zbsolve.errors import ScheduleConditionError
from zbsolve.metrics import metrics
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Link, Profile, StageCost
from zbsolve.simulate import simulate
from zbsolve.solver import solve

__all__ = ["INSTANCES", "Instance", "Row", "fitting", "problem_of", "row_of", "rows"]

V_SCHEDULES = ("zb-v", "v-half", "v-min")
"""Made for a V and a certain memory: no row may be worse than any of them."""

MEMORY = ("0.5x", "0.625x", "0.75x", "1x")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A pipeline on a placement.

    Parameters
    ----------
    costs
        ``"unit"``, F = B = W of a chunk, or ``"1.5B"``, those of the zero-bubble paper.
    shape, ranks, chunks
        The placement.
    microbatches
        m.
    """

    costs: str
    shape: str
    ranks: int
    chunks: int
    microbatches: int

    @property
    def name(self) -> str:
        """As it is told in rows."""
        return f"{self.costs}-{self.shape}{self.chunks}-p{self.ranks}-m{self.microbatches}"

    @property
    def placement(self) -> Placement:
        """The placement itself."""
        if self.shape == "v":
            return Placement.v(self.ranks)
        if self.shape == "bidirectional":
            return Placement.bidirectional(self.ranks)
        return getattr(Placement, self.shape)(self.ranks, self.chunks)


INSTANCES = (
    *(
        Instance(costs=costs, shape="v", ranks=ranks, chunks=2, microbatches=turns * ranks)
        for costs in ("unit", "1.5B")
        for ranks in (4, 8)
        for turns in (1, 2, 3)
    ),
    *(
        Instance(costs=costs, shape=shape, ranks=4, chunks=chunks, microbatches=8)
        for costs in ("unit", "1.5B")
        for shape, chunks in (("looped", 2), ("wave", 4), ("bidirectional", 1))
    ),
)
"""What is solved, at each of four memory limits."""


@dataclass(frozen=True, slots=True)
class Row:
    """One instance at one limit; `best` is the catalog's, None where nothing of it fits."""

    instance: str
    placement: str
    memory: str
    period_ns: int
    lower_bound_ns: int
    gap: float
    best: str | None
    best_ns: int | None
    ratio: float | None
    others_ns: dict[str, int]
    method: str
    bound: str
    cpu_seconds: float


def problem_of(instance: Instance, memory: str | int | None) -> Problem:
    """The problem of an instance at a memory limit."""
    name = ("unit" if instance.costs == "unit" else "paper-1.5B") + f"-p{instance.ranks}-m{3 * instance.ranks}"
    found: dict[str, Any] = next(each for each in read_suite(SUITES[0]) if each["name"] == name)
    placement = instance.placement
    chunks = placement.stages // placement.ranks
    scale = 1 if instance.costs == "unit" else chunks  # the two bytes of a unit chunk stay whole
    stages = tuple(
        StageCost(**{key: value // (chunks if key.endswith("_ns") else scale) for key, value in stage.items()})
        for stage in (found["profile"]["stages"][rank] for rank in placement.routes[0])
    )
    return Problem(
        profile=Profile(stages=stages, link=Link(**found["profile"]["link"])),
        placement=placement,
        microbatches=instance.microbatches,
        memory_limit=memory,
    )


def fitting(problem: Problem) -> dict[str, int]:
    """The period of each schedule of the catalog that fits the memory."""
    found = {}
    for schedule in schedules():
        try:
            timetable = simulate(problem, baseline(schedule.name, problem))
        except ScheduleConditionError:
            continue
        peaks = metrics(timetable).peak_bytes
        if all(most is None or peak <= most for peak, most in zip(peaks, problem.limit_bytes, strict=True)):
            found[schedule.name] = timetable.period_ns
    return found


def row_of(instance: Instance, memory: str, *, time_limit_s: float, work_limit: int | None, seed: int) -> Row:
    """One solve, judged and compared."""
    problem = problem_of(instance, memory)
    others = fitting(problem)
    best = min(others, key=others.__getitem__, default=None)
    busy = processor_seconds()
    solution = solve(problem, time_limit_s=time_limit_s, work_limit=work_limit, seed=seed)
    if wrong := violations(problem, solution.timetable):
        raise SystemExit(f"{instance.name} at {memory}: {wrong[0].message}")
    return Row(
        instance=instance.name,
        placement=problem.placement.name,
        memory=memory,
        period_ns=solution.value_ns,
        lower_bound_ns=solution.lower_bound_ns,
        gap=solution.gap,
        best=best,
        best_ns=others[best] if best else None,
        ratio=solution.value_ns / others[best] if best else None,
        others_ns={name: others[name] for name in V_SCHEDULES if name in others},
        method=solution.method,
        bound=solution.bound,
        cpu_seconds=processor_seconds() - busy,
    )


def rows(
    instances: Sequence[Instance], *, only: str, time_limit_s: float, work_limit: int | None, seed: int
) -> Iterator[Row]:
    """One after the other; `only` is a part of an instance's name and its limit, such as ``"unit-v2-p4-m8 0.5x"``."""
    for instance in instances:
        for memory in MEMORY:
            if only in f"{instance.name} {memory}":
                yield row_of(instance, memory, time_limit_s=time_limit_s, work_limit=work_limit, seed=seed)


def show(row: Row) -> str:
    """A row as a line of text."""
    best = "-" if row.best is None else f"{row.best} {row.best_ns}"
    ratio = "-" if row.ratio is None else f"{row.ratio:.4f}"
    return (
        f"{row.instance:<26} {row.memory:>6} {row.period_ns:>12} {row.lower_bound_ns:>12} {row.gap:7.2%} {best:<28} "
        f"{ratio:>6} {row.cpu_seconds:6.1f} s {row.method} / {row.bound}"
    )


def summary(done: Sequence[Row]) -> dict[str, float | int]:
    """Figures over all rows."""
    ratios = [row.ratio for row in done if row.ratio is not None]
    return {
        "rows": len(done),
        "optimal": sum(row.gap == 0 for row in done),
        "within_1pct": sum(row.gap <= 0.01 for row in done),
        "geometric_mean_gap": math.exp(statistics.fmean(math.log1p(row.gap) for row in done)) - 1 if done else 0.0,
        "largest_gap": max((row.gap for row in done), default=0.0),
        "nothing_else_fits": sum(row.best is None for row in done),
        "worse_than_catalog": sum(ratio > 1 for ratio in ratios),
        "better_than_catalog": sum(ratio < 1 for ratio in ratios),
        "geometric_mean_ratio": math.exp(statistics.fmean(map(math.log, ratios))) if ratios else 1.0,
        "cpu_seconds": sum(row.cpu_seconds for row in done),
    }


def main() -> None:
    """Read the command line, solve, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.placements", description=__doc__)
    parser.add_argument("--only", default="", help="only rows whose name and limit contain this")
    parser.add_argument("--placement", default="", help="only this: v, looped, wave, bidirectional")
    parser.add_argument("--time-limit", type=float, default=30.0, help="seconds for each (default: 30)")
    parser.add_argument("--work-limit", type=int, help="search steps for each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    given = parser.parse_args()
    began, done = time.perf_counter(), []
    asked = [each for each in INSTANCES if given.placement in ("", each.shape)]
    for row in rows(
        asked, only=given.only, time_limit_s=given.time_limit, work_limit=given.work_limit, seed=given.seed
    ):
        done.append(row)
        if not given.json:
            print(show(row), flush=True)
    figures = {**summary(done), "seconds": time.perf_counter() - began}
    if given.json:
        print(json.dumps({"rows": [asdict(row) for row in done], "summary": figures}, indent=1))
    else:
        print(", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in figures.items()))


if __name__ == "__main__":
    main()
