"""Idle time that the turn-around L forces on a rank at the start and at the end of an iteration."""

from __future__ import annotations

from zbsolve.bounds.single import SingleRank

__all__ = ["two_phase"]


def two_phase(rank: SingleRank) -> int:
    """The least span of a rank: its work, the idle time before its first and before its last backward.

    Notes
    -----
    Let n be the number of F's before the first backward in the rank's row, and c the least backward.

    *Before the first backward* only F's can run. It starts at least L after the first F, so the
    rank idles at least ``idle1(n) = max(0, L - n F)``; and n <= K, as none of the n is freed yet.

    *Before the last backward to come.* Let the last F start at x, its backward no earlier than
    x + L. Between x + F and x + L only backwards of other microbatches can run, of those whose bytes
    are there at x: a - 1 whole ones, with the last F itself a in flight, and b that wait for W, with
    a x held + b x keep <= room and a + b <= m. A backward longer than c lengthens work and shortens
    idle time by no more, so c may be taken for each of the a - 1; for each of the b, W less what its
    split costs above c (`SingleRank.deferred`, d):
    ``idle2 = max(0, L - F - max over a, b of ((a - 1) c + b d))``. Where W keeps 0 bytes, b is
    limited by m - a only.

    *Together.* If n < m, the last F comes after the first backward in the row; the two intervals
    share no time and the idle times add. One backward has begun before x, so a <= m - 1. Idle1
    falls with n, so n = min(K, m - 1). If n = m, which needs m <= K, all F's come first: the last F
    starts (m - 1) F after the first at the earliest, and the rank idles at least
    ``max(L - m F, L - F - (m - 1) c)``, the second as for idle2 with a = m, b = 0. The bound is the
    lesser of the two cases. At equal stages, K = p and zero latency it makes the bubble at least
    (p - 1)(F + B - W).

    *Slices.* Of a sequence in k slices the last turns back first, so before the first backward k F's of one
    sequence have run: the backward starts lead + L after the first F at least (lead: F of the other k - 1),
    ``idle1(n) = max(0, lead + L - n F)`` and n >= k. The last F of the row is that of a last slice, and until
    its backward none of its sequence can run, so k of the a in flight wait: a >= k, and a - k whole
    backwards of others fill the time. L may be the least of last slices alone.

    Own proof; the two phases are those of the zero-bubble paper's ZB-H1 and ZB-H2 (arXiv 2401.10241).
    """
    m, forward, backward, most, own = rank.microbatches, rank.forward, rank.backward, rank.in_flight, rank.slices
    turn = rank.turn_back
    cases = []
    before_last = min(most, m - 1)
    if before_last >= own:
        idle1 = max(0, rank.lead + turn - before_last * forward)
        filled = max((a - own) * backward + rank.kept_beside(a) * rank.deferred for a in range(own, before_last + 1))
        cases.append(idle1 + max(0, turn - forward - filled))
    if m <= most:
        cases.append(max(0, rank.lead + turn - m * forward, turn - forward - (m - own) * backward))
    return rank.work + min(cases)
