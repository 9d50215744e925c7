"""Measured runs: the rows of an order with the times that were measured, step by step."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from zbsolve.errors import InvalidInput
from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.profile import Overlap, Profile, ProfileSource, StageCost
from zbsolve.timetable import Order, TimedOp, Timetable

__all__ = ["Planned", "Trace", "Transfer"]

Rows = tuple[tuple[TimedOp, ...], ...]


@dataclass(frozen=True, slots=True)
class Planned:
    """An operation as it was planned and as it was measured, in ns from the first start of its step.

    Parameters
    ----------
    rank
        In whose row it stands.
    planned, measured
        Its times.
    """

    rank: int
    planned: TimedOp
    measured: TimedOp

    @property
    def longer_ns(self) -> int:
        """How much longer than planned it took."""
        return (self.measured.end_ns - self.measured.start_ns) - (self.planned.end_ns - self.planned.start_ns)


@dataclass(frozen=True, slots=True)
class Transfer:
    """A message between two ranks, as it was measured; times in ns, by the clock of the trace.

    Parameters
    ----------
    tail, head
        The operation that gave it, and the one that needed it.
    sender, receiver
        Their ranks.
    sent_ns
        When the sender started sending.
    waited_ns, taken_ns
        From when the receiver waited for it, and when it had it; had it been there already, these
        two are next to each other.
    """

    tail: Op
    head: Op
    sender: int
    receiver: int
    sent_ns: int
    waited_ns: int
    taken_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Steps of one order, measured.

    Parameters
    ----------
    problem
        What was asked.
    steps
        For each step one row a rank, as a timetable has them; one clock for all, which is 0 at the
        first start of the first step.
    transfers
        For each step the messages between ranks, if they were noted.
    clock_error_ns
        How far the clocks of two ranks can be apart.
    peak_bytes
        The most memory that each rank's device has held, where that could be measured.

    Raises
    ------
    InvalidInput
        If there is no step, or the steps have different operations.
    """

    problem: Problem
    steps: tuple[Rows, ...]
    transfers: tuple[tuple[Transfer, ...], ...] = ()
    clock_error_ns: int = 0
    peak_bytes: tuple[int | None, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", tuple(tuple(tuple(row) for row in rows) for rows in self.steps))
        if not self.steps:
            raise InvalidInput("a trace needs at least one step")
        first = self._order(self.steps[0])
        for number, rows in enumerate(self.steps[1:], start=1):
            if self._order(rows) != first:
                raise InvalidInput(f"step {number} of the trace has other operations than step 0")

    @staticmethod
    def _order(rows: Rows) -> tuple[tuple[Op, ...], ...]:
        return tuple(tuple(timed.op for timed in row) for row in rows)

    @property
    def order(self) -> Order:
        """The rows without their times."""
        return Order(self._order(self.steps[0]))

    @property
    def step_ns(self) -> tuple[int, ...]:
        """For each step, first start to last end over all ranks."""
        return tuple(
            max((row[-1].end_ns for row in rows if row), default=0)
            - min((row[0].start_ns for row in rows if row), default=0)
            for rows in self.steps
        )

    @property
    def period_ns(self) -> int:
        """The time of a step when steps follow each other, on the slowest rank: between the ends of the first
        and the last step, by the steps between; the first step, which starts cold, is left out where there are
        more than two. Of a single step, the longest that a rank is busy from its first start to its last end.
        """
        busy = [rank for rank, row in enumerate(self.steps[0]) if row]
        first, last = self.steps[1 if len(self.steps) > 2 else 0], self.steps[-1]
        laps = len(self.steps) - (2 if len(self.steps) > 2 else 1)
        if not laps:
            return max((first[r][-1].end_ns - first[r][0].start_ns for r in busy), default=0)
        return max((last[r][-1].end_ns - first[r][-1].end_ns for r in busy), default=0) // laps

    def timetable(self, step: int = -1) -> Timetable:
        """One step's measured times as a timetable of the same problem, for drawing; its first start is 0."""
        rows = self.steps[step]
        first = min((row[0].start_ns for row in rows if row), default=0)
        shifted = (
            tuple(TimedOp(timed.op, timed.start_ns - first, timed.end_ns - first) for timed in row) for row in rows
        )
        return Timetable(problem=self.problem, rows=tuple(shifted))

    def beside(self, timetable: Timetable, step: int = -1) -> tuple[Planned, ...]:
        """Every operation as planned and as measured in a step, row by row.

        Raises
        ------
        InvalidInput
            If the timetable has another order.
        """
        # what ends an iteration is no part of a measured order
        planned_rows = tuple(tuple(t for t in row if t.op.microbatch is not None) for row in timetable.rows)
        if self._order(planned_rows) != self.order.rows:
            raise InvalidInput("the timetable has another order than what was measured")
        pairs = zip(planned_rows, self.timetable(step).rows, strict=True)
        return tuple(
            Planned(rank, planned, measured)
            for rank, (plan, found) in enumerate(pairs)
            for planned, measured in zip(plan, found, strict=True)
        )

    def durations(self) -> Iterator[tuple[Op, int]]:
        """Every operation of every step with the time it took, in ns."""
        for rows in self.steps:
            for row in rows:
                for timed in row:
                    yield timed.op, timed.end_ns - timed.start_ns

    def _as_run(self) -> Iterator[tuple[Op, int]]:
        """As `durations`, with a B and a W that were run together as one backward."""
        for rows in self.steps:
            for row in rows:
                ahead: TimedOp | None = None
                for timed in (*row, None):
                    if ahead is not None:
                        yield _run_as(ahead, timed)
                    ahead = None if ahead is not None and timed is not None and _together(ahead, timed) else timed

    def profile(self) -> Profile:
        """The problem's profile with the measured medians in place of its times.

        Times of slower ranks and larger microbatches are divided by their factors first. A W of no length,
        right behind its B, was run together with it, as one backward. Where a stage ran its backward in one
        piece only, B and W keep their proportion; where it ran it in two pieces only, one piece is their sum.
        What ran together is an overlap, and says nothing of its two operations. Bytes and links stay as they were.
        """
        found: dict[tuple[int, Kind], list[float]] = defaultdict(list)
        pairs: dict[tuple[int, int, Kind], list[float]] = defaultdict(list)
        factors: dict[Op, float] = {}
        for op, ns in self._as_run():
            if op not in factors:
                factors[op] = self.problem.factor(op)
            if op.beside is None:
                found[op.stage, op.kind].append(ns / factors[op])
            else:
                pairs[op.stage, op.beside.stage, op.beside.kind].append(ns / factors[op])
        medians = {key: round(statistics.median(values)) for key, values in found.items()}
        stages = tuple(_measured(stage, cost, medians) for stage, cost in enumerate(self.problem.profile.stages))
        old = self.problem.profile
        samples = min((len(values) for values in found.values()), default=0)
        source = ProfileSource(
            host=old.source.host,
            device=old.source.device,
            split="zbsolve",
            versions=old.source.versions,
            samples=samples,
            note="times measured while the pipeline ran; bytes and links as before",
        )
        together = _measured_overlaps(old.overlaps, {key: statistics.median(values) for key, values in pairs.items()})
        return Profile(
            stages=stages,
            link=old.link,
            name=old.name,
            source=source,
            overlaps=together,
            host_link=old.host_link,
        )

    def __repr__(self) -> str:
        operations = sum(map(len, self.steps[0]))
        return f"Trace({len(self.steps)} steps of {operations} operations, period {self.period_ns} ns)"


def _together(ahead: TimedOp, behind: TimedOp | None) -> bool:
    """Whether a B and the W behind it were run as one."""
    return (
        behind is not None
        and ahead.op.kind is Kind.BACKWARD_INPUT
        and behind.op == Op(Kind.BACKWARD_WEIGHT, ahead.op.stage, ahead.op.microbatch)
        and ahead.end_ns == behind.start_ns == behind.end_ns
    )


def _run_as(timed: TimedOp, behind: TimedOp | None) -> tuple[Op, int]:
    op = timed.op
    if _together(timed, behind):
        op = Op(Kind.BACKWARD, op.stage, op.microbatch)
    return op, timed.end_ns - timed.start_ns


def _measured_overlaps(known: tuple[Overlap, ...], medians: dict[tuple[int, int, Kind], float]) -> tuple[Overlap, ...]:
    """The overlaps with what was measured; of the input gradient alone only where the whole is known as well."""
    made = {(overlap.forward_stage, overlap.backward_stage): overlap for overlap in known}
    whole = {(f, b): max(1, round(ns)) for (f, b, kind), ns in medians.items() if kind is Kind.BACKWARD}
    into = {(f, b): max(1, round(ns)) for (f, b, kind), ns in medians.items() if kind is Kind.BACKWARD_INPUT}
    for pair in sorted(whole.keys() | (into.keys() & made.keys())):
        old = made.get(pair)
        made[pair] = Overlap(
            forward_stage=pair[0],
            backward_stage=pair[1],
            forward_backward_overlap_ns=whole.get(pair, old.forward_backward_overlap_ns if old else 1),
            forward_backward_input_overlap_ns=into.get(pair, old.forward_backward_input_overlap_ns if old else None),
        )
    return tuple(made.values())


def _measured(stage: int, cost: StageCost, medians: dict[tuple[int, Kind], int]) -> StageCost:
    forward = medians.get((stage, Kind.FORWARD), cost.forward_ns)
    whole = medians.get((stage, Kind.BACKWARD))
    halves = medians.get((stage, Kind.BACKWARD_INPUT)), medians.get((stage, Kind.BACKWARD_WEIGHT))
    if halves[0] is not None and halves[1] is not None:
        into, weight = halves[0], halves[1]
        both = into + weight if whole is None else whole
    elif whole is not None:
        planned = cost.backward_input_ns + cost.backward_weight_ns
        into = whole * cost.backward_input_ns // planned if planned else whole // 2
        weight, both = whole - into, whole
    else:
        into, weight, both = cost.backward_input_ns, cost.backward_weight_ns, cost.backward_ns
    return replace(
        cost,
        forward_ns=forward,
        backward_input_ns=into,
        backward_weight_ns=weight,
        backward_ns=both,
        recompute_ns=medians.get((stage, Kind.RECOMPUTE), cost.recompute_ns),
    )
