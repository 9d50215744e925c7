"""Bounds from work and chains alone: load, chain, head-tail. They hold on any placement, with any routes."""

from __future__ import annotations

import numpy as np

from zbsolve.bounds.costs import Costs
from zbsolve.bounds.slices import chain_of_slices
from zbsolve.opgraph import Int64

__all__ = ["chain", "head_tail", "load"]


def load(costs: Costs) -> int:
    """The most work of any rank: a rank runs one operation at a time.

    Notes
    -----
    For period and makespan. On each rank, the sum of F + min(B + W, fused) over its stages and the
    microbatches that visit it; for one stage a rank m (F + B + W). To that comes the greater of all its
    optimizers and of what follows its last backward at least (`Costs.after_ns`). Between a rank's first start and
    last end lies all its work, hence period and makespan are at least that. Own proof; folklore.
    """
    return int(_work(costs).max())


def _work(costs: Costs) -> Int64:
    """Work of each rank, and what at least must follow it there."""
    work = _sum_by_rank(costs, costs.forward_ns + costs.backward_ns)
    found: Int64 = work + np.maximum(costs.optimizer_ns.sum(axis=0), costs.after_ns)
    return found


def chain(costs: Costs) -> int:
    """The longest chain of one microbatch.

    Notes
    -----
    Let head(s) be the least time from the first F of a microbatch to the start of F of stage s, and
    L(s) the least time from there to the start of its backward (`Costs.turn_ns`). The backward of
    stage s cannot be done before head(s) + L(s) + min(B + W, fused).

    - both, with the reduction and the optimizer of stage t behind its backward.
    - makespan: the greatest of these over stages and microbatches, each with the backwards of the
      earlier stages that must follow: beside W if it is split, after it if it is fused (`Costs.finish_ns`).
    - period: measured from the first F of the microbatch on the same rank instead, since that
      lies within the rank's span: head(t) - head(s) + L(t) + min(B + W, fused) of stage t, for s the
      first and t any stage of a rank.

    Where microbatches are slices of sequences, their chains hang together (`chain_of_slices`). Own proof.
    """
    return max(_alone(costs), chain_of_slices(costs))


def _alone(costs: Costs) -> int:
    """The longest chain of one microbatch by itself."""
    arrived = costs.head_ns + costs.turn_ns
    columns = np.arange(costs.microbatches)
    after = (costs.reduce_ns + costs.optimizer_ns)[np.arange(costs.stages)[:, None], costs.rank]
    done = arrived + costs.backward_ns + after
    if costs.problem.objective == "makespan":
        return int(max((arrived + costs.finish_ns).max(), done.max()))
    first = np.full((costs.ranks, costs.microbatches), -1, dtype=np.int64)
    best = 0
    for s in range(costs.stages):
        rank = costs.rank[s]
        new = first[rank, columns] < 0
        first[rank[new], columns[new]] = costs.head_ns[s][new]
        best = max(best, int((done[s] - first[rank, columns]).max()))
    return best


def head_tail(costs: Costs) -> int:
    """Makespan only: what must come before a rank's first operation, its work, and what must follow.

    Notes
    -----
    A rank's first operation is an F of one of its stages, so it starts no earlier than the least
    head(s) over them. Then

    - all its work follows: makespan >= head + load of the rank;
    - once its last input gradient is there, the backwards of the earlier stages remain for that
      microbatch (`Costs.tail_ns`), and before that moment it ran every F and every B:
      makespan >= head + sum of (F + min(B, fused)) + least tail over its stages.

    Own proof.
    """
    least = np.iinfo(np.int64).max
    head, tail = (np.full(costs.ranks, least, dtype=np.int64) for _ in range(2))
    np.minimum.at(head, costs.rank.ravel(), costs.head_ns.ravel())
    np.minimum.at(tail, costs.rank.ravel(), costs.tail_ns.ravel())
    work = _work(costs)
    until_gradient = _sum_by_rank(costs, costs.forward_ns + costs.gradient_ns)
    ends: list[int] = [
        h + max(w, g + t)
        for h, t, w, g in zip(head.tolist(), tail.tolist(), work.tolist(), until_gradient.tolist(), strict=True)
        if h < least  # a rank of a route that no microbatch takes has nothing to do
    ]
    return max(ends)


def _sum_by_rank(costs: Costs, values: Int64) -> Int64:
    total = np.zeros(costs.ranks, dtype=np.int64)
    np.add.at(total, costs.rank.ravel(), values.ravel())
    return total
