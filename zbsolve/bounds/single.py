"""One stage on its rank, all microbatches alike: the numbers that the stronger bounds argue about.

Everything the other ranks do is replaced by one delay: the backward of a microbatch starts at least
L after its F does. Any timetable keeps that, so a bound for such a rank is a bound for the whole. What is
said here of a rank alone is for one stage a rank; where a rank has several chunks, each is read like this.

Memory is counted net of static bytes and of workspace, which is there while any operation runs.
With a microbatches between start of F and end of B, and b between end of B and end of W,
a x held + b x keep <= room at every moment; where keep > held, B counts as keep already while it
runs. Where microbatches differ, the least of each number is taken: less time and less memory never
make a timetable worse.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zbsolve.bounds.costs import Costs
from zbsolve.bounds.slices import lead, longer_turns
from zbsolve.opgraph import Int64

__all__ = ["SingleRank", "single_ranks", "visits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleRank:
    """One rank; times in ns, memory in bytes.

    Parameters
    ----------
    microbatches
        m.
    forward
        F.
    gradient, backward
        Least time from the start of a backward to its input gradient, and of all of it.
    split
        B, W and the bytes kept between them; None if no split backward is possible.
    fused
        The fused backward; None if it is not allowed.
    held
        What F holds.
    room
        Memory for held and kept bytes; 2^62 or so where there is no limit.
    turn
        L: least time from the start of F to the start of the backward.
    head, tail
        Least time before the first F, and after the last input gradient, spent on other ranks.
    down, up
        Lags of an output to the next rank, and of its gradient back; 0 for the last stage.
    after
        What follows all of it on the rank: the reduction of its gradients and the optimizer.
    slices
        k: runs of so many microbatches are one sequence, whose last slice turns back first.
    lead
        Least time from the first F of a sequence to that of its last slice.
    last_turn
        L of last slices alone; 0: `turn` is all that is known.
    whole
        What the backward needs of F, where F itself may hold less; 0: no more than `held`.
    again
        What computing F again takes, where that is the one way to hold less; None where it is not.
    longer
        Over all microbatches, how much longer than L they at least wait between F and their backward.
    beneath
        What the same microbatch's F's of the rank's earlier chunks hold besides: their backwards come later.
    number, route
        Of the rank, and the route that its microbatches take.
    """

    microbatches: int
    forward: int
    gradient: int
    backward: int
    split: tuple[int, int, int] | None
    fused: int | None
    held: int
    room: int
    turn: int
    head: int
    tail: int
    down: int
    up: int
    after: int = 0
    beneath: int = 0
    number: int = 0
    route: int = 0
    slices: int = 1
    lead: int = 0
    last_turn: int = 0
    longer: int = 0
    whole: int = 0
    again: int | None = None

    @property
    def turn_back(self) -> int:
        """L of a sequence's last slice, which is the first of it to turn back."""
        return max(self.turn, self.last_turn)

    def sequences_of(self, backwards: int) -> int:
        """The fewest microbatches in the sequences that so many backwards are of: whole ones, rounded up."""
        return -(-backwards // self.slices) * self.slices

    @property
    def work(self) -> int:
        """The least work of the rank, m (F + backward)."""
        return self.microbatches * (self.forward + self.backward)

    @property
    def in_flight(self) -> int:
        """K: the most microbatches between start of F and end of the backward at once, at most m.

        Each holds as much on the rank's earlier chunks as well. Where only split backwards are possible and
        keep > held, B must still fit beside the others: until the next backward the number in flight can only
        grow, and then (K - 1) held + keep <= room. A fused backward always fits. Where F may hold less than its
        backward needs, that must fit beside the others by the same argument.
        """
        each = self.held + self.beneath
        if not each:
            return self.microbatches
        first = max(self.held, self.whole)
        if self.fused is None and self.split is not None:
            first = max(first, self.split[2])
        return min(self.microbatches, 1 + (self.room - self.beneath - first) // each)

    def kept_beside(self, in_flight: int) -> int:
        """The most microbatches that can wait for W beside so many in flight; 0 if none is split."""
        others = self.microbatches - in_flight
        if self.split is None:
            return 0
        keep = self.split[2]
        return min(others, (self.room - in_flight * self.held) // keep) if keep else others

    @property
    def deferred(self) -> int:
        """What one W left for later can save at most: W, less what splitting costs against the least backward.

        Let c be the least backward. A microbatch that is split works B + W = c + (B + W - c), so of
        its W at most W - (B + W - c) = c - B is gained against a rank that works c.
        """
        return max(0, self.backward - self.split[0]) if self.split else 0


def single_ranks(costs: Costs) -> tuple[SingleRank, ...]:
    """The ranks in the order of their stages; only for one stage a rank and one route."""
    return visits(costs)


def visits(costs: Costs) -> tuple[SingleRank, ...]:
    """Every stage of every route that some microbatch takes, in the order in which it is come by, route after route."""
    taken = np.asarray(costs.problem.route_of)
    return tuple(
        _visit(costs, s, route, np.flatnonzero(taken == route))
        for route in range(len(costs.problem.placement.routes))
        if (taken == route).any()
        for s in range(costs.stages)
    )


def _visit(costs: Costs, s: int, route: int, columns: Int64) -> SingleRank:
    """A stage as the microbatches of one route see it."""

    def least(values: Int64, stage: int = s) -> int:
        return int(values[stage, columns].min())

    ranks = costs.problem.placement.routes[route]
    rank = ranks[s]
    split = None
    if costs.input_ns is not None and bool(costs.splittable[s, columns].any()):
        assert costs.weight_ns is not None
        assert costs.keep_bytes is not None
        split = (least(costs.input_ns), least(costs.weight_ns), least(costs.keep_bytes))
    inner = s < costs.stages - 1
    return SingleRank(
        microbatches=len(columns),
        forward=least(costs.forward_ns),
        gradient=least(costs.gradient_ns),
        backward=least(costs.backward_ns),
        split=split,
        fused=None if costs.fused_ns is None else least(costs.fused_ns),
        held=least(costs.held_bytes),
        # whatever runs, at least this workspace is needed beside what is held
        room=int(costs.limit_bytes[rank] - costs.base_bytes[rank])
        - int(costs.workspace_bytes[costs.rank == rank].min()),
        turn=least(costs.turn_ns),
        head=least(costs.head_ns),
        tail=least(costs.tail_ns),
        down=least(costs.down_ns) if inner else 0,
        up=least(costs.up_ns) if inner else 0,
        whole=least(costs.held_bytes + costs.again_bytes),
        again=None if costs.again_ns is None else least(costs.again_ns),
        after=int(costs.reduce_ns[s, rank] + costs.optimizer_ns[s, rank]),
        beneath=sum(least(costs.held_bytes, t) for t in range(s) if ranks[t] == rank),
        number=rank,
        route=route,
        **(_of_slices(costs, s) if len(costs.problem.placement.routes) == 1 else {}),
    )


def _of_slices(costs: Costs, stage: int) -> dict[str, int]:
    """What is known besides where sequences are in slices."""
    slices = costs.problem.slices
    if slices == 1:
        return {}
    return {
        "slices": slices,
        "lead": lead(costs, stage),
        "last_turn": int(costs.turn_ns[stage, slices - 1 :: slices].min()),
        "longer": longer_turns(costs, stage),
    }
