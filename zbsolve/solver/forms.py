"""Which backwards run fused: what may be chosen, what must be, and whether it matters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from zbsolve.problem import Problem
from zbsolve.solver.network import BASE, LIMIT, NET_CHANGE, NET_DURATION, NET_START, RANK, SHAPE

__all__ = ["Forms"]


class Forms:
    """The choices of fused and split that a problem has.

    Parameters
    ----------
    problem
        What is asked; `allow` says what may be chosen.
    net
        Its network.

    Attributes
    ----------
    cheap
        The stages whose fused backward takes less time than its two halves.
    must
        The stages where only the fused backward fits the memory at all.
    matters
        True if fusing may gain time or memory.
    """

    def __init__(self, problem: Problem, net: NDArray[np.int64]) -> None:
        self.stages, self.microbatches = problem.placement.stages, problem.microbatches
        self._ends = int(net[SHAPE][0]) - 3 * self.stages * self.microbatches
        self.may_split, self.may_fuse = "split" in problem.allow, "fused" in problem.allow
        if problem.forward_only:
            self.may_split, self.may_fuse = False, True
        self.cheap, self.must = frozenset[int](), frozenset[int]()
        self.matters = False
        if self.may_split and self.may_fuse:
            shape = (3, self.stages, self.microbatches, 2)
            duration, start, change = (
                net[row][: 6 * self.stages * self.microbatches].reshape(shape)
                for row in (NET_DURATION, NET_START, NET_CHANGE)
            )
            apart, together = duration[1:, :, :, 0].sum(axis=0), duration[1, :, :, 1]
            self.cheap = frozenset(np.flatnonzero(together.sum(axis=1) < apart.sum(axis=1)).tolist())
            rank = net[RANK][: self.stages * self.microbatches].reshape(shape[1:3])
            held = np.zeros((problem.placement.ranks, self.microbatches), dtype=np.int64)
            np.add.at(held, (rank, np.broadcast_to(np.arange(self.microbatches), rank.shape)), change[0, :, :, 0])
            needed = net[BASE][rank] + held[rank, np.arange(self.microbatches)] + start[1, :, :, 0]
            self.must = frozenset(np.flatnonzero((needed > net[LIMIT][rank]).any(axis=1)).tolist())
            self.matters = not (np.all(apart <= together) and np.all(start[1, :, :, 0] <= start[1, :, :, 1]))

    def flags(self, fused: Callable[[int, int], bool]) -> list[int]:
        """By node of the network whether it is fused, as far as `allow` and the memory let one choose."""
        if not self.may_split:
            chosen = [1] * (self.stages * self.microbatches)
        elif not self.may_fuse:
            chosen = [0] * (self.stages * self.microbatches)
        else:
            chosen = [int(s in self.must or fused(s, j)) for s in range(self.stages) for j in range(self.microbatches)]
        return [0] * len(chosen) + chosen + chosen + [0] * self._ends

    def speaks_for_all(self, fused: NDArray[np.int8]) -> bool:
        """True if no other choice of fused and split can beat the best order with this one.

        So it is where there is no choice, and with nothing fused if B and W one right after the other
        take no more time and no more memory than the fused backward.
        """
        if not (self.may_split and self.may_fuse):
            return True
        return not self.matters and not fused.any()
