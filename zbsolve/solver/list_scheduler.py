"""A list scheduler: commit, again and again, the operation that can start first.

The clock of the whole pipeline decides: of all ranks' candidates the one with the smallest
``max(rank free, data ready) + penalty + noise`` is committed. A penalty is lookahead: a weight
gradient with penalty d starts only if no other operation anywhere could start within the next d,
so an input that is about to arrive is not kept waiting. Forwards are admitted by a limit on how
many may be in flight and by memory.

Why it never stands still under any limit that holds one microbatch: a forward is admitted only if
memory still leaves room for the oldest unfinished microbatch of its rank to run to its end once
the weight gradients that can run have run. The oldest unfinished microbatch of the whole pipeline
is the oldest on every rank where it is unfinished, so it can always go on.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from zbsolve.opgraph import KINDS
from zbsolve.ops import Kind
from zbsolve.solver.pattern import Pattern

__all__ = ["Draft", "Rule", "list_schedule"]

_FORWARD = KINDS.index(Kind.FORWARD)
_BACKWARD_WEIGHT = KINDS.index(Kind.BACKWARD_WEIGHT)
NEVER = 2**62
"""As a limit on forwards in flight: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a list scheduler prefers.

    Parameters
    ----------
    penalty
        For each class, in ns.
    in_flight
        For each class the most forwards ahead of their input gradients; only forwards are asked.
    noise
        Standard deviation of what is added at random to each priority, in ns.
    urgent
        Drop the penalty of weight gradients on a rank where memory holds something else up.
    seed
        Of the noise.
    """

    penalty: Sequence[float]
    in_flight: Sequence[int]
    noise: float = 0.0
    urgent: bool = True
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Draft:
    """What a list scheduler made.

    Parameters
    ----------
    sequence
        All nodes in the order of their commitment: each stands after what it needs.
    span_ns
        The longest a rank is busy from first start to last end: a period that the order attains.
    makespan_ns
        The last end.
    """

    sequence: list[int]
    span_ns: int
    makespan_ns: int


def list_schedule(pattern: Pattern, rule: Rule) -> Draft | None:
    """Make one order; None if the rule's limits or the memory leave no way on.

    Parameters
    ----------
    pattern
        The classes of the graph.
    rule
        What to prefer.
    """
    p = pattern
    rank, kind, duration, needs, succs = p.rank, p.kind, p.duration, p.needs, p.succs
    start_bytes, limit, members, of_rank, partner = p.start_bytes, p.limit, p.members, p.of_rank, p.partner
    penalty, urgent = rule.penalty, rule.urgent
    net = [a + b for a, b in zip(p.start_bytes, p.end_bytes, strict=True)]
    in_flight = _in_flight(p, rule.in_flight)
    admission = None if p.single else _Admission(p)
    gauss = random.Random(rule.seed).gauss
    noise = rule.noise
    done = [0] * p.classes
    ready: list[list[int]] = [[0] * len(members[c]) if not needs[c] else [] for c in range(p.classes)]
    partial: list[list[int]] = [[0] * len(members[c]) if needs[c] > 1 else [] for c in range(p.classes)]
    missing: list[list[int]] = [[needs[c]] * len(members[c]) if needs[c] > 1 else [] for c in range(p.classes)]
    free, first, level = [0] * p.ranks, [-1] * p.ranks, list(p.base)
    version = [0] * p.ranks
    heap: list[tuple[float, int, int, int, int]] = []
    sequence: list[int] = []

    def offer(r: int) -> None:
        """Put the best candidate of a rank on the heap."""
        now, room = free[r], limit[r] - level[r]
        best, choice, begin, short = 1e300, -1, 0, False
        for c in of_rank[r]:
            k = done[c]
            times = ready[c]
            if k >= len(times):
                continue
            if start_bytes[c] > room:
                short = True
                continue
            if kind[c] == _FORWARD and (
                k - done[partner[c]] >= in_flight[c] or (admission is not None and not admission.admits(c, k))
            ):
                continue
            at = times[k]
            if at < now:  # noqa: PLR1730  (a call of max costs four times as much here)
                at = now
            key = at if short and urgent and kind[c] == _BACKWARD_WEIGHT else at + penalty[c]
            if noise:
                key += gauss(0.0, noise)
            if key < best:
                best, choice, begin = key, c, at
        version[r] += 1
        if choice >= 0:
            heappush(heap, (best, r, version[r], choice, begin))

    for r in range(p.ranks):
        offer(r)
    while heap:
        _, r, stamp, c, begin = heappop(heap)
        if stamp != version[r]:
            continue
        k = done[c]
        end = begin + duration[c]
        if first[r] < 0:
            first[r] = begin
        done[c] = k + 1
        free[r] = end
        level[r] += net[c]
        if admission is not None:
            admission.commit(c, k)
        sequence.append(members[c][k])
        for head, lag in succs[c]:
            at = end + lag
            if needs[head] > 1:
                partial[head][k] = at = max(at, partial[head][k])
                missing[head][k] -= 1
                if missing[head][k]:
                    continue
            ready[head].append(at)
            if rank[head] != r and done[head] == k:
                offer(rank[head])
        offer(r)
    if len(sequence) < len(p.graph):
        return None
    span = max((e - s for s, e in zip(first, free, strict=True) if s >= 0), default=0)
    return Draft(sequence, span, max(free))


def _in_flight(p: Pattern, asked: Sequence[int]) -> list[int]:
    """The rule's limits, at least 1, and with one chunk a rank at most what memory can see through."""
    allowed = [max(1, a) for a in asked]
    if p.single:
        for c, r in enumerate(p.rank):
            if p.kind[c] == _FORWARD and p.held[r]:
                allowed[c] = min(allowed[c], max(0, p.limit[r] - p.base[r] - p.spare[r]) // p.held[r])
    return allowed


class _Admission:
    """Room for every microbatch in flight to end, one after the other, where chunks, routes or operations differ."""

    def __init__(self, p: Pattern) -> None:
        self.p = p
        count = 1 + max(max(m) for m in p.microbatches)
        # by rank and microbatch: bytes held now, bytes once all forwards have run, bytes needed beyond, steps to go
        self.held, self.full, self.extra, self.left = ([[0] * count for _ in range(p.ranks)] for _ in range(4))
        self.oldest, self.newest = [0] * p.ranks, [0] * p.ranks
        self.forward = [-1] * p.classes
        for c, r in enumerate(p.rank):
            if p.kind[c] == _BACKWARD_WEIGHT:
                continue
            net = p.start_bytes[c] + p.end_bytes[c] if p.kind[c] == _FORWARD else 0
            if p.kind[c] == _FORWARD:
                self.forward[p.partner[c]] = c
            for j in p.microbatches[c]:
                self.left[r][j] += 1
                self.full[r][j] += net
                self.extra[r][j] = max(self.extra[r][j], p.start_bytes[c] - net)
        for r in range(p.ranks):
            self._advance(r)

    def _advance(self, r: int) -> None:
        left = self.left[r]
        while self.oldest[r] < len(left) and not left[self.oldest[r]]:
            self.oldest[r] += 1

    def admits(self, c: int, k: int) -> bool:
        p, r = self.p, self.p.rank[c]
        asked = p.microbatches[c][k]
        oldest, held, full, extra = self.oldest[r], self.held[r], self.full[r], self.extra[r]
        if asked == oldest:
            return True
        room = p.limit[r] - p.base[r]
        behind = 0
        for j in range(max(asked, self.newest[r]), oldest - 1, -1):
            if j in (oldest, asked) or held[j]:
                if behind + full[j] + extra[j] > room:
                    return False
                behind += held[j] + (p.start_bytes[c] + p.end_bytes[c] if j == asked else 0)
        return True

    def commit(self, c: int, k: int) -> None:
        p, r = self.p, self.p.rank[c]
        if p.kind[c] == _BACKWARD_WEIGHT:
            return
        j = p.microbatches[c][k]
        own = c if p.kind[c] == _FORWARD else self.forward[c]
        change = p.start_bytes[own] + p.end_bytes[own]
        self.held[r][j] += change if own == c else -change
        self.newest[r] = max(self.newest[r], j)
        self.left[r][j] -= 1
        self._advance(r)
