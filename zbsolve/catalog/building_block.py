"""Schedules on a V from a building block (arXiv 2405.15362): repeat, reorder, squeeze.

Time is counted in units, six to a microbatch: F, B and W of each of a rank's two chunks take one. A
block says when the ranks run the operations of microbatch 0; microbatch j runs 6j units later, and
the units are chosen so that no two operations ever meet. How long a block keeps a chunk decides how
many are held at once, however many microbatches there are.

Repeating alone leaves free units in the ramps. There, in the order of time, every operation moves to
the earliest free unit that keeps what it needs and raises no rank's peak. In the ramp down, where
the last gradients are waited for, weight passes first stand aside and then take the units that are
left. Last, the free units are dropped: what counts is each rank's order, run as soon as possible.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from zbsolve.catalog.v_shape import Step, VShape

__all__ = ["INTERVAL", "Block", "reordered"]

INTERVAL = 6
"""Units from one microbatch to the next."""


@dataclass(frozen=True, slots=True)
class Block:
    """When the ranks, from the top of a V, run the operations of the first microbatch.

    Parameters
    ----------
    legs
        By rank: the units in which its four legs start.
    weights
        By rank: the units of the weight passes of legs 2 and 3; none if these legs are whole backwards,
        which take two units.
    """

    legs: tuple[tuple[int, ...], ...]
    weights: tuple[tuple[int, ...], ...] = ()

    @property
    def whole(self) -> bool:
        """Whether the backward legs do B and W together."""
        return not self.weights

    @property
    def peak(self) -> int:
        """The most chunks that a rank holds at once when the block is repeated for ever, each to the end of its W."""
        ends = [[t + 2 for t in legs[2:]] for legs in self.legs] if self.whole else self.weights
        peaks = []
        for legs, (end_1, end_0) in zip(self.legs, ends, strict=True):
            spans = ((legs[0], end_0), (legs[1], end_1))
            held = [
                sum(1 + (end - start - 1 - (unit - start) % INTERVAL) // INTERVAL for start, end in spans)
                for unit in range(INTERVAL)
            ]
            peaks.append(max(held))
        return max(peaks)


Place = tuple[int, Step]
"""A rank, by its place from the top, and what it runs."""


class _Grid:
    """All microbatches of a block in units."""

    def __init__(self, block: Block, microbatches: int, peak: int) -> None:
        self.block, self.whole, self.peak = block, block.whole, peak
        self.ranks = len(block.legs)
        self.sources = VShape(tuple(range(self.ranks))).sources()
        self.last = microbatches - 1
        self.time: dict[Place, int] = {}
        for place in range(self.ranks):
            for j in range(microbatches):
                for leg, start in enumerate(block.legs[place]):
                    self.time[place, (leg, j, False)] = start + INTERVAL * j
                for leg, start in zip((2, 3), block.weights[place] if block.weights else (), strict=False):
                    self.time[place, (leg, j, True)] = start + INTERVAL * j
        self.units = max(self.time.values()) + 3
        self.taken = [bytearray(self.units) for _ in range(self.ranks)]
        for (place, step), start in self.time.items():
            self.mark(place, start, self.length(step), 1)
        self.held = self.memory(())

    def length(self, step: Step) -> int:
        return 2 if self.whole and step[0] >= 2 else 1

    def frees(self, step: Step) -> bool:
        """Whether a chunk goes with it: its W, or its whole backward."""
        return step[2] or (self.whole and step[0] >= 2)

    def mark(self, place: int, start: int, length: int, value: int) -> None:
        for unit in range(start, start + length):
            self.taken[place][unit] = value

    def memory(self, aside: Iterable[Place]) -> list[list[int]]:
        """Chunks held in every unit, by rank; what stands aside never frees any."""
        change = [[0] * (self.units + 3) for _ in range(self.ranks)]
        standing = set(aside)
        for (place, step), start in self.time.items():
            if step[0] < 2:
                change[place][start] += 1
            elif self.frees(step) and (place, step) not in standing:
                change[place][start + self.length(step)] -= 1
        held = []
        for row in change:
            level, levels = 0, []
            for step_change in row:
                level += step_change
                levels.append(level)
            held.append(levels)
        return held

    def ready(self, place: int, step: Step) -> int:
        leg, j, weight = step
        if weight:
            return self.time[place, (leg, j, False)] + 1
        source = self.sources[leg][place]
        if source is None:
            return 0
        before = (source[0], j, False)
        return self.time[source[1], before] + self.length(before)

    def move_up(self, place: int, step: Step) -> None:
        """To the earliest free unit in which it can run; a forward holds memory from there on."""
        now, length, earliest = self.time[place, step], self.length(step), self.ready(place, step)
        held, taken = self.held[place], self.taken[place]
        if step[0] < 2:
            from_here = now
            while from_here > earliest and held[from_here - 1] < self.peak:
                from_here -= 1
            earliest = from_here
        self.mark(place, now, length, 0)
        start = taken.find(bytes(length), earliest)  # its own units are free, if no others
        self.mark(place, start, length, 1)
        self.time[place, step] = start
        if step[0] < 2:
            for unit in range(start, now):
                held[unit] += 1
        elif self.frees(step):
            for unit in range(start + length, now + length):
                held[unit] -= 1

    def in_time(self) -> list[Place]:
        return [one for _, one in sorted((at, one) for one, at in self.time.items())]

    def reorder(self) -> None:
        for place, step in self.in_time():
            self.move_up(place, step)

    def reorder_ramp_down(self) -> None:
        """After a rank's last forward of its first chunk the gradients go first, then the weight passes."""
        ends = [self.time[place, (0, self.last, False)] for place in range(self.ranks)]
        aside = [one for one in self.in_time() if one[1][2] and self.time[one] > ends[one[0]]]
        for place, step in aside:
            self.mark(place, self.time[place, step], 1, 0)
        self.held = self.memory(aside)
        standing = set(aside)
        for place, step in self.in_time():
            if (place, step) not in standing and not step[2]:
                self.move_up(place, step)
        # first come, first served, by the gradients that they follow
        for place, (leg, j, _) in sorted(aside, key=lambda one: self.time[one[0], (*one[1][:2], False)]):
            start = max(ends[place], self.time[place, (leg, j, False)]) + 1
            while start < self.units and self.taken[place][start]:
                start += 1
            if start == self.units:
                self.units += 1
                for row in self.taken:
                    row.append(0)
            self.mark(place, start, 1, 1)
            self.time[place, (leg, j, True)] = start

    def rows(self) -> list[list[Step]]:
        rows: list[list[Step]] = [[] for _ in range(self.ranks)]
        for place, step in self.in_time():
            rows[place].append(step)
        return rows


def reordered(block: Block, microbatches: int, peak: int) -> list[list[Step]]:
    """Repeat a block, move operations up into the free units of the ramps, and drop the units left.

    Parameters
    ----------
    block
        What to repeat.
    microbatches
        How many times.
    peak
        Chunks that a rank may hold at once; no less than the block's own.

    Returns
    -------
    For each rank its steps in order.
    """
    grid = _Grid(block, microbatches, peak)
    grid.reorder()
    if not block.whole:
        grid.reorder_ramp_down()
    return grid.rows()
