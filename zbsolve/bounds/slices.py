"""What slices of a sequence add to the bounds: longer chains, a later turn, and whole sequences in memory.

All else that is proven of microbatches holds of slices, too: their arcs only forbid timetables. But a slice
cannot turn back by itself::

    F0 F1 F2 ... B2 B1 B0     B of the last slice comes first, so F of all of them comes before it

"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from zbsolve.opgraph import Int64

if TYPE_CHECKING:
    from zbsolve.bounds.costs import Costs

__all__ = ["chain_of_slices", "held_so_far", "lead", "longer_turns", "way_back"]


def held_so_far(values: Int64, slices: int) -> Int64:
    """Of each slice, what it and the slices before it hold together; shape (..., m)."""
    whole: Int64 = _by_sequence(values, slices).cumsum(axis=-1).reshape(values.shape)
    return whole


def lead(costs: Costs, stage: int) -> int:
    """The least time from the first F of a sequence on a stage to that of its last slice."""
    ahead = _by_sequence(costs.forward_ns[stage], costs.problem.slices)[:, :-1]
    return int(ahead.sum(axis=1).min())


def longer_turns(costs: Costs, stage: int) -> int:
    """Over all slices, how much longer than the turn of the last one they wait from F to their backward, at least.

    A slice waits for F of those behind it, for the turn of the last, and for their gradients one after the other.
    """
    forward, gradient = (
        _by_sequence(values[stage], costs.problem.slices) for values in (costs.forward_ns, costs.gradient_ns)
    )
    numbers = np.arange(costs.problem.slices)
    # F of slice i is waited for by slices 0..i, unless it is the last; the gradient of slice i by slices 0..i - 1
    return int((forward[:, :-1] * (numbers[:-1] + 1)).sum() + (gradient * numbers).sum())


def chain_of_slices(costs: Costs) -> int:
    """The longest chain through all slices of one sequence; for a period, from a rank's first F of it to its last end.

    Notes
    -----
    The start of every F and every backward, counted from the first F on a stage, is at least that of all that has to
    come before it: F of the stage before and of the slice before; F itself, the gradient from the stage behind, and
    the gradient of the slice behind. What a backward takes, and what ends the iteration, follows. Own proof.
    """
    if costs.problem.slices == 1 or costs.problem.forward_only:
        return 0
    if costs.problem.objective == "makespan":
        return int(_ends_after(costs, 0).max())
    best, begun = 0, np.zeros(costs.ranks, dtype=bool)
    for s in range(costs.stages):
        ranks = costs.rank[s]
        if begun[ranks].all():
            continue
        begun[ranks] = True
        ends = _ends_after(costs, s)
        best = max(best, int(np.where(costs.rank == ranks, ends, 0).max()))
    return best


def _ends_after(costs: Costs, first: int) -> Int64:
    """The least end of the backward of each stage and microbatch, from the first F of its sequence on one stage."""
    slices, shape = costs.problem.slices, costs.forward_ns.shape
    sequences = costs.microbatches // slices
    never = -(2**62)
    after = (costs.reduce_ns + costs.optimizer_ns)[np.arange(costs.stages)[:, None], costs.rank]
    f, g, down, up = (
        values.reshape(len(values), sequences, slices)
        for values in (costs.forward_ns, costs.gradient_ns, costs.down_ns, costs.up_ns)
    )
    forward, back = np.full(f.shape, never), np.full(f.shape, never)
    forward[first, :, 0] = 0
    for s in range(first, costs.stages):
        for i in range(slices):
            if s > first:
                forward[s, :, i] = forward[s - 1, :, i] + f[s - 1, :, i] + down[s - 1, :, i]
            if i:
                np.maximum(forward[s, :, i], forward[s, :, i - 1] + f[s, :, i - 1], out=forward[s, :, i])
    for s in range(costs.stages - 1, -1, -1):
        for i in range(slices - 1, -1, -1):
            reached = [back[s, :, i]]
            if s >= first:
                reached.append(forward[s, :, i] + f[s, :, i])
            if s < costs.stages - 1:
                reached.append(back[s + 1, :, i] + g[s + 1, :, i] + up[s, :, i])
            if i < slices - 1:
                reached.append(back[s, :, i + 1] + g[s, :, i + 1])
            back[s, :, i] = np.maximum.reduce(reached)
    ends: Int64 = back.reshape(shape) + costs.backward_ns + after
    return ends


def way_back(held: Int64, extra: Int64) -> int:
    """The least peak of a rank while one sequence, all of it held, goes back through the rank's stages.

    Parameters
    ----------
    held, extra
        Bytes of each stage of the rank and each slice, shape (stages, slices): what is held until the backward has
        run, and what that needs besides while it runs.

    Notes
    -----
    A backward may run once those of the same slice on the rank's later stages and of the later slices on its
    stage have: each frees what it held, and what it allows never becomes less. So taking of all that may run
    the one that needs least besides, again and again, never needs more than any other way. Own proof.
    """
    stages, slices = held.shape
    left = [slices] * stages
    level, peak = int(held.sum()), 0
    while left[0]:
        able = [s for s in range(stages) if left[s] and (s == stages - 1 or left[s + 1] < left[s])]
        s = min(able, key=lambda s: int(extra[s, left[s] - 1]))
        left[s] -= 1
        peak = max(peak, level + int(extra[s, left[s]]))
        level -= int(held[s, left[s]])
    return peak


def _by_sequence(values: Int64, slices: int) -> Int64:
    whole: Int64 = values.reshape(*values.shape[:-1], -1, slices)
    return whole
