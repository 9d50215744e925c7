"""The earliest time at which a rank can have run so many F's, B's and W's, one rank after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zbsolve.bounds.single import SingleRank
from zbsolve.opgraph import Int64

__all__ = ["counting", "effort"]

_NEVER = 2**61 + 2**60
_REACHED = 2**61
_LARGEST_NS = 2**60


@dataclass(frozen=True, slots=True)
class _Earliest:
    """Of the n-th gradient of a rank (n from 1, list position n - 1), and of the end of its iteration."""

    gradients: list[int]
    end: int


def effort(ranks: Sequence[SingleRank]) -> int:
    """How many rows of counts `counting` goes through; some ten microseconds each."""
    return sum(rank.microbatches * (rank.in_flight + 1) for rank in ranks)


def counting(ranks: Sequence[SingleRank], *, makespan: bool) -> int:
    """The least span of any rank, by its counts of finished F's, B's and W's.

    Notes
    -----
    Walk along a rank's row. After each operation, (x, y, z) counts the F's, the gradients and the
    weight gradients done; x >= y >= z, and memory is (x - y) held + (y - z) keep <= room. Let t(x, y, z)
    be the least time after the rank's first start at which a row can have reached these counts. From
    the counts before the last operation:

    - F: t(x - 1, y, z) + F; let f(x) be the least start of an x-th F over all y and z;
    - B: max(t(x, y - 1, z), r(y)) + B, a fused backward the same from t(x, y - 1, z - 1);
    - W: t(x, y, z - 1) + W.

    r(n) is when an n-th backward can start. The first n backwards of a row are of n microbatches, of
    which one has its F in place n or later; so r(n) >= f(n) + L, whatever the order of microbatches.
    Likewise the first n gradients of this rank need n gradients of the next, which starts at least
    F + lag after this rank: r(n) >= F + lag + (n-th gradient of the next rank) + lag back. So the ranks
    are taken from last to first.

    By induction no row is faster than t, and t(m, m, m) bounds the span. The makespan adds head
    in front, and asks that the last gradient be followed by the backwards of the earlier stages.
    Own proof.
    """
    if max(r.head + r.tail + r.microbatches * (r.turn + r.forward + r.backward) for r in ranks) >= _LARGEST_NS:
        return 0  # would not fit the arrays
    best = 0
    arrivals = [0] * ranks[0].microbatches
    for position in range(len(ranks) - 1, -1, -1):
        rank = ranks[position]
        earliest = _earliest(rank, arrivals, rank.tail if makespan else 0)
        best = max(best, earliest.end + (rank.head if makespan else 0))
        if position:
            before = ranks[position - 1]
            arrivals = [before.forward + before.down + n + before.up for n in earliest.gradients]
    return best


def _earliest(rank: SingleRank, arrivals: list[int], tail: int) -> _Earliest:
    m = rank.microbatches
    starts = [0] * (m + 1)  # f(x)
    gradients = [_NEVER] * (m + 1)
    end = _NEVER
    before: dict[int, Int64] = {0: np.zeros(1, dtype=np.int64)}
    for x in range(1, m + 1):
        now: dict[int, Int64] = {}
        start = _NEVER
        for y, times in before.items():
            if x - y > rank.in_flight:
                continue
            low = _least_weights(rank, x, y)
            row = np.full(y + 1, _NEVER, dtype=np.int64)
            row[low:] = times[low:] + rank.forward
            now[y] = row
            start = min(start, int(times[low:].min()))
        starts[x] = start
        for y in range(max(0, x - rank.in_flight), x + 1):
            row = now.get(y, np.full(y + 1, _NEVER, dtype=np.int64))
            if y - 1 in now:
                ready = max(starts[y] + rank.turn, arrivals[y - 1])
                reached = _backwards(rank, now[y - 1], ready, _least_weights(rank, x, y))
                done = int(reached.min())
                gradients[y] = min(gradients[y], done)
                if y == m:
                    weights = rank.split[1] if rank.split else 0
                    left = np.arange(m, -1, -1, dtype=np.int64) * weights
                    end = int((reached + np.maximum(left, tail)).min())
                row = np.minimum(row, reached)
            if rank.split:
                row = _weights(row, rank.split[1])
            now[y] = np.where(row >= _REACHED, _NEVER, row)
        before = now
    return _Earliest(gradients[1:], end)


def _least_weights(rank: SingleRank, x: int, y: int) -> int:
    """The least z for which the counts x, y, z fit the memory; only called where x - y fits."""
    if rank.split is None:
        return y
    keep = rank.split[2]
    return max(0, y - (rank.room - (x - y) * rank.held) // keep) if keep else 0


def _backwards(rank: SingleRank, before: Int64, ready: int, low: int) -> Int64:
    """End of one more backward, split or fused, for every z; `before` is of one gradient less."""
    start = np.maximum(before, ready)
    reached = np.full(len(before) + 1, _NEVER, dtype=np.int64)
    if rank.split is not None:
        reached[:-1] = start + rank.split[0]
    if rank.fused is not None:
        reached[1:] = np.minimum(reached[1:], start + rank.fused)
    reached[:low] = _NEVER
    return reached


def _weights(times: Int64, weight: int) -> Int64:
    """The least time for every z when W's may follow: the least over z' <= z of times[z'] + (z - z') W."""
    shift = np.arange(len(times), dtype=np.int64) * weight
    reached: Int64 = np.minimum.accumulate(times - shift) + shift
    return reached
