"""A timetable with its figures and its proof."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from zbsolve.ops import Kind
from zbsolve.timetable import Order, Timetable
from zbsolve.units import format_bytes, format_ns

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Bound",
    "Metrics",
    "Solution",
    "Status",
    "offloaded",
    "offloaded_in_words",
    "paired",
    "paired_in_words",
    "recomputed",
    "recomputed_in_words",
    "recomputing_ns",
    "relative_gap",
]

Status = Literal["optimal", "feasible"]


@dataclass(frozen=True, slots=True)
class Bound:
    """A proven lower bound of the objective, in ns, and the name of what proves it."""

    value_ns: int
    name: str


def relative_gap(value_ns: int, bound_ns: int) -> float:
    """Value / bound - 1; infinite above a bound of 0."""
    if value_ns == bound_ns:
        return 0.0
    return value_ns / bound_ns - 1 if bound_ns else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Figures of an order.

    Parameters
    ----------
    period_ns
        The least period at which the order repeats with no barrier, rounded up to a whole ns.
    makespan_ns
        First start to last end, as soon as possible.
    bubble
        1 - compute work / (ranks x objective value).
    bubble_formula
        That formula in words, with the objective it was computed for.
    compute_ns
        Compute work over all ranks.
    peak_bytes
        Peak memory of each rank, static bytes included.
    """

    period_ns: int
    makespan_ns: int
    bubble: float
    bubble_formula: str
    compute_ns: int
    peak_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The best timetable found, with its proof.

    Parameters
    ----------
    timetable
        Carries its problem.
    metrics
        Of its order.
    status
        ``"optimal"`` if value and bound meet, else ``"feasible"``.
    value_ns
        The objective's value.
    lower_bound_ns, bound
        The proven bound and the name of what proves it.
    gap
        value / bound - 1.
    seconds
        Wall time of the solve.
    seed
        Of the random choices.
    method
        Which way found it.
    digest
        Of the problem.
    lost
        Pieces of the search that were lost, and why: a worker ended, or something raised in it.
    """

    timetable: Timetable
    metrics: Metrics
    status: Status
    value_ns: int
    lower_bound_ns: int
    bound: str
    gap: float
    seconds: float
    seed: int
    method: str
    digest: str
    lost: tuple[str, ...] = ()

    def to_dataframe(self) -> pd.DataFrame:
        """The timetable as a pandas data frame, see `Timetable.to_dataframe`."""
        return self.timetable.to_dataframe()

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from zbsolve.draw.notebook import solution_html

        return solution_html(self)

    def __str__(self) -> str:
        problem = self.timetable.problem
        lines = [
            f"status     {self.status}",
            f"{problem.objective:<10} {format_ns(self.value_ns)} ({self.value_ns} ns)",
            f"bound      {format_ns(self.lower_bound_ns)} ({self.lower_bound_ns} ns, {self.bound}), gap {self.gap:.2%}",
            f"bubble     {self.metrics.bubble:.4f} = {self.metrics.bubble_formula}",
            f"makespan   {format_ns(self.metrics.makespan_ns)}",
            "peak       "
            + ", ".join(
                f"{format_bytes(peak)}" + ("" if limit is None else f" of {format_bytes(limit)}")
                for peak, limit in zip(self.metrics.peak_bytes, problem.limit_bytes, strict=True)
            ),
            *([f"paired     {pairs}"] if (pairs := paired_in_words(self.timetable)) else []),
            *([f"recompute  {again}"] if (again := recomputed_in_words(self.timetable)) else []),
            *([f"offload    {away}"] if (away := offloaded_in_words(self.timetable)) else []),
            f"found by   {self.method} in {self.seconds:.1f} s, seed {self.seed}",
            *(f"lost       {lost}" for lost in self.lost),
        ]
        return "\n".join(lines)


def paired(order: Order) -> int:
    """How many forwards of an order run together with a backward."""
    return sum(op.beside is not None for row in order.rows for op in row)


def paired_in_words(timetable: Timetable) -> str:
    """The same for people, such as "23 of 32 forwards with a backward"; nothing where none does."""
    count, of = paired(timetable.order), timetable.problem.microbatches * timetable.problem.placement.stages
    return f"{count} of {of} forwards with a backward" if count else ""


def recomputed(order: Order) -> dict[int, int]:
    """By stage for how many microbatches an order computes the forward again; without those where it never does."""
    return _counted(order, Kind.RECOMPUTE)


def recomputing_ns(timetable: Timetable) -> int:
    """What all ranks together spend on computing forwards again, in ns; it is work, and so no part of the bubble."""
    return sum(t.end_ns - t.start_ns for row in timetable.rows for t in row if t.op.kind is Kind.RECOMPUTE)


def offloaded(order: Order) -> dict[int, int]:
    """By stage for how many microbatches an order moves the activations away; without those where it never does."""
    return _counted(order, Kind.OFFLOAD)


def _counted(order: Order, kind: Kind) -> dict[int, int]:
    count = Counter(op.stage for row in order.rows for op in row if op.kind is kind)
    return dict(sorted(count.items()))


def recomputed_in_words(timetable: Timetable) -> str:
    """The same for people, such as "stage 0 (all of 8), stage 1 (3 of 8)"."""
    return _in_words(recomputed(timetable.order), timetable.problem.microbatches)


def offloaded_in_words(timetable: Timetable) -> str:
    """Such as "stage 0 (all of 8)"."""
    return _in_words(offloaded(timetable.order), timetable.problem.microbatches)


def _in_words(count: dict[int, int], of: int) -> str:
    return ", ".join(f"stage {stage} ({'all' if times == of else times} of {of})" for stage, times in count.items())
