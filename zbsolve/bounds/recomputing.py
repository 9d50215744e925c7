"""A rank whose memory is too small for all forwards to be kept must compute some of them again, in its own time."""

from __future__ import annotations

from zbsolve.bounds.single import SingleRank

__all__ = ["recomputing"]


def recomputing(rank: SingleRank) -> int:
    """The least span of a rank over all numbers of microbatches that it computes again; 0 where that is not asked.

    Notes
    -----
    Let A be what a forward holds whole, C its checkpoint, c what computing it again takes, g the least time from the
    start of a backward to its gradient, and L the turn: the backward starts at least L after its forward.

    - A forward that is kept occupies A from its start until its gradient is there: at least ``A (L + g)``
      bytes x ns.
    - One that is computed again occupies C from its start, and A from when that begins: at least c before the
      backward, and until the gradient. Since C is at most A, that is at least ``C L + (A - C) c + A g``.

    At no moment do these occupy more than the room R (net of workspace: what stands between two operations is
    no more than what stood during the first, less its workspace). So with x of m microbatches computed again
    the span T keeps ``R T >= (m - x) A (L + g) + x (C L + (A - C) c + A g)``. As no more than R // A of them
    are there whole at once, also ``(R // A) T >= (m - x) (L + g) + x (c + g)``. And the rank works on top of its
    least work x c more. The least over x of the greatest of the three is a bound, whatever x is chosen.

    Own proof. It does not hold where forwards may be moved away as well, which takes no time of the rank.
    """
    if rank.again is None or rank.whole <= rank.held:
        return 0
    gone = rank.held * rank.turn + (rank.whole - rank.held) * rank.again + rank.whole * rank.gradient
    at_once = rank.room // rank.whole
    kept = rank.whole * (rank.turn + rank.gradient)
    return min(
        max(
            -(-((rank.microbatches - x) * kept + x * gone) // rank.room),
            -(-((rank.microbatches - x) * (rank.turn + rank.gradient) + x * (rank.again + rank.gradient)) // at_once),
            rank.work + x * rank.again,
        )
        for x in range(rank.microbatches + 1)
    )
