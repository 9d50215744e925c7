"""One run of the zero-bubble greedy (arXiv 2401.10241): a pass over the microbatches.

The first microbatch goes down all stages; while its gradient is on the way back each stage takes
what further forwards fit before it can arrive. From then on every round is a sweep of forwards down
the stages and a sweep of backwards up them. Weight passes free memory, fill waits that are long
enough for them, and close the largest of the remaining gaps; the rest of them come last.

Three switches decide what the rules leave open; `SWITCHES` holds the eight ways to set them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["SWITCHES", "Costs", "Switches", "greedy_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What the greedy believes of the stages, one entry each; times in ns, memory in bytes.

    Parameters
    ----------
    forward, backward, weight
        Durations.
    down
        Lag from the forward of the stage before to this one's; 0 for the first.
    up
        Lag from the backward of the stage after to this one's; 0 for the last.
    activation
        Held from the start of a forward.
    kept
        What the end of a backward leaves until the end of its weight pass.
    room
        The memory limit, net of all that is always there.
    """

    forward: Sequence[int]
    backward: Sequence[int]
    weight: Sequence[int]
    down: Sequence[int]
    up: Sequence[int]
    activation: Sequence[int]
    kept: Sequence[int]
    room: Sequence[int]


@dataclass(frozen=True, slots=True)
class Switches:
    """What the rules leave open.

    Parameters
    ----------
    overfill
        Fill up to the forward that starts before the first gradient can arrive, instead of the
        last that ends before it.
    prefer_backward
        Leave a forward out where the stage below is two behind and its gradient would have to wait.
    close_gaps
        Run one more weight pass in every gap, not only in one that would make the largest bubble.
    """

    overfill: bool
    prefer_backward: bool
    close_gaps: bool

    def __str__(self) -> str:
        names = [name.replace("_", " ") for name in self.__slots__ if getattr(self, name)]
        return ", ".join(names) or "plain"


SWITCHES = tuple(Switches(*setting) for setting in itertools.product((False, True), repeat=3))
"""The eight settings."""

FORWARD, BACKWARD, WEIGHT = range(3)


class _Run:
    """The state of one run; every list has an entry a stage."""

    def __init__(self, costs: Costs, microbatches: int, switches: Switches) -> None:
        stages = len(costs.forward)
        self.costs, self.microbatches, self.switches = costs, microbatches, switches
        self.stages, self.last = stages, stages - 1
        # room for one forward and one backward is kept whatever the limit, so that a run always ends
        growth = [max(k - a, 0) for a, k in zip(costs.activation, costs.kept, strict=True)]
        self.room = [max(r, a + g) for r, a, g in zip(costs.room, costs.activation, growth, strict=True)]
        self.growth = growth
        self.free = [0] * stages
        self.held = [0] * stages
        self.bubble = [0] * stages
        self.largest_bubble = 0
        self.rows: list[list[tuple[int, int]]] = [[] for _ in range(stages)]
        self.forwards, self.backwards, self.weights = ([0] * stages for _ in range(3))
        self.forward_end: list[list[int]] = [[] for _ in range(stages)]
        self.backward_end: list[list[int]] = [[] for _ in range(stages)]

    def rows_of_all(self) -> list[list[tuple[int, int]]]:
        self.first_round()
        for microbatch in range(1, self.microbatches):
            self.forward_sweep()
            self.backward_sweep(microbatch)
        for stage in range(self.stages):
            while self.weights[stage] < self.microbatches:
                self.put_weight(stage)
        return self.rows

    # ---------------------------------------------------------------- placing one operation

    def put_forward(self, stage: int) -> None:
        microbatch = self.forwards[stage]
        self.wait_until(stage, self.forward_arrival(stage, microbatch))
        self.free[stage] += self.costs.forward[stage]
        self.held[stage] += self.costs.activation[stage]
        self.forward_end[stage].append(self.free[stage])
        self.forwards[stage] += 1
        self.rows[stage].append((FORWARD, microbatch))

    def put_backward(self, stage: int) -> None:
        microbatch = self.backwards[stage]
        self.wait_until(stage, self.backward_arrival(stage, microbatch))
        self.free[stage] += self.costs.backward[stage]
        self.held[stage] += self.costs.kept[stage] - self.costs.activation[stage]
        self.backward_end[stage].append(self.free[stage])
        self.backwards[stage] += 1
        self.rows[stage].append((BACKWARD, microbatch))

    def put_weight(self, stage: int) -> None:
        self.free[stage] += self.costs.weight[stage]
        self.held[stage] -= self.costs.kept[stage]
        self.rows[stage].append((WEIGHT, self.weights[stage]))
        self.weights[stage] += 1

    def wait_until(self, stage: int, arrival: int) -> None:
        wait = arrival - self.free[stage]
        if wait > 0:
            self.free[stage] = arrival
            if self.rows[stage]:
                self.bubble[stage] += wait
                self.largest_bubble = max(self.largest_bubble, self.bubble[stage])

    def forward_arrival(self, stage: int, microbatch: int) -> int:
        return self.forward_end[stage - 1][microbatch] + self.costs.down[stage] if stage else 0

    def backward_arrival(self, stage: int, microbatch: int) -> int:
        return self.backward_end[stage + 1][microbatch] + self.costs.up[stage] if stage < self.last else 0

    # ---------------------------------------------------------------- weight passes

    def pending(self, stage: int) -> int:
        return self.backwards[stage] - self.weights[stage]

    def make_room(self, stage: int, needed: int) -> None:
        while self.held[stage] + needed > self.room[stage] and self.pending(stage):
            self.put_weight(stage)

    def use_wait(self, stage: int, arrival: int) -> None:
        """Weight passes that end by the arrival; one more if the gap left is worth closing."""
        weight = self.costs.weight[stage]
        while self.pending(stage) and self.free[stage] + weight <= arrival:
            self.put_weight(stage)
        gap = arrival - self.free[stage]
        if gap > 0 and self.pending(stage):
            worst = gap > self.largest_bubble - self.bubble[stage]
            if worst or self.switches.close_gaps:
                self.put_weight(stage)

    # ---------------------------------------------------------------- rounds

    def first_round(self) -> None:
        for stage in range(self.stages):
            self.put_forward(stage)
        for stage, extra in enumerate(self.extra_forwards()):
            for _ in range(extra):
                self.put_forward(stage)
        for stage in reversed(range(self.stages)):
            self.put_backward(stage)

    def extra_forwards(self) -> list[int]:
        """How many forwards each stage takes while the first gradient comes back."""
        costs = self.costs
        extra = [0] * self.stages
        gradient = self.free[self.last] + costs.backward[self.last]
        for stage in reversed(range(self.last)):
            arrival = gradient + costs.up[stage]
            forward = costs.forward[stage]
            at = self.free[stage]
            needed = self.held[stage] + costs.activation[stage] + self.growth[stage]
            count = 1
            while count < self.microbatches and needed <= self.room[stage]:
                if at >= arrival or (not self.switches.overfill and at + forward > arrival):
                    break
                at += forward
                needed += costs.activation[stage]
                count += 1
            extra[stage] = count - 1
            gradient = max(at, arrival) + costs.backward[stage]
        for stage in range(1, self.stages):
            extra[stage] = max(min(extra[stage], extra[stage - 1] - 1), 0)
        return extra

    def forward_sweep(self) -> None:
        takes = [count < self.microbatches for count in self.forwards]
        if self.switches.prefer_backward:
            takes = [takes[s] and not self.leaves_out(s) for s in range(self.stages)]
        for stage in reversed(range(self.last)):
            takes[stage] = takes[stage] and takes[stage + 1]
        for stage in range(self.stages):
            if takes[stage]:
                self.make_room(stage, self.costs.activation[stage] + self.growth[stage])
                self.use_wait(stage, self.forward_arrival(stage, self.forwards[stage]))
                self.put_forward(stage)

    def leaves_out(self, stage: int) -> bool:
        """Whether a forward would hold up the gradient that the stage below could send."""
        if stage == self.last or self.forwards[stage] < self.forwards[stage + 1] + 2:
            return False
        costs, free = self.costs, self.free
        ready = free[stage + 1] + costs.forward[stage + 1] + costs.backward[stage + 1] + costs.up[stage]
        if free[stage] >= ready:
            return True
        short = self.held[stage] + costs.activation[stage] + self.growth[stage] - self.room[stage]
        freeing = -(-short // costs.kept[stage]) if short > 0 and costs.kept[stage] else 0
        freeing = min(freeing, self.pending(stage))
        if free[stage] + freeing * costs.weight[stage] + costs.forward[stage] <= ready:
            return False
        return ready - free[stage] <= self.largest_bubble - self.bubble[stage]

    def backward_sweep(self, microbatch: int) -> None:
        for stage in reversed(range(self.stages)):
            self.make_room(stage, self.growth[stage])
            self.use_wait(stage, self.backward_arrival(stage, microbatch))
            if stage == 0 and self.forwards[0] == self.microbatches:
                while self.pending(0):
                    self.put_weight(0)
            self.put_backward(stage)


def greedy_rows(costs: Costs, microbatches: int, switches: Switches) -> list[list[tuple[int, int]]]:
    """Run the greedy once.

    Returns
    -------
    For each stage its operations in order, as pairs of a kind (0 forward, 1 backward, 2 weight pass)
    and a microbatch.
    """
    return _Run(costs, microbatches, switches).rows_of_all()
