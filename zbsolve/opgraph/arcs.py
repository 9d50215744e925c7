"""What waits for what, and how long after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from zbsolve.errors import ProblemError
from zbsolve.opgraph.away import copies
from zbsolve.opgraph.kinds import OPTIMIZER, REDUCE, Int8, Int32, Int64
from zbsolve.opgraph.links import link_numbers
from zbsolve.opgraph.nodes import routes_of
from zbsolve.opgraph.parts import Parts
from zbsolve.problem import Problem
from zbsolve.units import MAX_AMOUNT


@dataclass(frozen=True, slots=True)
class Arcs:
    """Precedences as columns: start[head] >= end[tail] + lag; bytes are -1 where nothing is handed along.

    Where any of them queues: the number of its link, -1 if it has none, and how long it takes that; else empty.
    """

    tail: Int32
    head: Int32
    lag_ns: Int64
    bytes: Int64
    link: Int32 = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    busy_ns: Int64 = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


def forward_chain(problem: Problem, parts: Parts) -> Arcs:
    """F of a stage, then F of the next, with its output handed over."""
    return _chain(problem, parts.forward[:-1], parts.forward[1:], sender=0, receiver=1)


def backward_chain(problem: Problem, parts: Parts) -> Arcs:
    """B of a stage, then B of the one before it, with the gradient of that one's output."""
    return _chain(problem, parts.backward_input[1:], parts.backward_input[:-1], sender=1, receiver=0)


def _chain(problem: Problem, tail: Int32, head: Int32, *, sender: int, receiver: int) -> Arcs:
    """Arcs between the two sides of every boundary; row s of the tables is the boundary after stage s."""
    ranks = routes_of(problem)
    boundaries = len(ranks) - 1
    source, target = ranks[sender : boundaries + sender], ranks[receiver : boundaries + receiver]
    lag, size = np.zeros(tail.shape, dtype=np.int64), np.zeros(tail.shape, dtype=np.int64)
    for s in range(boundaries):
        for j in range(problem.microbatches):
            size[s, j] = problem.cost(s, j).output_bytes
    taken, busy = np.full(tail.shape, -1, dtype=np.int32), np.zeros(tail.shape, dtype=np.int64)
    number = link_numbers(problem)
    link = problem.profile.link
    for pair in np.unique(np.stack([source.ravel(), target.ravel()], axis=1), axis=0).tolist():
        if pair[0] == pair[1]:
            continue
        latency, bandwidth = link.between(*pair)
        crossing = (source == pair[0]) & (target == pair[1])
        lags = [latency + (0 if bandwidth is None else -(-b * 10**9 // bandwidth)) for b in size[crossing].tolist()]
        if max(lags) > MAX_AMOUNT:
            raise ProblemError(
                f"a transfer from rank {pair[0]} to rank {pair[1]} takes more than 2^62 ns; check the link"
            )
        lag[crossing] = lags
        if tuple(pair) in number:
            taken[crossing], busy[crossing] = number[tuple(pair)], lag[crossing] - latency
    return Arcs(tail.ravel(), head.ravel(), lag.ravel(), size.ravel(), taken.ravel(), busy.ravel())


def within_stage(parts: Parts) -> Arcs:
    """F, then B, then W (which a fused backward does by itself); between F and B what is done again, or moved."""
    split = parts.backward_input != parts.backward_weight
    again = parts.recompute >= 0
    away_tail, away_head = copies(parts)
    tail = np.concatenate(
        [parts.forward.ravel(), parts.backward_input[split], parts.forward[again], parts.recompute[again], away_tail]
    )
    head = np.concatenate(
        [
            parts.backward_input.ravel(),
            parts.backward_weight[split],
            parts.recompute[again],
            parts.backward_input[again],
            away_head,
        ]
    )
    return Arcs(tail, head, np.zeros(len(tail), dtype=np.int64), np.full(len(tail), -1, dtype=np.int64))


def end_of_iteration(parts: Parts, kind: Int8, stage: Int32, rank: Int32) -> list[Arcs]:
    """Every W of a stage, on every holder, then its reduction, if there is one, then its optimizer on each holder."""
    tails: list[Int32] = []
    heads: list[Int32] = []
    reduction = {(int(stage[n]), int(rank[n])): int(n) for n in np.flatnonzero(kind == REDUCE)}
    for node in np.flatnonzero((kind == REDUCE) | (kind == OPTIMIZER)).tolist():
        before = reduction.get((int(stage[node]), int(rank[node])), node)
        tails.append(parts.backward_weight[stage[node]] if before == node else np.asarray([before], dtype=np.int32))
        heads.append(np.full(len(tails[-1]), node, dtype=np.int32))
    if not heads:
        return []
    tail, head = np.concatenate(tails), np.concatenate(heads)
    return [Arcs(tail, head, np.zeros(len(tail), dtype=np.int64), np.full(len(tail), -1, dtype=np.int64))]


def join(families: Sequence[Arcs]) -> Arcs:
    """All of them in one."""
    return Arcs(
        np.concatenate([f.tail for f in families]).astype(np.int32),
        np.concatenate([f.head for f in families]).astype(np.int32),
        np.concatenate([f.lag_ns for f in families]),
        np.concatenate([f.bytes for f in families]),
        np.concatenate([f.link if len(f.link) else np.full(len(f.tail), -1, dtype=np.int32) for f in families]),
        np.concatenate([f.busy_ns if len(f.busy_ns) else np.zeros(len(f.tail), dtype=np.int64) for f in families]),
    )
