"""Annealing of parts of a large order, between borders in time that stay as they are.

A move in an order of a hundred thousand operations times all that follows it. Here a part of the order is
taken out as a network of its own: each rank's row begins with an operation that ends when the rank becomes
free, and ends with one that takes as long as what follows; what arrives from before the part hangs on a
*source*, and what is waited for behind it leads to a *sink*. The part's makespan then is the value of the
whole order under its present first starts, as far as paths cross the part, and a move costs what it
touches of the part. What comes out better is put back and the whole is timed exactly.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zbsolve.solver.budget import Budget
from zbsolve.solver.case import Case
from zbsolve.solver.compiled import ready_to_move
from zbsolve.solver.network import (
    BASE,
    LIMIT,
    MATE,
    NEED,
    NEED_LAG,
    NEED_PTR,
    NET_CHANGE,
    NET_DURATION,
    NET_START,
    OUT,
    OUT_PTR,
    RANK,
    ROWS,
    SHAPE,
    TWIN,
    WAIT_LAG,
    WAIT_PTR,
    WAIT_TAIL,
)
from zbsolve.solver.state import (
    AFTER,
    BEFORE,
    BEST,
    BEST_FUSED,
    BEST_SEQUENCE,
    DURATION,
    END,
    FUSED,
    LEVEL,
    PART,
    REG,
    SEQUENCE,
    VALUE,
    new_state,
)
from zbsolve.solver.tasks import AnnealParts, Find, Found

__all__ = ["Piece", "anneal_parts", "in_time", "take_out"]

Int64 = NDArray[np.int64]

_SIZES = (600, 1_500, 4_000)
"""Operations of a part."""

_SMALL, _SIZES_SMALL = 6_000, (20, 40)
"""Of an order with fewer operations than this a part has so many a rank."""

_TURNS, _MOVES = 8, 1_000
"""How often the temperature falls in one part, and the moves between."""

_TEMPERATURES = (0.1, 0.3, 0.6)
"""At the start, in mean operations of a rank; at the end a thirtieth of that."""

_TURNS_SMALL, _TEMPERATURES_SMALL = 20, (0.3, 0.6, 1.1)
"""The same where the whole is small and cheap to time: hot enough to leave a local optimum, so long that it pays."""

_WHOLE_MOVES = 10
"""Operations of the whole that are timed in the time of a move."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A part of an order as a network of its own.

    Parameters
    ----------
    net
        The network: the nodes of the part, then by rank what stands before and what behind, the source, the sink.
    sequence, fused
        Its order now, and by node whether it is fused.
    nodes
        The nodes of the part, as those of the whole.
    over
        What its makespan is above the value of the whole.
    """

    net: Int64
    sequence: Int64
    fused: Int64
    nodes: Int64
    over: int


def anneal_parts(task: AnnealParts, case: Case, budget: Budget, hand: Callable[[Find], None]) -> None:
    """Anneal one part after the other, at places of chance, and hand out each better order."""
    rng, nodes = random.Random(task.seed), case.nodes
    sequence, fused = task.sequence.astype(np.int64), task.fused.astype(np.int64)
    state = _loaded(case, sequence, fused)
    value = int(state[REG][VALUE])
    if value < 0:
        return
    switching = 0.15 if case.forms.matters else 0.0
    mean = value * case.problem.placement.ranks / nodes
    small = nodes < _SMALL
    sizes = tuple(size * case.problem.placement.ranks for size in _SIZES_SMALL) if small else _SIZES
    turns, temperatures = (_TURNS_SMALL, _TEMPERATURES_SMALL) if small else (_TURNS, _TEMPERATURES)
    while not budget.over and value > task.target_ns:
        sequence = in_time(state, sequence)
        size = min(rng.choice(sizes), nodes)
        low = rng.randint(-size // 2, nodes - size // 2)
        low = max(0, min(low, nodes - size))
        state = _loaded(case, sequence, fused)
        piece = take_out(case, state, low, low + size)
        budget.spend(2 * nodes // _WHOLE_MOVES)
        better = _annealed(case, piece, rng.choice(temperatures) * mean, turns, switching, rng.getrandbits(31), budget)
        if better is None:
            continue
        new, forms = sequence.copy(), fused.copy()
        new[low : low + size] = piece.nodes[better[0]]
        forms[piece.nodes] = better[1]
        trial = _loaded(case, new, forms)
        # the whole may hang on a path beside the part, or on first starts that move
        if 0 <= trial[REG][VALUE] <= value:
            state, sequence, fused = trial, new, forms
            if trial[REG][VALUE] < value:
                value = int(trial[REG][VALUE])
                hand(Found(value, sequence.astype(np.int32), fused.astype(np.int8)))


def _loaded(case: Case, sequence: Int64, fused: Int64) -> Any:
    state = new_state(case.network, sequence, fused, 0)
    if case.kernels.load(case.network, state, case.periodic) < 0:
        state[REG][VALUE] = -1
    return state


def in_time(state: Any, sequence: Int64) -> Int64:
    """A sequence by the times at which its nodes start, each still after what it needs."""
    start = np.asarray(state[END])[sequence] - np.asarray(state[DURATION])[sequence]
    # what takes no time starts with what needs it: the old sequence decides
    order: Int64 = sequence[np.argsort(start, kind="stable")]
    return order


def _annealed(
    case: Case, piece: Piece, first: float, turns: int, switching: float, seed: int, budget: Budget
) -> tuple[Int64, Int64] | None:
    """A better order of a piece, as places of its nodes, and what is fused in it; None if none was found."""
    net: Any = piece.net.tolist() if case.kernels.lists else piece.net
    state = ready_to_move(case.kernels, net, piece.sequence.tolist(), piece.fused.tolist(), seed, 0)
    if state is None:
        return None
    before = state[REG][VALUE]
    for turn in range(turns):
        if budget.over:
            break
        temperature = first * (1 / 30) ** (turn / turns)
        budget.spend(case.kernels.anneal_moves(net, state, _MOVES, temperature, 0, switching, 0))
    if state[REG][BEST] >= before:
        return None
    count, inner = len(piece.sequence), len(piece.nodes)
    best = np.asarray(state[BEST_SEQUENCE][:count], dtype=np.int64)
    return best[best < inner], np.asarray(state[BEST_FUSED][:inner], dtype=np.int64)


def take_out(case: Case, state: Any, low: int, high: int) -> Piece:
    """The places low..high - 1 of an order, which stands in time, as a network of its own.

    Parameters
    ----------
    case
        Of the whole.
    state
        The order, timed.
    low, high
        The places.
    """
    net, ranks, count = case.arrays, int(case.arrays[SHAPE][1]), case.nodes
    over = int(case.kernels.tails(case.network, state, case.periodic))
    end, follows, level = (np.asarray(state[row]) for row in (END, PART, LEVEL))
    duration, behind = np.asarray(state[DURATION]), np.asarray(state[AFTER])
    sequence = np.asarray(state[SEQUENCE][:count])
    inside = sequence[low:high]
    size = len(inside)
    source, sink = size + 2 * ranks, size + 2 * ranks + 1
    index = np.full(count, -1, dtype=np.int64)
    index[inside] = np.arange(size)
    rank = net[RANK][inside]

    before, base = np.zeros(ranks, dtype=np.int64), np.asarray(net[BASE][:ranks]).copy()
    after = np.zeros(ranks, dtype=np.int64)
    for r in range(ranks):
        mine = inside[rank == r]
        last = count + r if not len(mine) else int(mine[-1])
        if len(mine):
            base[r] = level[mine[0]]
            ahead = int(np.asarray(state[BEFORE])[mine[0]])
        else:
            earlier = sequence[:low][net[RANK][sequence[:low]] == r]
            ahead = last = int(earlier[-1]) if len(earlier) else count + r
        before[r] = end[ahead]
        next_ = int(behind[last])
        first = int(end[count + r]) if case.periodic else 0
        after[r] = over + (follows[next_] + duration[next_] if next_ >= 0 else -first)

    head = np.repeat(np.arange(count), np.diff(net[WAIT_PTR][: count + 1]))
    tail, lag = net[WAIT_TAIL][: len(head)], net[WAIT_LAG][: len(head)]
    to, since = index[head], index[tail]
    within, enters, leaves = (to >= 0) & (since >= 0), (to >= 0) & (since < 0), (to < 0) & (since >= 0)
    arrives = np.full(size, -1, dtype=np.int64)
    np.maximum.at(arrives, to[enters], end[tail[enters]] + lag[enters])
    handed = np.full(size, -1, dtype=np.int64)
    np.maximum.at(handed, since[leaves], over + lag[leaves] + duration[head[leaves]] + follows[head[leaves]])
    fed, feeding = np.flatnonzero(arrives >= 0), np.flatnonzero(handed >= 0)
    waits = _Arcs(
        np.concatenate([since[within], np.full(len(fed), source), feeding]),
        np.concatenate([to[within], fed, np.full(len(feeding), sink)]),
        np.concatenate([lag[within], arrives[fed], handed[feeding]]),
    )
    heads = np.repeat(np.arange(count), np.diff(net[NEED_PTR][: count + 1]))
    tails, lags = net[NEED][: len(heads)], net[NEED_LAG][: len(heads)]
    own = (index[heads] >= 0) & (index[tails] >= 0)
    all_, zeros = np.arange(size), np.zeros(size, dtype=np.int64)
    needs = _Arcs(
        np.concatenate([index[tails[own]], size + rank, all_, np.full(len(fed), source), feeding]),
        np.concatenate([index[heads[own]], all_, size + ranks + rank, fed, np.full(len(feeding), sink)]),
        np.concatenate([lags[own], zeros, zeros, zeros[: len(fed)], zeros[: len(feeding)]]),
    )
    return Piece(
        net=_table(case, inside, index, before, after, base, waits, needs),
        sequence=np.concatenate(
            [[source], size + np.arange(ranks), all_, size + ranks + np.arange(ranks), [sink]], dtype=np.int64
        ),
        fused=np.concatenate([np.asarray(state[FUSED])[inside], np.zeros(2 * ranks + 2, dtype=np.int64)]),
        nodes=inside.astype(np.int64),
        over=over,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Arcs:
    """Arcs of a piece."""

    tail: Int64
    head: Int64
    lag: Int64


def _table(
    case: Case, inside: Int64, index: Int64, before: Int64, after: Int64, base: Int64, waits: _Arcs, needs: _Arcs
) -> Int64:
    """The rows of a piece's network that moves look at."""
    net, ranks, size = case.arrays, len(before), len(inside)
    total = size + 2 * ranks + 2
    rows: dict[int, Any] = {
        SHAPE: [total, ranks + 2, 0, case.problem.microbatches, 0],
        RANK: np.concatenate([net[RANK][inside], np.arange(ranks), np.arange(ranks), [ranks, ranks + 1]]),
        TWIN: np.concatenate([net[TWIN][inside], net[TWIN].max() + 1 + np.arange(2 * ranks + 2)]),
        MATE: np.full(total, -1, dtype=np.int64),
        NET_DURATION: np.zeros(2 * total, dtype=np.int64),
        NET_START: np.zeros(2 * total, dtype=np.int64),
        NET_CHANGE: np.zeros(2 * total, dtype=np.int64),
        BASE: np.concatenate([base, [0, 0]]),
        LIMIT: np.concatenate([net[LIMIT][:ranks], [0, 0]]),
    }
    mate = net[MATE][inside]
    rows[MATE][:size] = np.where(mate >= 0, index[mate], -1)
    for form in (0, 1):
        for row in (NET_DURATION, NET_START, NET_CHANGE):
            rows[row][form : 2 * size : 2] = net[row][2 * inside + form]
        rows[NET_DURATION][2 * size + form : 2 * (size + ranks) : 2] = before
        rows[NET_DURATION][2 * (size + ranks) + form : 2 * (size + 2 * ranks) : 2] = after
    for arcs, pointer, tails, lags in ((waits, WAIT_PTR, WAIT_TAIL, WAIT_LAG), (needs, NEED_PTR, NEED, NEED_LAG)):
        by_head = np.argsort(arcs.head, kind="stable")
        rows[pointer] = np.concatenate([[0], np.cumsum(np.bincount(arcs.head, minlength=total))])
        rows[tails], rows[lags] = arcs.tail[by_head], arcs.lag[by_head]
    rows[OUT_PTR] = np.concatenate([[0], np.cumsum(np.bincount(waits.tail, minlength=total))])
    rows[OUT] = waits.head[np.argsort(waits.tail, kind="stable")]
    table = np.zeros((ROWS, max(map(len, rows.values()))), dtype=np.int64)
    for row, given in rows.items():
        table[row][: len(given)] = given
    return table
