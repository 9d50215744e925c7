"""A later rank's work stands between the first forward and the last backward of an earlier one."""

from __future__ import annotations

from collections.abc import Sequence

from zbsolve.bounds.single import SingleRank
from zbsolve.bounds.two_phase import two_phase

__all__ = ["relay"]


def relay(ranks: Sequence[SingleRank], *, makespan: bool) -> int:
    """The least span of any rank, when its last gradient must wait for the last gradient of the next rank.

    Notes
    -----
    Let g(s) be the least time from the first start on rank s to the end of its last input gradient.

    - Before that end rank s has run all but the W's that then still wait. Just before it, the last
      backward was in flight and at most `kept_beside(1)` others waited; just after it, at most
      `kept_beside(0)` do. Each W left for later saves at most d (`SingleRank.deferred`), and the
      idle times of `two_phase` all lie before: ``g(s) >= two_phase(s) - d min(1 + kept_beside(1), kept_beside(0))``.
      (A W that fills idle time is not left for later, so none is counted twice.)
    - The next rank starts no earlier than F + lag after rank s does, its last gradient is there
      g(s + 1) later, and some backward on rank s still has to follow it:
      ``g(s) >= F + lag + g(s + 1) + lag back + least time to a gradient``.

    The span of rank s is at least ``F + lag + g(s + 1) + lag back + c`` with c its least backward. For the makespan,
    head(s) comes before it, and g(s) is followed by the backwards of the earlier stages.

    A slow rank deep in the pipeline thus bounds the span of the first one by its own work, less the
    few W's that its memory allows it to leave, plus the way there and back. Own proof.
    """
    best = 0
    following: int | None = None
    for rank in reversed(ranks):
        span = two_phase(rank)
        kept = min(1 + rank.kept_beside(1), rank.kept_beside(0)) if rank.split else 0
        until_gradient = span - kept * rank.deferred
        if following is not None:
            arrival = rank.forward + rank.down + following + rank.up
            span = max(span, arrival + rank.backward)
            until_gradient = max(until_gradient, arrival + rank.gradient)
        whole = span + rank.after
        best = max(best, rank.head + max(whole, until_gradient + rank.tail) if makespan else whole)
        following = until_gradient
    return best
