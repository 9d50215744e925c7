"""What is told of a timetable: as fields for JSON, as tables for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zbsolve.cli._text import inert
from zbsolve.units import counted, format_bytes, format_ns

if TYPE_CHECKING:
    from rich.table import Table

    from zbsolve.problem import Problem
    from zbsolve.solution import Metrics, Solution

__all__ = ["figures", "fits", "grid", "metrics_fields", "problem_fields", "solution_fields", "table"]

MOST_RANKS_LISTED = 16


def fits(problem: Problem, metrics: Metrics) -> bool:
    """Whether the peak of every rank is within its limit."""
    limits = problem.limit_bytes
    return all(limit is None or peak <= limit for peak, limit in zip(metrics.peak_bytes, limits, strict=True))


def problem_fields(problem: Problem) -> dict[str, object]:
    """What was asked."""
    return {
        "objective": problem.objective,
        "limit_bytes": list(problem.limit_bytes),
        "digest": problem.digest,
        "ranks": problem.placement.ranks,
        "stages": problem.placement.stages,
        "microbatches": problem.microbatches,
        **({"slices": problem.slices} if problem.slices > 1 else {}),
        "placement": problem.placement.name,
    }


def metrics_fields(problem: Problem, metrics: Metrics) -> dict[str, object]:
    """The figures of an order."""
    return {
        "period_ns": metrics.period_ns,
        "makespan_ns": metrics.makespan_ns,
        "bubble": metrics.bubble,
        "bubble_formula": metrics.bubble_formula,
        "peak_bytes": list(metrics.peak_bytes),
        "fits": fits(problem, metrics),
    }


def solution_fields(solution: Solution) -> dict[str, object]:
    """A timetable with its proof."""
    from zbsolve.solution import offloaded, paired, recomputed

    problem = solution.timetable.problem
    return {
        "status": solution.status,
        "value_ns": solution.value_ns,
        "lower_bound_ns": solution.lower_bound_ns,
        "bound": solution.bound,
        "gap": solution.gap,
        **metrics_fields(problem, solution.metrics),
        "method": solution.method,
        "seconds": solution.seconds,
        "seed": solution.seed,
        **({"paired": paired(solution.timetable.order)} if "paired" in problem.allow else {}),
        **({"recomputed": recomputed(solution.timetable.order)} if "recompute" in problem.allow else {}),
        **({"offloaded": offloaded(solution.timetable.order)} if "offload" in problem.allow else {}),
        **problem_fields(problem),
    }


def table(*columns: str, title: str | None = None) -> Table:
    """An empty table; the first column is text, the others are figures."""
    from rich import box
    from rich.table import Table

    made = Table(
        box=box.SIMPLE_HEAD, title=None if title is None else inert(title), title_justify="left", pad_edge=False
    )
    for number, column in enumerate(columns):
        made.add_column(column, justify="right" if number else "left", overflow="fold")
    return made


def grid(rows: list[tuple[str, str]]) -> Table:
    """Names and values in two columns."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2))
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, inert(value))
    return made


def figures(problem: Problem, metrics: Metrics, proof: Solution | None = None, published: str | None = None) -> Table:
    """Everything there is to tell of one timetable; a published schedule was not searched for, and says its name."""
    from zbsolve.solution import offloaded_in_words, paired_in_words, recomputed_in_words

    rows = []
    if published is not None:
        rows.append(("schedule", published))
    name = problem.profile.name
    stages, ranks = counted(problem.placement.stages, "stage"), counted(problem.placement.ranks, "rank")
    asked = f"{problem.microbatches_in_words}, {stages} on {ranks}"
    rows.append(("problem", f"{name + ': ' if name else ''}{asked} ({problem.placement.name})"))
    if proof is not None and published is None:
        rows.append(("status", proof.status))
    rows.append(("period", _exactly(metrics.period_ns)))
    rows.append(("makespan", _exactly(metrics.makespan_ns)))
    if proof is not None:
        rows.append(("bound", f"{_exactly(proof.lower_bound_ns)} of the {problem.objective}, by {proof.bound}"))
        rows.append(("gap", f"{proof.gap:.2%}"))
    rows.append(("bubble", f"{metrics.bubble:.4f} = {metrics.bubble_formula}"))
    rows += _memory_rows(problem, metrics)
    if proof is not None and (pairs := paired_in_words(proof.timetable)):
        rows.append(("paired", pairs))
    if proof is not None and (again := recomputed_in_words(proof.timetable)):
        rows.append(("recompute", again))
    if proof is not None and (away := offloaded_in_words(proof.timetable)):
        rows.append(("offload", away))
    if proof is not None and published is None:
        rows.append(("found by", f"{proof.method} in {proof.seconds:.1f} s, seed {proof.seed}"))
    return grid(rows)


def _exactly(ns: int) -> str:
    return f"{format_ns(ns)} ({ns} ns)"


def _memory_rows(problem: Problem, metrics: Metrics) -> list[tuple[str, str]]:
    """The peak of each rank, or of the fullest one where there are many."""
    rows = []
    pairs = list(zip(metrics.peak_bytes, problem.limit_bytes, strict=True))
    if len(pairs) <= MOST_RANKS_LISTED:
        listed = list(enumerate(pairs))
    else:
        fullest = max(range(len(pairs)), key=lambda rank: pairs[rank][0] - (pairs[rank][1] or 0))
        listed = [(fullest, pairs[fullest])]
    for rank, (peak, limit) in listed:
        of = "" if limit is None else f" of {format_bytes(limit)}"
        over = " OVER THE LIMIT" if limit is not None and peak > limit else ""
        rows.append((f"peak, rank {rank}", f"{format_bytes(peak)}{of}{over}"))
    return rows
