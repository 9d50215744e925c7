"""A sweep as CSV: one row a point. Seconds are left out, so the same sweep gives the same bytes."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from zbsolve.analysis.sweep import SweepOutcome

__all__ = ["COLUMNS", "outcome_fields", "sweep_csv"]

COLUMNS = (
    "placement",
    "ranks",
    "stages",
    "microbatches",
    "memory",
    "limit_bytes",
    "objective",
    "status",
    "value_ns",
    "period_ns",
    "makespan_ns",
    "bubble",
    "peak_bytes",
    "lower_bound_ns",
    "bound",
    "gap",
    "method",
    "digest",
)


def outcome_fields(outcome: SweepOutcome) -> dict[str, object]:
    """The fields of a point: its question, and its answer where there is one (else None).

    Limit and peak are those of the fullest rank.
    """
    point, solution = outcome.point, outcome.solution
    problem = point.problem
    limits = problem.limit_bytes
    asked: dict[str, object] = {
        "placement": point.placement,
        "ranks": problem.placement.ranks,
        "stages": problem.placement.stages,
        "microbatches": problem.microbatches,
        "memory": point.memory,
        "limit_bytes": None if None in limits else max(limit or 0 for limit in limits),
        "objective": problem.objective,
        "status": outcome.status,
        "digest": problem.digest,
    }
    if solution is not None:
        asked |= {
            "value_ns": solution.value_ns,
            "period_ns": solution.metrics.period_ns,
            "makespan_ns": solution.metrics.makespan_ns,
            "bubble": solution.metrics.bubble,
            "peak_bytes": max(solution.metrics.peak_bytes),
            "lower_bound_ns": solution.lower_bound_ns,
            "bound": solution.bound,
            "gap": solution.gap,
            "method": solution.method,
        }
    return {column: asked.get(column) for column in COLUMNS}


def sweep_csv(outcomes: Sequence[SweepOutcome]) -> bytes:
    """A sweep as the bytes of a CSV file; what there is not is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for outcome in outcomes:
        writer.writerow(["" if value is None else value for value in outcome_fields(outcome).values()])
    return text.getvalue().encode("utf-8", "surrogatepass")
