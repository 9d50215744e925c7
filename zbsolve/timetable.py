"""The answer's shape: orders, timetables, and what can be wrong with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from zbsolve.ops import Op
from zbsolve.problem import Problem
from zbsolve.transfers import link_spans

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Order", "TimedOp", "Timetable", "Violation"]


@dataclass(frozen=True, slots=True)
class Order:
    """One row a rank: the sequence in which it issues its operations."""

    rows: tuple[tuple[Op, ...], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(tuple(row) for row in self.rows))

    def apart(self) -> Order:
        """The order with every pair as its two operations, the forward ahead of the backward."""
        return Order(tuple(tuple(half for op in row for half in op.halves) for row in self.rows))

    def __repr__(self) -> str:
        shown = [" ".join(map(_short, row[:12])) for row in self.rows[:4]]
        return f"Order({sum(map(len, self.rows))} operations on {len(self.rows)} ranks: {'; '.join(shown)} ...)"


def _short(op: Op) -> str:
    return "+".join(f"{half.kind.letter}{half.microbatch}@{half.stage}" for half in op.halves)


@dataclass(frozen=True, slots=True)
class TimedOp:
    """An operation with its planned start and end, in ns."""

    op: Op
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """An order with planned times; they attain the period that is claimed.

    Parameters
    ----------
    problem
        What was asked.
    rows
        One row a rank, each operation with its times; the first start is 0.
    """

    problem: Problem
    rows: tuple[tuple[TimedOp, ...], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(tuple(row) for row in self.rows))

    @property
    def order(self) -> Order:
        """The rows without their times."""
        return Order(tuple(tuple(timed.op for timed in row) for row in self.rows))

    def without_ends(self) -> Timetable:
        """The same without reductions of gradients and optimizers, for what runs them by itself."""
        if not self.problem.has_ends:
            return self
        rows = tuple(tuple(timed for timed in row if timed.op.microbatch is not None) for row in self.rows)
        return Timetable(problem=replace(self.problem, ends=False), rows=rows)

    def rank(self, rank: int) -> tuple[TimedOp, ...]:
        """The row of one rank."""
        return self.rows[rank]

    @property
    def period_ns(self) -> int:
        """The claimed period: the longest a rank is busy from its first start to its last end.

        Where transfers queue, also the longest that a link needs before it can repeat (`zbsolve.transfers`).
        """
        period = max((last - first for first, last in map(_span, self.rows)), default=0)
        return max(period, *link_spans(self.problem, self.rows).values(), 0)

    @property
    def makespan_ns(self) -> int:
        """First start to last end over all ranks, at the planned times."""
        spans = [_span(row) for row in self.rows if row]
        return max((last for _, last in spans), default=0) - min((first for first, _ in spans), default=0)

    def to_dataframe(self) -> pd.DataFrame:
        """A pandas data frame with one row an operation, rank by rank in the order of issue.

        Its columns are ``rank, position, kind, stage, chunk, microbatch, route, start_ns, end_ns,
        duration_ns, held_bytes``, as in ``zbsolve emit --to csv``; operations of the whole iteration
        have neither microbatch nor route (missing).

        Raises
        ------
        MissingExtra
            If pandas is not installed.
        OrderError
            If the rows are no order of the problem.
        """
        from zbsolve.interop.tidy import data_frame

        return data_frame(self)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from zbsolve.draw.notebook import timetable_html

        return timetable_html(self)

    def __repr__(self) -> str:
        return (
            f"Timetable({sum(map(len, self.rows))} operations on {len(self.rows)} ranks, "
            f"period {self.period_ns} ns, makespan {self.makespan_ns} ns)"
        )


def _span(row: tuple[TimedOp, ...]) -> tuple[int, int]:
    """First start and last end of a row, on all its lanes."""
    if all(timed.op.kind.resource == "compute" for timed in row):  # one lane, in row order
        return (row[0].start_ns, row[-1].end_ns) if row else (0, 0)
    return min(timed.start_ns for timed in row), max(timed.end_ns for timed in row)


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing the judge found wrong.

    Parameters
    ----------
    code
        A short stable name of the rule.
    message
        What, where, and by how much.
    ops
        The operations involved.
    """

    code: str
    message: str
    ops: tuple[Op, ...] = ()
