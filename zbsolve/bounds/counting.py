"""The earliest time at which a rank can have run so many F's, B's and W's, rank by rank."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zbsolve.bounds.single import SingleRank
from zbsolve.opgraph import Int64

__all__ = ["counting", "effort"]

# Times stay below 2^60, so sums and differences with these marks neither overflow nor mix up.
_LARGEST_NS = 2**60
_REACHED = 2**61
_NEVER = _REACHED + _LARGEST_NS


@dataclass(frozen=True, slots=True)
class _Earliest:
    """The least start of an n-th F and end of an n-th gradient (n from 1, at list position n - 1), and of the end."""

    forwards: list[int]
    gradients: list[int]
    end: int


def effort(ranks: Sequence[SingleRank]) -> int:
    """How many rows of counts one pass over the ranks goes through; some twenty microseconds each."""
    return sum(rank.microbatches * (rank.in_flight + 1) for rank in ranks)


def counting(ranks: Sequence[SingleRank], *, makespan: bool, most_effort: int) -> int:
    """The least span of any rank, or the least makespan, by the counts of finished F's, B's and W's.

    Parameters
    ----------
    ranks
        Neighbours in the order of their stages; those left out only make the bound weaker.
    makespan
        Bound the makespan instead of the period.
    most_effort
        Once this many rows of counts have been gone through, no further rank is refined.

    Notes
    -----
    *One rank.* Walk along its row. After each operation, (x, y, z) counts the F's, the gradients and
    the weight gradients done; x >= y >= z, and memory is (x - y) held + (y - z) keep <= room. Let
    t(x, y, z) be the least time by which a row can have reached these counts, by its last operation:

    - F: max(t(x - 1, y, z), a(x)) + F, where a(x) is when an x-th F can start at all; let f(x) be
      the least start of an x-th F over all y and z;
    - B: max(t(x, y - 1, z), r(y)) + B; a fused backward the same from t(x, y - 1, z - 1), with its time;
    - W: t(x, y, z - 1) + W.

    The rank's last end is t(m, m, m), and what ends the iteration there comes after it.

    r(n) is when an n-th backward can start. The first n backwards of a row are of n microbatches, of
    which one has its F in place n or later; so r(n) >= f(n) + L, whatever the order of microbatches.
    Where runs of k are slices of one sequence, the first n backwards are of at least n / k sequences (rounded
    up), each with its last slice among them and so with k F's done: let n' be k times that. Then x >= n', and of
    these last slices one has its F in place n' or later: r(n) >= f(n') + L.
    By induction no row is faster than t; let g(n) be the least end of an n-th gradient.

    *Rank after rank.* Of neighbours s and s + 1, the first n F's of s + 1 need n F's of s, and the
    first n gradients of s need n of s + 1. With all times counted from one moment that gives
    ``a of s + 1 (n) >= f of s (n) + F + lag`` and ``r of s (n) >= g of s + 1 (n) + lag back``.

    *Period.* Count from the first start on rank s. Ranks before s are left out; for the later ones
    both relations hold, and t(m, m, m) on rank s bounds its span. Ranks are first taken from last
    to first, each counted from its own first start (the next rank starts at least F + lag later);
    then, for each s, once more down and up the ranks from s on.

    *Makespan.* Count from the first start on the first rank, which has its head before it;
    t(m, m, m) of any rank bounds the makespan, and so does g(m) + what follows on earlier stages.

    Every step replaces an unknown time by a proven least one, so stopping anywhere leaves a bound.
    Own proof.
    """
    if (
        max(r.head + r.tail + r.after + r.microbatches * (r.turn + r.forward + r.backward) for r in ranks)
        >= _LARGEST_NS
    ):
        return 0  # would not fit the arrays
    none = [0] * ranks[0].microbatches
    own: list[_Earliest] = []
    for rank in reversed(ranks):
        arrivals = none if not own else [rank.forward + rank.down + g + rank.up for g in own[0].gradients]
        own.insert(0, _earliest(rank, 0, none, arrivals, 0))
    if makespan:
        return ranks[0].head + _together(ranks, own, makespan=True)
    spent, best = effort(ranks), max(e.end for e in own)
    for s in sorted(range(len(ranks) - 1), key=lambda s: -own[s].end):
        spent += 2 * effort(ranks[s:])
        if spent > most_effort:
            break
        best = max(best, _together(ranks[s:], own[s:], makespan=False))
    return best


def _together(ranks: Sequence[SingleRank], own: Sequence[_Earliest], *, makespan: bool) -> int:
    """Down and up the ranks, all times counted from the first start on the first of them."""
    tails = [rank.tail if makespan else 0 for rank in ranks]
    first = [rank.head - ranks[0].head for rank in ranks]
    gradients = [[at + g for g in e.gradients] for at, e in zip(first, own, strict=True)]
    forwards = [own[0].forwards] * len(ranks)
    end = 0
    last = len(ranks) - 1
    for s in itertools.chain(range(len(ranks)), range(last - 1, -1, -1)):
        before = ranks[s - 1]
        starts = [f + before.forward + before.down for f in forwards[s - 1]] if s else [0] * ranks[0].microbatches
        arrivals = [g + ranks[s].up for g in gradients[s + 1]] if s < last else [0] * ranks[0].microbatches
        found = _earliest(ranks[s], first[s], starts, arrivals, tails[s])
        forwards[s], gradients[s] = found.forwards, found.gradients
        if makespan or s == 0:
            end = max(end, found.end)
    return end


def _earliest(rank: SingleRank, first: int, starts: list[int], arrivals: list[int], tail: int) -> _Earliest:
    """Go through the counts of one rank.

    Parameters
    ----------
    first
        Its least first start.
    starts, arrivals
        When its n-th F and its n-th backward can start, as far as other ranks are concerned.
    tail
        What must follow its last gradient on other ranks.
    """
    m = rank.microbatches
    shift = np.arange(m + 1, dtype=np.int64) * (rank.split[1] if rank.split else 0)
    forwards, gradients = [0] * (m + 1), [_NEVER] * (m + 1)
    end = _NEVER
    before: dict[int, Int64] = {0: np.full(1, first, dtype=np.int64)}  # by y: t(x - 1, y, z) for z = 0..y
    for x in range(1, m + 1):
        lowest = max(0, x - rank.in_flight)
        rows: dict[int, Int64] = {}
        forwards[x] = _NEVER
        for y in range(lowest, x):
            low = _least_weights(rank, x, y)
            start = np.maximum(before[y][low:], starts[x - 1])
            forwards[x] = min(forwards[x], int(start.min()))
            rows[y] = np.full(y + 1, _NEVER, dtype=np.int64)
            rows[y][low:] = start + rank.forward
        rows[x] = np.full(x + 1, _NEVER, dtype=np.int64)
        for y in range(lowest, x + 1):
            if y > lowest and (before_it := rank.sequences_of(y)) <= x:
                ready = max(forwards[before_it] + rank.turn_back, arrivals[y - 1])
                reached = _backwards(rank, rows[y - 1], ready, _least_weights(rank, x, y))
                gradients[y] = min(gradients[y], int(reached.min()))
                np.minimum(rows[y], reached, out=rows[y])
                if y == m:
                    end = int((reached + np.maximum(shift[::-1] + rank.after, tail)).min())
            if rank.split:
                # W's may follow: the least over z' <= z of t(x, y, z') + (z - z') W
                rows[y] = np.minimum.accumulate(rows[y] - shift[: y + 1])
                rows[y] += shift[: y + 1]
                _mark(rows[y])
        before = rows
    return _Earliest(forwards[1:], gradients[1:], end)


def _least_weights(rank: SingleRank, x: int, y: int) -> int:
    """The least z for which the counts x, y, z fit the memory; only asked where x - y microbatches fit."""
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
    _mark(reached)
    return reached


def _mark(times: Int64) -> None:
    """Set what is out of reach back to the mark, so that sums cannot grow."""
    times[times >= _REACHED] = _NEVER
