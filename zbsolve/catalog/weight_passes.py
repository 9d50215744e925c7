"""Weight passes on a V, moved by what the operations cost: nothing waits for them, so they give way.

A schedule made in equal units lets a weight pass stand before a gradient that, on real costs, is
there already and that other ranks wait for; and in its ramp down it fills units that may be shorter
than the pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from zbsolve.catalog.v_shape import LegCosts, Step, VShape

__all__ = ["gradients_first", "late_weights"]

_PASSES = 2

Rows = Sequence[Sequence[Step]]


class _Clock:
    """As-soon-as-possible times of rows, made operation by operation."""

    def __init__(self, costs: LegCosts) -> None:
        self.costs = costs
        self.sources = VShape(tuple(range(len(costs.room)))).sources()
        self.free = [0] * len(costs.room)
        self.end: dict[tuple[int, Step], int] = {}

    def arrival(self, place: int, step: Step) -> int | None:
        """When the input is there; None if what makes it has not run yet."""
        leg, microbatch, weight = step
        source = None if weight else self.sources[leg][place]
        if source is None:
            return 0
        ended = self.end.get((source[1], (source[0], microbatch, False)))
        return None if ended is None else ended + self.costs.lag[leg][place]

    def run(self, place: int, step: Step, arrival: int) -> int:
        """Run an operation; its start."""
        start = max(self.free[place], arrival)
        took = (self.costs.weight if step[2] else self.costs.duration)[step[0]][place]
        self.free[place] = self.end[place, step] = start + took
        return start


def gradients_first(rows: Rows, costs: LegCosts) -> list[list[Step]]:
    """The same rows with every gradient ahead of the weight pass before it, if it is there when that starts."""
    made = [list(row) for row in rows]
    for _ in range(_PASSES):
        times = _times(made, costs)
        changed = False
        for place, row in enumerate(made):
            for k in range(len(row) - 1):
                weight, gradient = row[k], row[k + 1]
                there = gradient[0] >= 2 and not gradient[2] and times[place, gradient][0] <= times[place, weight][1]
                if weight[2] and there:
                    row[k], row[k + 1] = gradient, weight
                    changed = True
        if not changed:
            break
    return made


def _times(rows: Rows, costs: LegCosts) -> dict[tuple[int, Step], tuple[int, int]]:
    """Arrival and start of everything."""
    clock, times = _Clock(costs), {}
    queues = [deque(row) for row in rows]
    moved = True
    while moved:
        moved = False
        for place, queue in enumerate(queues):
            while queue and (arrival := clock.arrival(place, queue[0])) is not None:
                step = queue.popleft()
                times[place, step] = arrival, clock.run(place, step, arrival)
                moved = True
    return times


def late_weights(rows: Rows, costs: LegCosts, peak: int) -> list[list[Step]]:
    """The same rows with the weight passes of the ramp down placed anew.

    Those after a rank's last forward of its first chunk run where a wait is long enough for them, or
    where a forward needs their memory, and else last.

    Parameters
    ----------
    rows
        For each rank its steps.
    costs
        What they take.
    peak
        Chunks that a rank may hold at once, each from its forward to its weight pass.
    """
    ends = [1 + max(k for k, step in enumerate(row) if step[0] == 0) for row in rows]
    late = [{step for step in row[end:] if step[2]} for row, end in zip(rows, ends, strict=True)]
    queues = [deque(step for step in row if step not in aside) for row, aside in zip(rows, late, strict=True)]
    made: list[list[Step]] = [[] for _ in rows]
    pending: list[deque[Step]] = [deque() for _ in rows]
    held = [0] * len(rows)
    clock = _Clock(costs)

    def run(place: int, step: Step, arrival: int) -> None:
        clock.run(place, step, arrival)
        made[place].append(step)
        held[place] += (step[0] < 2) - step[2]
        weight = (step[0], step[1], True)
        if not step[2] and weight in late[place]:
            pending[place].append(weight)

    moved = True
    while moved:
        moved = False
        for place, queue in enumerate(queues):
            while queue and (arrival := clock.arrival(place, queue[0])) is not None:
                waiting = pending[place]
                short = queue[0][0] < 2 and held[place] >= peak
                if waiting and (short or clock.free[place] + costs.weight[waiting[0][0]][place] <= arrival):
                    run(place, waiting.popleft(), 0)
                else:
                    run(place, queue.popleft(), arrival)
                moved = True
    return [[*row, *left] for row, left in zip(made, pending, strict=True)]
