"""Every microbatch occupies bytes for some time; a rank offers no more than its limit times its span."""

from __future__ import annotations

import itertools

from zbsolve.bounds.single import SingleRank

__all__ = ["memory_time"]

Steps = list[tuple[int, int]]
"""A rising step function of time: (from when, level), times rising, levels rising."""


def memory_time(rank: SingleRank) -> int:
    """The least span of a rank in which the bytes that its microbatches occupy find room.

    Notes
    -----
    *Asked.* From the start of F to the start of the backward pass at least L. A split microbatch
    occupies at least ``held L + max(held, keep) B + keep W`` bytes x ns, a fused one
    ``held (L + fused)``; with q the least over what is possible, all together at least m q. Slices but
    the last of a sequence wait longer than L (`SingleRank.longer`), each for ``held`` times as much more.

    *Offered.* At each moment a x held + b x keep bytes are occupied, with whole a and b and
    a + b <= m; let M be the most of this within room. Let T be the rank's span.

    - Fill: at time t after the first start, at most n(t) = 1 + floor(t / F) F's have started, so
      at most n(t) x max(held, keep) bytes are occupied; until the first backward can have taken or
      freed anything (L + its least length; L alone where keep > held) at most
      min(n(t), K) x held. Call the least of these and M: U(t).
    - Drain: what is occupied s before the end is freed by operations that end in the last s.
      Of these, all but the one that may already be running lie within s. If that one is a W, it
      frees keep; if a B, it counts max(held, keep) and its W follows; if fused, held.
      Beside it, x microbatches with W alone left and y with the whole backward left need
      x W + y c within s (c the least backward) and occupy x keep + y held. Call the most: V(s).

    So m q <= C(T), the integral of min(U(t), V(T - t)) over 0..T. As U and V rise, C rises, and
    the least T with C(T) >= m q is a bound. Where the ramps do not touch, C(T) is M T less what U
    and V leave unused; where they do, only the lower of the two counts at each moment.

    Own proof.
    """
    m = rank.microbatches
    keep = rank.split[2] if rank.split else 0
    largest = max(rank.held, keep)
    if rank.room >= m * largest:
        return 0  # memory for all at once: two-phase says as much
    top = max(a * rank.held + rank.kept_beside(a) * keep for a in range(rank.in_flight + 1))
    asked = []
    if rank.split:
        asked.append(rank.held * rank.turn + largest * rank.split[0] + keep * rank.split[1])
    if rank.fused is not None:
        asked.append(rank.held * (rank.turn + rank.fused))
    fill, drain = _fill(rank, top, largest, keep), _drain(rank, top, keep)
    return _least_span(fill, drain, top, m * min(asked) + rank.held * rank.longer)


def _fill(rank: SingleRank, top: int, largest: int, keep: int) -> Steps:
    """U: the most bytes occupied at time t after the rank's first start."""
    alone = rank.turn + (rank.gradient if keep <= rank.held else 0)
    points = {n * rank.forward for n in range(rank.microbatches)} | {alone}
    steps: Steps = []
    for at in sorted(points):
        started = min(rank.microbatches, 1 + at // rank.forward) if rank.forward else rank.microbatches
        level = min(started, rank.in_flight) * rank.held if at < alone else min(top, started * largest)
        _raise(steps, at, level)
        if level >= top:
            break
    return steps


def _drain(rank: SingleRank, top: int, keep: int) -> Steps:
    """V: the most bytes occupied at time s before the rank's last end."""
    running = [] if rank.fused is None else [(0, rank.held)]
    weight = 0
    if rank.split:
        weight = rank.split[1]
        running += [(0, keep), (weight, max(rank.held, keep))]
    points: list[tuple[int, int]] = []
    for whole in range(rank.in_flight + 1):
        waiting = rank.kept_beside(whole)
        for alone in range(min(waiting, rank.microbatches - 1 - whole) + 1):
            time, bytes_ = alone * weight + whole * rank.backward, alone * keep + whole * rank.held
            points += [(time + at, min(top, bytes_ + more)) for at, more in running]
    steps: Steps = []
    for at, level in sorted(points):
        _raise(steps, at, level)
    return steps


def _raise(steps: Steps, at: int, level: int) -> None:
    """Append a step if it rises, in place of one at the same time."""
    if steps and level <= steps[-1][1]:
        return
    if steps and steps[-1][0] == at:
        steps.pop()
    steps.append((at, level))


def _least_span(fill: Steps, drain: Steps, top: int, asked: int) -> int:
    """The least whole T for which the integral of min(U(t), V(T - t)) over 0..T reaches `asked`."""
    if asked == 0:
        return 0
    apart = fill[-1][0] + drain[-1][0]
    span = -(-(asked + _unused(fill, top) + _unused(drain, top)) // top)
    if span > apart:
        return span
    low, high = 0, apart  # C(apart) = top * apart - unused >= asked here
    while low < high:
        middle = (low + high) // 2
        if _offered(fill, drain, middle) >= asked:
            high = middle
        else:
            low = middle + 1
    return low


def _unused(steps: Steps, top: int) -> int:
    """The integral of top - level, up to where the level is reached for good."""
    return sum((after[0] - at) * (top - level) for (at, level), after in itertools.pairwise(steps)) + steps[0][0] * top


def _offered(fill: Steps, drain: Steps, span: int) -> int:
    """The integral of min(U(t), V(span - t)) over 0..span."""
    cuts = sorted({0, span, *(t for t, _ in fill if t < span), *(span - s for s, _ in drain if s < span)})
    total, up, down = 0, 0, len(drain) - 1
    for begin, end in itertools.pairwise(cuts):
        while up + 1 < len(fill) and fill[up + 1][0] <= begin:
            up += 1
        while down >= 0 and drain[down][0] > span - end:
            down -= 1
        if down >= 0 and fill[up][0] <= begin:
            total += (end - begin) * min(fill[up][1], drain[down][1])
    return total
