"""Idle time that the turn-around L forces on a rank at the start and at the end of an iteration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from zbsolve.bounds.single import SingleRank

__all__ = ["two_phase", "two_phase_of_chunks"]


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


def two_phase_of_chunks(chunks: Sequence[SingleRank], way: int, back: int) -> int:
    """The same for a rank with several stages on one route.

    Parameters
    ----------
    chunks
        Its stages, first to last.
    way, back
        Least time from the start of F of the first to that of the last, and from the start of a backward of the last to
        that of the first, spent there and on other ranks.

    Notes
    -----
    *Before the first backward.* Of a microbatch the last chunk's backward is the first on the rank. So the first
    backward of all is one of the last chunk; it starts at least ``way + L`` after the F of its microbatch on the first
    chunk, L being that of the last. Only F's run before, and none of what they hold is freed: with n_1 >= n_2 >= ...
    of the chunks (a microbatch comes by one after the other), sum of n held <= room. If m_i microbatches got just so
    far as chunk i, they did V_i = F_1 + ... + F_i and hold H_i = held_1 + ... + held_i each; so the F's take at most
    ``room x max V_i / H_i``, where room may be rounded down to what the held bytes can add up to.

    *After the last F.* It is of the last chunk, of microbatch j say, and starts at x. The backward of j on the first
    chunk starts no earlier than ``x + L + back``. Until then the rank has only what was in memory at x: of j the
    backwards of the other chunks; of the others, in room less what j holds on all chunks, whole backwards c at held
    bytes each, and W's alone, which gain d at most, at keep bytes each. So they take at most
    ``rest x max(c / held, d / keep)``.

    *Together* as for one stage: if the last F comes after the first backward, the idle times add, and that F is not
    among those before. Else all F's come first, which needs room for all of them, and the larger counts. Own proof.
    """
    first, last = chunks[0], chunks[-1]
    m, room = first.microbatches, first.room
    work = sum(chunk.work for chunk in chunks)
    forwards = m * sum(chunk.forward for chunk in chunks)
    common = math.gcd(*(chunk.held for chunk in chunks)) or 1
    filled = _most_forwards(chunks, room // common * common)
    arrives = way + last.turn

    own = sum(chunk.backward for chunk in chunks[1:])
    others = (m - 1) * sum(chunk.backward for chunk in chunks)
    drained = _most_backwards(chunks, room - sum(chunk.held for chunk in chunks))
    leaves = last.turn - last.forward + back

    before_last = forwards - last.forward
    idle1 = max(0, arrives - (before_last if filled is None else min(before_last, filled)))
    idle2 = max(0, leaves - own - (others if drained is None else min(others, drained)))
    cases = [idle1 + idle2]
    if m * sum(chunk.held for chunk in chunks) <= room:
        cases.append(max(0, arrives - forwards, leaves - own - others))
    return work + min(cases)


def _most_forwards(chunks: Sequence[SingleRank], room: int) -> int | None:
    """The longest that F's can run while nothing is freed; None if memory does not limit them."""
    best, taken, held = Fraction(0), 0, 0
    for chunk in chunks:
        taken, held = taken + chunk.forward, held + chunk.held
        if taken and not held:
            return None
        if held:
            best = max(best, Fraction(taken, held))
    return math.floor(room * best)


def _most_backwards(chunks: Sequence[SingleRank], room: int) -> int | None:
    """The longest that backwards of what fits into some room can run; None if memory does not limit them."""
    best = Fraction(0)
    for chunk in chunks:
        works = [(chunk.backward, chunk.held)]
        if chunk.split is not None:
            works.append((chunk.deferred, chunk.split[2]))
        for work, held in works:
            if work and not held:
                return None
            if work:
                best = max(best, Fraction(work, held))
    return math.floor(max(0, room) * best)
