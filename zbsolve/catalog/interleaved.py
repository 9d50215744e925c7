"""Interleaved 1F1B and its zero-bubble form: several chunks a rank, microbatches in groups.

A rank runs its first chunk for a group of microbatches, then its second for the same group, and so
on through its chunks before the next group comes; backwards visit the chunks the other way round.
Forwards and backwards so follow two sequences that are the same on every rank, and a rank differs
from the others only in how many forwards it runs ahead:

    chunks      F F F F f f f f F F ...      v = 2 chunks, groups of p = 4 microbatches
    backwards   b b b b B B B B b b ...
    a rank      warm-up forwards, then forward, backward, forward, backward, ...

A group smaller than the number of ranks can make ranks wait for each other in a circle; a rank that
stands at a backward then lets its next forward go first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from zbsolve.catalog.conditions import require_looped, require_split
from zbsolve.catalog.schedule import Member, Schedule, backward, ordered
from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.timetable import Order

__all__ = ["MEMBERS"]

Step = tuple[int, int]
"""A chunk and a microbatch."""


def _groups_of(size: int, microbatches: int) -> list[range]:
    """Groups of `size`, the last one short if it does not divide."""
    return [range(j, min(j + size, microbatches)) for j in range(0, microbatches, size)]


def _even_groups(ranks: int, microbatches: int) -> list[range]:
    """As many groups as there are full ones of `ranks`, as equal as they can be, larger ones first."""
    count = max(1, microbatches // ranks)
    small, larger = divmod(microbatches, count)
    starts = [small * k + min(k, larger) for k in range(count + 1)]
    return [range(a, b) for a, b in pairwise(starts)]


@dataclass(frozen=True, slots=True)
class _Plan:
    """The two sequences that all ranks follow, and the ranks in the order of a lap."""

    lap: tuple[int, ...]
    forwards: tuple[Step, ...]
    backwards: tuple[Step, ...]
    largest_group: int
    chunks: int

    @classmethod
    def of(cls, problem: Problem, name: str, grouping: Callable[[int, int], list[range]]) -> _Plan:
        lap, chunks = require_looped(problem, name)
        groups = grouping(len(lap), problem.microbatches)
        return cls(
            lap=lap,
            forwards=tuple((c, j) for group in groups for c in range(chunks) for j in group),
            backwards=tuple((c, j) for group in groups for c in reversed(range(chunks)) for j in group),
            largest_group=max(map(len, groups)),
            chunks=chunks,
        )

    def warm_up(self, place: int, hop: int) -> int:
        """Forwards ahead of the first backward: a group through all chunks but one, and `hop` for every rank below."""
        ahead = (self.chunks - 1) * self.largest_group + hop * (len(self.lap) - 1 - place)
        return min(ahead, len(self.forwards))

    def stage(self, place: int, chunk: int) -> int:
        return chunk * len(self.lap) + place


# ------------------------------------------------------------------------------ whole backwards


class _Issue:
    """The rows of all ranks, issued side by side so that all can finish: (forward or not, step)."""

    def __init__(self, plan: _Plan) -> None:
        self.plan, self.ranks = plan, len(plan.lap)
        self.warm_up = [plan.warm_up(place, 2) for place in range(self.ranks)]
        self.forwards, self.backwards = [0] * self.ranks, [0] * self.ranks
        self.rows: list[list[tuple[bool, Step]]] = [[] for _ in plan.lap]
        self.done: set[tuple[int, bool, Step]] = set()

    def run(self) -> list[list[tuple[bool, Step]]]:
        places = range(self.ranks)
        while any(made < len(self.plan.backwards) for made in self.backwards):
            moved = [self.issue(place, forward=self.is_at_forward(place)) for place in places]
            # the first forward in the sequence that is not done has its input, so some rank can always go on;
            # the one nearest to the loss is the one whose forwards the others lack
            if not any(moved):
                any(self.issue(place, forward=True) for place in reversed(places))
        return self.rows

    def is_at_forward(self, place: int) -> bool:
        """Whether a forward comes next: one for every backward, beyond the warm-up."""
        ahead = self.warm_up[place] + self.backwards[place] + 1
        return self.forwards[place] < min(len(self.plan.forwards), ahead)

    def issue(self, place: int, *, forward: bool) -> bool:
        """Issue the next forward or backward of a rank, if there is one and its input is there."""
        at, steps = (self.forwards, self.plan.forwards) if forward else (self.backwards, self.plan.backwards)
        if at[place] == len(steps) or not self.is_there(place, forward, steps[at[place]]):
            return False
        self.rows[place].append((forward, steps[at[place]]))
        self.done.add((place, forward, steps[at[place]]))
        at[place] += 1
        return True

    def is_there(self, place: int, forward: bool, step: Step) -> bool:
        chunk, microbatch = step
        if forward:
            if place:
                return (place - 1, True, step) in self.done
            return not chunk or (self.ranks - 1, True, (chunk - 1, microbatch)) in self.done
        if place < self.ranks - 1:
            return (place + 1, False, step) in self.done
        if chunk < self.plan.chunks - 1:
            return (0, False, (chunk + 1, microbatch)) in self.done
        return (place, True, step) in self.done


def _interleaved(problem: Problem, name: str, grouping: Callable[[int, int], list[range]]) -> Order:
    plan = _Plan.of(problem, name, grouping)
    rows: dict[int, list[Op]] = {}
    for place, (rank, steps) in enumerate(zip(plan.lap, _Issue(plan).run(), strict=True)):
        rows[rank] = []
        for forward, (chunk, microbatch) in steps:
            stage = plan.stage(place, chunk)
            rows[rank] += (Op(Kind.FORWARD, stage, microbatch),) if forward else backward(problem, stage, microbatch)
    return ordered(problem, rows)


def interleaved_1f1b(problem: Problem) -> Order:
    """Megatron-LM's interleaved 1F1B: groups of p microbatches, the last one short if p does not divide m.

    Bubble time (p-1)(F+B+W) of one chunk at equal stages, p dividing m, and no latency: 1/v of 1F1B's with
    the same layers; rank 0 holds up to (v-1)p + 2p - 1 chunks.

    Raises
    ------
    ScheduleConditionError
        If the stages do not go round the ranks in laps, as many on each.
    """
    return _interleaved(problem, "interleaved-1f1b", _groups_of)


def interleaved_1f1b_grouped(problem: Problem) -> Order:
    """Interleaved 1F1B with m // p groups as equal as they can be, so none is smaller than p (if m is not).

    The order of torch's ``ScheduleInterleaved1F1B`` wherever that takes m; where p divides m it is
    `interleaved_1f1b`. Larger groups hold more memory, short ones leave bubbles.

    Raises
    ------
    ScheduleConditionError
        If the stages do not go round the ranks in laps, as many on each.
    """
    return _interleaved(problem, "interleaved-1f1b-grouped", _even_groups)


# ------------------------------------------------------------------------------ split backwards


def _zero_bubble_row(
    forwards: Sequence[Step], backwards: Sequence[Step], warm_up: int, delay: int
) -> Iterator[tuple[Kind, Step]]:
    """Warm-up; then a forward while there are any, a B, and the W of the B `delay` before it; the other W's last."""
    for step in forwards[:warm_up]:
        yield Kind.FORWARD, step
    for k, step in enumerate(backwards):
        if warm_up + k < len(forwards):
            yield Kind.FORWARD, forwards[warm_up + k]
        yield Kind.BACKWARD_INPUT, step
        if k >= delay:
            yield Kind.BACKWARD_WEIGHT, backwards[k - delay]
    for step in backwards[max(len(backwards) - delay, 0) :]:
        yield Kind.BACKWARD_WEIGHT, step


def interleaved_zb(problem: Problem) -> Order:
    """Interleaved zero bubble: one forward, one B, and on the r-th rank the W of r backwards ago.

    With groups as in `interleaved_1f1b_grouped`; the order of torch's ``ScheduleInterleavedZeroBubble``
    wherever that takes m. Bubble time (p-1)(F+B-W) of one chunk at equal stages, m >= p, W <= F and no
    latency.

    Raises
    ------
    ScheduleConditionError
        If the stages do not go round the ranks in laps, as many on each, or B and W may not stand apart.
    """
    require_split(problem, "interleaved-zb")
    plan = _Plan.of(problem, "interleaved-zb", _even_groups)
    rows: dict[int, list[Op]] = {}
    for place, rank in enumerate(plan.lap):
        steps = _zero_bubble_row(plan.forwards, plan.backwards, plan.warm_up(place, 1), delay=place)
        rows[rank] = [Op(kind, plan.stage(place, chunk), microbatch) for kind, (chunk, microbatch) in steps]
    return ordered(problem, rows)


MEMBERS = (
    Member(
        Schedule(
            name="interleaved-1f1b",
            family="interleaved",
            placement="looped",
            source="Megatron-LM, arXiv 2104.04473",
            needs="several chunks a rank, in laps, as many on each; memory of vp + p - 1 chunks",
        ),
        interleaved_1f1b,
    ),
    Member(
        Schedule(
            name="interleaved-1f1b-grouped",
            family="interleaved",
            placement="looped",
            source="Megatron-LM, arXiv 2104.04473; its group size as torch's ScheduleInterleaved1F1B sets it",
            needs="several chunks a rank, in laps, as many on each; memory of (v-1)g + 2p - 1 chunks, g = m over m//p",
        ),
        interleaved_1f1b_grouped,
    ),
    Member(
        Schedule(
            name="interleaved-zb",
            family="interleaved",
            placement="looped",
            source="arXiv 2401.10241, as torch's ScheduleInterleavedZeroBubble",
            needs="several chunks a rank, in laps, as many on each; B and W apart; memory of about vp chunks",
        ),
        interleaved_zb,
    ),
)
