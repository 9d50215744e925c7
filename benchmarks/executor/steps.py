"""Measured over predicted on sleeping stages, and what a barrier at the optimizer costs."""

from __future__ import annotations

import itertools
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.executor.figures import spread
from benchmarks.executor.forked import fork_ranks
from benchmarks.executor.plans import BARRIER, PLANS, RANKS
from benchmarks.executor.rank import run_rank
from zbsolve.interop.torch import write_torch_csv
from zbsolve.metrics import metrics

__all__ = ["run"]

RUNTIMES = {"zbsolve": "threads", "zbsolve, gloo": "gloo", "torch": "gloo"}
"""What is run, and how its messages travel: by default our ranks are threads, which torch's cannot be."""


def run(*, rounds: int, barrier_rounds: int, barrier_steps: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows of `steps` and the figures of `barrier`.

    Parameters
    ----------
    rounds
        Turns of every schedule on either runtime.
    barrier_rounds, barrier_steps
        Turns with and without a barrier, and the steps in each.
    """
    with tempfile.TemporaryDirectory(prefix="zbsolve-bench-") as name:
        directory = Path(name)
        for plan in PLANS:
            write_torch_csv(plan.timetable, directory / f"{plan.name}.csv")
        work = partial(
            run_rank, directory=directory, rounds=rounds, barrier_rounds=barrier_rounds, barrier_steps=barrier_steps
        )
        ranks = fork_ranks(work, RANKS, timeout_s=600)
    return _step_rows(ranks), _barrier_row(ranks)


def _step_rows(ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for plan in PLANS:
        predicted = metrics(plan.timetable).makespan_ns / 1e6
        for runtime, transport in RUNTIMES.items():
            laps = list(zip(*(rank["steps"][f"{plan.name} {runtime}"] for rank in ranks), strict=True))
            taken = [(max(end for _, end, _ in lap) - lap[0][0]) / 1e6 for lap in laps]
            processor = statistics.median(sum(spent for _, _, spent in lap) / 1e3 for lap in laps)
            rows.append(
                {
                    "schedule": plan.name,
                    "runtime": runtime,
                    "transport": transport,
                    "predicted_ms": round(predicted, 1),
                    "measured_ms": round(statistics.median(taken), 1),
                    "ratio": round(statistics.median(taken) / predicted, 4),
                    "spread": spread(taken),
                    "cpu_us_per_operation": round(processor / sum(map(len, plan.timetable.rows)), 1),
                }
            )
    return rows


def _barrier_row(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    figures = metrics(BARRIER.timetable)
    found: dict[str, Any] = {
        "schedule": BARRIER.name,
        "predicted_with_ms": figures.makespan_ns / 1e6,
        "predicted_without_ms": figures.period_ns / 1e6,
    }
    for kind in ("with", "without"):
        rounds = zip(*(rank["barrier"][kind] for rank in ranks), strict=True)
        # a median over steps and ranks: one that was held up says nothing of the others
        periods = [
            statistics.median((after - before) / 1e6 for ends in lap for before, after in itertools.pairwise(ends))
            for lap in rounds
        ]
        found[f"{kind}_ms"] = round(statistics.median(periods), 1)
        found[f"{kind}_spread"] = spread(periods)
    return found
