"""One rank with one stage, all microbatches alike: the numbers that the stronger bounds argue about.

Everything the other ranks do is replaced by one delay: the backward of a microbatch starts at least
L after its F does. Any timetable keeps that, so a bound for such a rank is a bound for the whole.

Memory is counted net of static bytes and of workspace, which is there while any operation runs.
With a microbatches between start of F and end of B, and b between end of B and end of W,
a x held + b x keep <= room at every moment; where keep > held, B counts as keep already while it
runs. Where microbatches differ, the least of each number is taken: less time and less memory never
make a timetable worse.
"""

from __future__ import annotations

from dataclasses import dataclass

from zbsolve.bounds.costs import Costs
from zbsolve.bounds.slices import lead, longer_turns
from zbsolve.opgraph import Int64

__all__ = ["SingleRank", "single_ranks"]


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

        Where only split backwards are possible and keep > held, B must still fit beside the others:
        until the next backward the number in flight can only grow, and then (K - 1) held + keep <= room.
        A fused backward always fits. Where F may hold less than its backward needs, that must fit beside the others
        by the same argument.
        """
        if not self.held:
            return self.microbatches
        first = max(self.held, self.whole)
        if self.fused is None and self.split is not None:
            first = max(first, self.split[2])
        return min(self.microbatches, 1 + (self.room - first) // self.held)

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

    def least(values: Int64, s: int) -> int:
        return int(values[s].min())

    ranks = []
    for s in range(costs.stages):
        rank = int(costs.rank[s, 0])
        can_split = costs.input_ns is not None and bool(costs.splittable[s].any())
        split = None
        if can_split:
            assert costs.input_ns is not None
            assert costs.weight_ns is not None
            assert costs.keep_bytes is not None
            split = (least(costs.input_ns, s), least(costs.weight_ns, s), least(costs.keep_bytes, s))
        inner = s < costs.stages - 1
        ranks.append(
            SingleRank(
                microbatches=costs.microbatches,
                forward=least(costs.forward_ns, s),
                gradient=least(costs.gradient_ns, s),
                backward=least(costs.backward_ns, s),
                split=split,
                fused=None if costs.fused_ns is None else least(costs.fused_ns, s),
                held=least(costs.held_bytes, s),
                room=int(costs.limit_bytes[rank] - costs.base_bytes[rank]) - least(costs.workspace_bytes, s),
                turn=least(costs.turn_ns, s),
                head=least(costs.head_ns, s),
                tail=least(costs.tail_ns, s),
                down=least(costs.down_ns, s) if inner else 0,
                up=least(costs.up_ns, s) if inner else 0,
                whole=least(costs.held_bytes + costs.again_bytes, s),
                again=None if costs.again_ns is None else least(costs.again_ns, s),
                after=int(costs.reduce_ns[s, rank] + costs.optimizer_ns[s, rank]),
                **_of_slices(costs, s),
            )
        )
    return tuple(ranks)


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
