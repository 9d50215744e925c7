"""One run of the ZB-V greedy (two chunks a rank on a V): fill, then a backward and a forward in turn.

A microbatch takes four legs: forwards down the ranks, forwards back up, input gradients down, input
gradients back up. While the first microbatch is on its first two legs, the ranks above take what
further forwards memory and time allow. Then in every round each rank does one backward and one
forward, on the later leg where its input is there, else on the earlier one. Weight passes free
memory, fill waits that are long enough for them, and close gaps that would make a rank the worst;
the rest of them come last.

Nothing is placed before what it needs, so the rows can never wait for each other in a circle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from zbsolve.catalog.v_shape import LegCosts, Step, VShape

__all__ = ["FILLS", "run"]

DOWN, UP, BACK_DOWN, BACK_UP = range(4)
FORWARD_LEGS, BACKWARD_LEGS = (DOWN, UP), (BACK_DOWN, BACK_UP)

FILLS = ((True, True), (True, False), (False, True), (False, False))
"""Whether one more weight pass may close a gap before a forward, and before a backward on its way down."""


class _State:
    """The state of one run; lists have an entry a rank."""

    def __init__(self, costs: LegCosts, microbatches: int, fills: tuple[bool, bool], approved: Sequence[int]) -> None:
        self.costs, self.microbatches = costs, microbatches
        self.fill_before_forward, self.fill_on_way_down = fills
        self.ranks = len(costs.room)
        self.last = self.ranks - 1
        self.shape = VShape(tuple(range(self.ranks)))
        self.slack = [max(approved) - bubble for bubble in approved] if approved else [0] * self.ranks
        self.free, self.held, self.bubble = ([0] * self.ranks for _ in range(3))
        self.rows: list[list[Step]] = [[] for _ in range(self.ranks)]
        self.pending: list[deque[tuple[int, int]]] = [deque() for _ in range(self.ranks)]
        self.ends: list[list[list[int]]] = [[[] for _ in range(self.ranks)] for _ in range(4)]

    # ------------------------------------------------------------ what is there

    def count(self, leg: int, rank: int) -> int:
        return len(self.ends[leg][rank])

    def arrival(self, leg: int, rank: int) -> int | None:
        """When the input of the next operation of a leg is there; None if what makes it is not placed yet."""
        place, lag = self.count(leg, rank), self.costs.lag[leg][rank]
        source = self.shape.source(leg, rank)
        if source is None:
            return 0
        made = self.ends[source[0]][source[1]]
        return made[place] + lag if place < len(made) else None

    def left(self, leg: int, rank: int) -> bool:
        return self.count(leg, rank) < self.microbatches

    def can(self, leg: int, rank: int) -> bool:
        return self.left(leg, rank) and self.arrival(leg, rank) is not None

    # ------------------------------------------------------------ placing

    def put(self, leg: int, rank: int) -> None:
        """The next operation of a leg; its input must be there."""
        arrival = self.arrival(leg, rank)
        assert arrival is not None
        start = max(self.free[rank], arrival)
        if self.rows[rank]:
            self.bubble[rank] += start - self.free[rank]
        self.free[rank] = start + self.costs.duration[leg][rank]
        microbatch = self.count(leg, rank)
        self.ends[leg][rank].append(self.free[rank])
        self.rows[rank].append((leg, microbatch, False))
        self.held[rank] += self.costs.activation[leg][rank]
        if leg in BACKWARD_LEGS:
            self.held[rank] += self.costs.kept[leg][rank] - self.costs.activation[BACK_UP - leg][rank]
            self.pending[rank].append((leg, microbatch))

    def put_weight(self, rank: int) -> None:
        leg, microbatch = self.pending[rank].popleft()
        self.free[rank] += self.costs.weight[leg][rank]
        self.held[rank] -= self.costs.kept[leg][rank]
        self.rows[rank].append((leg, microbatch, True))

    def make_ready(self, leg: int, rank: int, *, fill: bool) -> None:
        """Weight passes that free memory for an operation, or use the wait before it."""
        costs, pending = self.costs, self.pending[rank]
        grows = costs.activation[leg][rank]
        if leg in BACKWARD_LEGS:
            grows = max(costs.kept[leg][rank] - costs.activation[BACK_UP - leg][rank], 0)
        while pending and self.held[rank] + grows > costs.room[rank]:
            self.put_weight(rank)
        arrival = self.arrival(leg, rank)
        assert arrival is not None
        while pending and self.free[rank] + costs.weight[pending[0][0]][rank] <= arrival:
            self.put_weight(rank)
        gap = arrival - self.free[rank]
        if pending and fill and gap > max(*self.bubble, self.slack[rank]) - self.bubble[rank]:
            self.put_weight(rank)

    # ------------------------------------------------------------ filling

    def fill(self) -> None:
        for rank in range(self.ranks):
            self.put(DOWN, rank)
        for rank in reversed(range(self.ranks)):
            if rank < self.last:
                while self.takes_another(rank):
                    for above in range(rank + 1):
                        self.put(DOWN, above)
            self.put(UP, rank)
        self.catch_up()

    def takes_another(self, rank: int) -> bool:
        """Whether this rank and all above it have time and memory for one more forward before the first comes back."""
        arrival = self.arrival(UP, rank)
        assert arrival is not None
        if not self.left(DOWN, rank) or self.free[rank] + self.costs.duration[DOWN][rank] > arrival:
            return False
        for above in range(rank + 1):
            both = self.costs.activation[DOWN][above] + self.costs.activation[UP][above]
            if self.held[above] + (1 + rank) * both > self.costs.room[above]:
                return False
        return True

    def catch_up(self) -> None:
        """From the top, ranks that have done less than the one before alternate both legs until they match."""
        leg = DOWN
        for rank in range(1, self.ranks):
            stuck = 0
            while self.is_behind(rank) and stuck < len(FORWARD_LEGS):
                stuck += 1
                for below in reversed(range(rank, self.ranks)):
                    if self.can(leg, below) and self.has_room(leg, below, ahead=leg == DOWN):
                        self.put(leg, below)
                        stuck = 0
                leg = UP if leg == DOWN else DOWN

    def is_behind(self, rank: int) -> bool:
        mine, above = ([self.count(leg, r) for leg in FORWARD_LEGS] for r in (rank, rank - 1))
        return sum(mine) < sum(above) or mine[UP] <= above[UP] < self.microbatches

    def has_room(self, leg: int, rank: int, *, ahead: bool) -> bool:
        """Whether memory allows a forward, and with `ahead` the one of the other leg after it."""
        held, needs = self.held[rank], self.costs.activation
        return held + needs[leg][rank] + (needs[UP][rank] if ahead else 0) <= self.costs.room[rank]

    # ------------------------------------------------------------ rounds

    def rounds(self) -> None:
        while any(self.left(BACK_UP, rank) for rank in range(self.ranks)):
            # where chunks differ in size memory may stop all forwards that the backwards wait for: then it is exceeded
            moved = self.backward_round()
            moved = self.forward_round(exceed=False) or moved
            if not moved:
                self.forward_round(exceed=True)

    def backward_round(self) -> bool:
        later = [rank for rank in range(self.ranks) if self.can(BACK_UP, rank)]
        chosen = [(BACK_UP, rank) for rank in later]
        chosen += [(BACK_DOWN, rank) for rank in range(self.ranks) if rank not in later]
        moved = False
        for leg, rank in chosen:
            if self.can(leg, rank):
                self.make_ready(leg, rank, fill=leg == BACK_UP or self.fill_on_way_down)
                self.put(leg, rank)
                moved = True
        return moved

    def forward_round(self, *, exceed: bool) -> bool:
        moved = False
        for rank in range(self.ranks):
            leg = UP if self.can(UP, rank) else DOWN
            if self.can(leg, rank):
                self.make_ready(leg, rank, fill=self.fill_before_forward)
                if exceed or self.has_room(leg, rank, ahead=False):
                    self.put(leg, rank)
                    moved = True
        return moved

    def finish(self) -> None:
        for rank in range(self.ranks):
            while self.pending[rank]:
                self.put_weight(rank)


def run(costs: LegCosts, microbatches: int, fills: tuple[bool, bool]) -> list[list[Step]]:
    """Run the greedy, and again with the bubbles it reached as the ones to beat, while that improves it.

    Parameters
    ----------
    costs
        What it believes.
    microbatches
        How many.
    fills
        One of `FILLS`.

    Returns
    -------
    For each rank its steps in order.
    """
    best: _State | None = None
    while True:
        state = _State(costs, microbatches, fills, best.bubble if best else ())
        state.fill()
        state.rounds()
        state.finish()
        if best is not None and max(state.bubble) >= max(best.bubble):
            return best.rows
        best = state
