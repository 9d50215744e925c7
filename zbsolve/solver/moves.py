"""Kernels of the order search: one move tried, timed, kept or taken back.

An order is held as a sequence of all nodes in which each stands after what it needs, so timing is one
pass and a move a local rearrangement: to put v in front of u in its row, the part of the sequence
from u to v is split into what v needs, which goes with it, and the rest, which stays behind.

A move is refused where nodes of one twin class would change places, where v needs a node it would
overtake, where memory would exceed the limit (running sums tell), or where v needs u through other
ranks, which would close a circle.

Timing is incremental. A node is *due* when something it waits for has changed; due nodes are timed
in the order of the sequence, from the first place that changed on until none is due. What is
overwritten goes into a journal, so that a refused move costs what it touched.

The period of an order is the least T for which some vector x of first starts, one a rank, has every
rank done within T of its first start (see `zbsolve.simulate`). x is kept from one order to the next.
Whether a move is taken is a question with a threshold drawn beforehand: is there an x with every rank
within the threshold? A rank that is late hangs on some rank's first start. If that is its own, no x
can help; if it is another's, its own first start moves up and its nodes become due.

Everything here is plain Python over tables of rows (`zbsolve.solver.network`); `zbsolve.solver.compiled`
compiles the same functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from zbsolve.solver.network import (
    BASE,
    LIMIT,
    MATE,
    NEED,
    NEED_PTR,
    NET_CHANGE,
    NET_DURATION,
    NET_START,
    OUT,
    OUT_PTR,
    RANK,
    SHAPE,
    TWIN,
    WAIT_LAG,
    WAIT_PTR,
    WAIT_TAIL,
    Row,
    Table,
)

__all__ = ["new_state"]

SEQUENCE, PLACE = range(2)
"""All nodes, each after what it needs; where each node stands in it."""

BEFORE, AFTER, LAST = range(2, 5)
"""Row neighbours of each node, ``N + r`` before the first of rank r, -1 after the last; last node by rank, or N + r."""

LEVEL, DURATION, START, CHANGE, FUSED = range(5, 10)
"""Bytes on its rank before each node starts; what each node takes in its present form; whether that is fused."""

END = 10
"""End of each node; behind them the first start x of each rank."""

DUE, MARK, RANK_MARK, PART, REST = range(11, 16)
"""Nodes to be timed; marks of nodes and ranks in the present move; scratch for the new content of a stretch."""

SAVED, JOURNAL_NODE, JOURNAL_END = range(16, 19)
"""Marks of what the journal has of the present move; its nodes; their ends before."""

CHAIN, BLOCKED = range(19, 21)
"""The critical chain; those of it that wait for nothing but their row predecessor."""

FREE, HANGS, PATH_FROM, PATH_LENGTH, RAISED_FROM, RAISED_LENGTH, SEEN, ORIGIN = range(21, 29)
"""Scratch of the exact period, by rank, the last by node."""

BEST_SEQUENCE, BEST_FUSED = range(29, 31)
"""The best order so far."""

TABU_EARLIER, TABU_LATER = range(31, 33)
"""By node: until which step of a tabu search it may not move earlier, or later."""

REG = 33
"""Single numbers, at the places below."""

VALUE, BEST, STAMP, PENDING, WRITTEN, RANDOM_1, RANDOM_2, CHAINED, BLOCKS, STEP = range(10)
"""Objective value and its best; number of the present move; nodes due; entries of the journal; two states of the
random numbers; lengths of the critical chain and of its blocked part; steps of a tabu search."""

ROUNDS = 6
"""Times that first starts are moved up before an order counts as too long."""


def new_state(net: Table, sequence: Any, fused: Any, seed: int) -> Table:
    """An order in motion, of the kind that the network has; `load` fills it."""
    nodes, ranks = int(net[SHAPE][0]), int(net[SHAPE][1])
    state: Any = np.zeros((REG + 1, max(nodes + ranks, STEP + 1)), dtype=np.int64)
    state[SEQUENCE][:nodes] = sequence
    state[FUSED][:nodes] = fused
    state[REG][RANDOM_1] = 1 + (seed * 1_000_003 + 12_345) % 2_147_483_562
    state[REG][RANDOM_2] = 1 + (seed * 7_919 + 987_654) % 2_147_483_398
    made: Table = state.tolist() if isinstance(net, list) else state
    return made


def draw(st: Table) -> float:
    """A random number from 0 up to 1 (L'Ecuyer's combined generator, CACM 31, 1988)."""
    reg = st[REG]
    reg[RANDOM_1] = reg[RANDOM_1] * 40014 % 2147483563
    reg[RANDOM_2] = reg[RANDOM_2] * 40692 % 2147483399
    return ((reg[RANDOM_1] - reg[RANDOM_2]) % 2147483562) / 2147483562.0


def load(net: Table, st: Table, periodic: int) -> int:
    """Set the state up for its `sequence` and `fused`; the value, or -1 if it exceeds the memory."""
    nodes, ranks = net[SHAPE][0], net[SHAPE][1]
    for r in range(ranks):
        st[LAST][r] = nodes + r
        st[FREE][r] = net[BASE][r]
        st[END][nodes + r] = 0
        if net[BASE][r] > net[LIMIT][r]:
            return -1
    for i in range(nodes):
        node = st[SEQUENCE][i]
        form = 2 * node + st[FUSED][node]
        st[DURATION][node] = net[NET_DURATION][form]
        st[START][node] = net[NET_START][form]
        st[CHANGE][node] = net[NET_CHANGE][form]
        r = net[RANK][node]
        st[PLACE][node] = i
        st[BEFORE][node] = st[LAST][r]
        st[AFTER][st[LAST][r]] = node
        st[AFTER][node] = -1
        st[LAST][r] = node
        st[LEVEL][node] = st[FREE][r]
        if st[FREE][r] + st[START][node] > net[LIMIT][r]:
            return -1
        st[FREE][r] += st[CHANGE][node]
        st[DUE][node] = 0
    st[REG][PENDING] = 0
    settle(net, st, periodic)
    st[REG][BEST] = st[REG][VALUE]
    keep(net, st)
    return st[REG][VALUE]


def keep(net: Table, st: Table) -> None:
    """Remember the present order as the best."""
    st[REG][BEST] = st[REG][VALUE]
    for i in range(net[SHAPE][0]):
        st[BEST_SEQUENCE][i] = st[SEQUENCE][i]
        st[BEST_FUSED][i] = st[FUSED][i]


def sweep(net: Table, st: Table) -> None:
    """Ends of all nodes under the present first starts, and by node and rank whose first start they hang on."""
    nodes, ranks = net[SHAPE][0], net[SHAPE][1]
    end, origin, free, hangs = st[END], st[ORIGIN], st[FREE], st[HANGS]
    for r in range(ranks):
        free[r] = end[nodes + r]
        hangs[r] = r
    for i in range(nodes):
        node = st[SEQUENCE][i]
        r = net[RANK][node]
        at = free[r]
        source = hangs[r]
        for k in range(net[WAIT_PTR][node], net[WAIT_PTR][node + 1]):
            arrival = end[net[WAIT_TAIL][k]] + net[WAIT_LAG][k]
            if arrival > at:
                at = arrival
                source = origin[net[WAIT_TAIL][k]]
        at += st[DURATION][node]
        end[node] = at
        free[r] = at
        hangs[r] = source
        origin[node] = source


def cycle_mean(net: Table, st: Table, comes_from: Row, length: Row) -> int:
    """The greatest mean, rounded up, of the cycles among paths of given origins and lengths, one a rank."""
    ranks = net[SHAPE][1]
    best = 0
    for r in range(ranks):
        st[SEEN][r] = -1
    for root in range(ranks):
        r = root
        while comes_from[r] >= 0 and st[SEEN][r] < 0:
            st[SEEN][r] = root
            r = comes_from[r]
        if comes_from[r] >= 0 and st[SEEN][r] == root:
            total = length[r]
            count = 1
            q = comes_from[r]
            while q != r:
                total += length[q]
                count += 1
                q = comes_from[q]
            mean = -(-total // count)
            best = max(best, mean)
    return best


def settle(net: Table, st: Table, periodic: int) -> None:
    """Time the present order exactly, from the present first starts on; why it ends: see `zbsolve.simulate`."""
    nodes, ranks = net[SHAPE][0], net[SHAPE][1]
    end, last = st[END], st[LAST]
    if periodic == 0:
        for r in range(ranks):
            end[nodes + r] = 0
        sweep(net, st)
        value = 0
        for r in range(ranks):
            value = max(value, end[last[r]])
        st[REG][VALUE] = value
        return
    value = 0
    for r in range(ranks):
        st[RAISED_FROM][r] = -1
        work = 0
        node = st[AFTER][nodes + r]
        while last[r] < nodes and node >= 0:
            work += st[DURATION][node]
            node = st[AFTER][node]
        value = max(value, work)
    while True:
        sweep(net, st)
        for r in range(ranks):
            st[PATH_FROM][r] = st[HANGS][r] if last[r] < nodes else -1
            st[PATH_LENGTH][r] = st[FREE][r] - end[nodes + st[HANGS][r]]
        mean = cycle_mean(net, st, st[PATH_FROM], st[PATH_LENGTH])
        if mean > value:
            value = mean
            for r in range(ranks):
                st[RAISED_FROM][r] = -1
        moved = 0
        for r in range(ranks):
            if last[r] < nodes and st[FREE][r] - value > end[nodes + r]:
                st[RAISED_FROM][r] = st[PATH_FROM][r]
                st[RAISED_LENGTH][r] = st[PATH_LENGTH][r]
                moved = 1
        if moved == 0:
            break
        mean = cycle_mean(net, st, st[RAISED_FROM], st[RAISED_LENGTH])
        if mean > value:
            value = mean
            for r in range(ranks):
                st[RAISED_FROM][r] = -1
        else:
            for r in range(ranks):
                if last[r] < nodes and st[FREE][r] - value > end[nodes + r]:
                    end[nodes + r] = st[FREE][r] - value
    st[REG][VALUE] = value
    low = end[nodes]
    for r in range(ranks):
        low = min(low, end[nodes + r])
    for i in range(nodes + ranks):
        end[i] -= low


def forward_reach(net: Table, st: Table, node: int, steps: int) -> int:
    """The row predecessor, at most `steps` away, in front of which a node may go; -1 if it may not."""
    nodes = net[SHAPE][0]
    limit = net[LIMIT][net[RANK][node]]
    change = st[CHANGE][node]
    target = node
    for _ in range(steps):
        ahead = st[BEFORE][target]
        if ahead >= nodes:
            break
        if net[TWIN][ahead] == net[TWIN][node]:
            return -1
        for k in range(net[NEED_PTR][node], net[NEED_PTR][node + 1]):
            if net[NEED][k] == ahead:
                return -1
        if change > 0 and st[LEVEL][ahead] + change + st[START][ahead] > limit:
            return -1
        target = ahead
    if target == node or st[LEVEL][target] + st[START][node] > limit:
        return -1
    return target


def backward_reach(net: Table, st: Table, node: int, steps: int) -> int:
    """The row successor, at most `steps` away, behind which a node may go; -1 if it may not."""
    limit = net[LIMIT][net[RANK][node]]
    change = st[CHANGE][node]
    target = node
    for _ in range(steps):
        behind = st[AFTER][target]
        if behind < 0:
            break
        if net[TWIN][behind] == net[TWIN][node]:
            return -1
        for k in range(net[NEED_PTR][behind], net[NEED_PTR][behind + 1]):
            if net[NEED][k] == node:
                return -1
        if change < 0 and st[LEVEL][behind] - change + st[START][behind] > limit:
            return -1
        target = behind
    if target == node or st[LEVEL][target] + st[CHANGE][target] - change + st[START][node] > limit:
        return -1
    return target


def carry_back(net: Table, st: Table, low: int, high: int) -> int:
    """Fill `part` with the stretch low..high, its last node in front behind only what it needs; 0 if it cannot be."""
    st[REG][STAMP] += 1
    stamp = st[REG][STAMP]
    node = st[SEQUENCE][high]
    own = net[RANK][node]
    for k in range(net[NEED_PTR][node], net[NEED_PTR][node + 1]):
        st[MARK][net[NEED][k]] = stamp
    taken = 0
    at = high - low
    for i in range(high - 1, low - 1, -1):
        other = st[SEQUENCE][i]
        r = net[RANK][other]
        if st[RANK_MARK][r] == stamp or st[MARK][other] == stamp:
            if r == own:
                return 0
            st[RANK_MARK][r] = stamp
            for k in range(net[NEED_PTR][other], net[NEED_PTR][other + 1]):
                st[MARK][net[NEED][k]] = stamp
            st[REST][taken] = other
            taken += 1
        else:
            st[PART][at] = other
            at -= 1
    st[PART][taken] = node
    for i in range(taken):
        st[PART][taken - 1 - i] = st[REST][i]
    return 1


def carry_on(net: Table, st: Table, low: int, high: int) -> int:
    """Fill `part` with the stretch low..high, its first node at the end ahead only of what needs it; 0 if it cannot."""
    st[REG][STAMP] += 1
    stamp = st[REG][STAMP]
    node = st[SEQUENCE][low]
    own = net[RANK][node]
    st[MARK][node] = stamp
    taken = 0
    at = 0
    for i in range(low + 1, high + 1):
        other = st[SEQUENCE][i]
        r = net[RANK][other]
        follows = st[RANK_MARK][r] == stamp
        if not follows:
            for k in range(net[NEED_PTR][other], net[NEED_PTR][other + 1]):
                if st[MARK][net[NEED][k]] == stamp:
                    follows = True
        if follows:
            if r == own:
                return 0
            st[RANK_MARK][r] = stamp
            st[MARK][other] = stamp
            st[REST][taken] = other
            taken += 1
        else:
            st[PART][at] = other
            at += 1
    st[PART][at] = node
    for i in range(taken):
        st[PART][at + 1 + i] = st[REST][i]
    return 1


def make_due(st: Table, node: int) -> None:
    """Note that a node has to be timed."""
    if node >= 0 and st[DUE][node] == 0:
        st[DUE][node] = 1
        st[REG][PENDING] += 1


def link(net: Table, st: Table, node: int, ahead: int) -> int:
    """Take a node out of its row and put it behind `ahead`; what it stood behind, to undo."""
    r = net[RANK][node]
    old = st[BEFORE][node]
    behind = st[AFTER][node]
    st[AFTER][old] = behind
    if behind >= 0:
        st[BEFORE][behind] = old
    else:
        st[LAST][r] = old
    behind = st[AFTER][ahead]
    st[AFTER][ahead] = node
    st[BEFORE][node] = ahead
    st[AFTER][node] = behind
    if behind >= 0:
        st[BEFORE][behind] = node
    else:
        st[LAST][r] = node
    return old


def retime(net: Table, st: Table, first: int, low: int, high: int) -> None:
    """Time whatever is due, from place `first` on; the stretch low..high has the order of `part`."""
    end, due, reg, saved = st[END], st[DUE], st[REG], st[SAVED]
    sequence, part, before, after, duration = st[SEQUENCE], st[PART], st[BEFORE], st[AFTER], st[DURATION]
    wait_ptr, wait_tail, wait_lag = net[WAIT_PTR], net[WAIT_TAIL], net[WAIT_LAG]
    out_ptr, out = net[OUT_PTR], net[OUT]
    journal_node, journal_end = st[JOURNAL_NODE], st[JOURNAL_END]
    pending, count, stamp = reg[PENDING], reg[WRITTEN], reg[STAMP]
    i = first
    while pending > 0:
        node = part[i - low] if low <= i <= high else sequence[i]
        i += 1
        if due[node] == 0:
            continue
        due[node] = 0
        pending -= 1
        at = end[before[node]]
        for k in range(wait_ptr[node], wait_ptr[node + 1]):
            arrival = end[wait_tail[k]] + wait_lag[k]
            at = max(at, arrival)
        at += duration[node]
        if at == end[node]:
            continue
        if saved[node] != stamp:
            saved[node] = stamp
            journal_node[count] = node
            journal_end[count] = end[node]
            count += 1
        end[node] = at
        behind = after[node]
        if behind >= 0 and due[behind] == 0:
            due[behind] = 1
            pending += 1
        for k in range(out_ptr[node], out_ptr[node + 1]):
            head = out[k]
            if due[head] == 0:
                due[head] = 1
                pending += 1
    reg[PENDING] = 0
    reg[WRITTEN] = count


def binding(net: Table, st: Table, node: int) -> int:
    """What a node's start hangs on: its row predecessor if that ends just then, else what it waits for."""
    at = st[END][node] - st[DURATION][node]
    ahead = st[BEFORE][node]
    if st[END][ahead] == at:
        return ahead
    for k in range(net[WAIT_PTR][node], net[WAIT_PTR][node + 1]):
        if st[END][net[WAIT_TAIL][k]] + net[WAIT_LAG][k] == at:
            return net[WAIT_TAIL][k]
    return ahead


def settles_within(net: Table, st: Table, threshold: int, first: int, low: int, high: int, periodic: int) -> int:
    """Time what is due, moving first starts up where that helps; the value, or -1 if beyond the threshold."""
    nodes, ranks = net[SHAPE][0], net[SHAPE][1]
    end, last = st[END], st[LAST]
    retime(net, st, first, low, high)
    for attempt in range(ROUNDS):
        value = 0
        late = 0
        for r in range(ranks):
            if last[r] >= nodes:
                continue
            span = end[last[r]] - end[nodes + r]
            value = max(value, span)
            if span > threshold:
                late = 1
        if late == 0:
            return value
        if periodic == 0 or attempt == ROUNDS - 1:
            return -1
        for r in range(ranks):
            if last[r] < nodes and end[last[r]] - end[nodes + r] > threshold:
                node = last[r]
                while node < nodes:
                    node = binding(net, st, node)
                if node == nodes + r:
                    return -1
        again = nodes
        for r in range(ranks):
            if last[r] < nodes and end[last[r]] - end[nodes + r] > threshold:
                if st[SAVED][nodes + r] != st[REG][STAMP]:
                    count = st[REG][WRITTEN]
                    st[SAVED][nodes + r] = st[REG][STAMP]
                    st[JOURNAL_NODE][count] = nodes + r
                    st[JOURNAL_END][count] = end[nodes + r]
                    st[REG][WRITTEN] = count + 1
                end[nodes + r] = end[last[r]] - threshold
                node = st[AFTER][nodes + r]
                make_due(st, node)
                at = st[PLACE][node]
                if low <= at <= high:
                    at = low
                again = min(again, at)
        retime(net, st, again, low, high)
    return -1


def roll_back(st: Table) -> None:
    """Give all ends back that the journal has."""
    for k in range(st[REG][WRITTEN] - 1, -1, -1):
        st[END][st[JOURNAL_NODE][k]] = st[JOURNAL_END][k]
    st[REG][WRITTEN] = 0


def try_shift(net: Table, st: Table, node: int, steps: int, threshold: int, periodic: int) -> int:
    """Move a node `steps` places earlier (later if negative) if the value stays within the threshold: 1 if so."""
    if steps > 0:
        target = forward_reach(net, st, node, steps)
        if target < 0:
            return 0
        low = st[PLACE][target]
        high = st[PLACE][node]
        if carry_back(net, st, low, high) == 0:
            return 0
        ahead = st[BEFORE][target]
    else:
        target = backward_reach(net, st, node, -steps)
        if target < 0:
            return 0
        low = st[PLACE][node]
        high = st[PLACE][target]
        if carry_on(net, st, low, high) == 0:
            return 0
        ahead = target
    make_due(st, st[AFTER][node])
    undo = link(net, st, node, ahead)
    make_due(st, node)
    make_due(st, st[AFTER][node])
    st[REG][WRITTEN] = 0
    value = settles_within(net, st, threshold, low, low, high, periodic)
    if value < 0:
        roll_back(st)
        link(net, st, node, undo)
        return 0
    nodes = net[SHAPE][0]
    r = net[RANK][node]
    for i in range(low, high + 1):
        other = st[PART][i - low]
        st[SEQUENCE][i] = other
        st[PLACE][other] = i
        if net[RANK][other] == r:
            ahead = st[BEFORE][other]
            st[LEVEL][other] = net[BASE][r] if ahead >= nodes else st[LEVEL][ahead] + st[CHANGE][ahead]
    st[REG][VALUE] = value
    return 1


def dress(net: Table, st: Table, node: int, form: int) -> None:
    """Give a B and its W the numbers of a form: 0 split, 1 fused."""
    weight = net[MATE][node]
    for each in (node, weight):
        st[FUSED][each] = form
        st[DURATION][each] = net[NET_DURATION][2 * each + form]
        st[START][each] = net[NET_START][2 * each + form]
        st[CHANGE][each] = net[NET_CHANGE][2 * each + form]


def try_switch(net: Table, st: Table, node: int, threshold: int, periodic: int) -> int:
    """Let the backward that a node belongs to run in its other form if value and memory allow it: 1 if so."""
    nodes = net[SHAPE][0]
    weight = net[MATE][node]
    if weight < 0:
        return 0
    if st[PLACE][node] > st[PLACE][weight]:
        node = weight
        weight = net[MATE][node]
    st[REG][STAMP] += 1
    form = st[FUSED][node]
    limit = net[LIMIT][net[RANK][node]]
    dress(net, st, node, 1 - form)
    fits = st[LEVEL][node] + st[START][node] <= limit
    level = st[LEVEL][node] + st[CHANGE][node]
    other = st[AFTER][node]
    while fits and other >= 0:
        fits = level + st[START][other] <= limit
        level += st[CHANGE][other]
        if other == weight:
            break
        other = st[AFTER][other]
    if not fits:
        dress(net, st, node, form)
        return 0
    low = st[PLACE][node]
    make_due(st, node)
    make_due(st, weight)
    st[REG][WRITTEN] = 0
    value = settles_within(net, st, threshold, low, nodes, -1, periodic)
    if value < 0:
        roll_back(st)
        dress(net, st, node, form)
        return 0
    other = node
    while other != weight:
        behind = st[AFTER][other]
        st[LEVEL][behind] = st[LEVEL][other] + st[CHANGE][other]
        other = behind
    st[REG][VALUE] = value
    return 1


def critical(net: Table, st: Table, periodic: int) -> int:
    """Find one chain of nodes that makes the value what it is; 1 if it closes a cycle, so that no x could help."""
    nodes, ranks = net[SHAPE][0], net[SHAPE][1]
    skip = int(draw(st) * ranks)
    late = -1
    for k in range(ranks):
        r = (skip + k) % ranks
        if st[LAST][r] < nodes:
            span = st[END][st[LAST][r]] - (st[END][nodes + r] if periodic == 1 else 0)
            if span == st[REG][VALUE]:
                late = r
                break
    length = 0
    blocked = 0
    node = st[LAST][late]
    while node < nodes:
        st[CHAIN][length] = node
        length += 1
        ahead = binding(net, st, node)
        if ahead == st[BEFORE][node] and ahead < nodes:
            st[BLOCKED][blocked] = node
            blocked += 1
        node = ahead
    st[REG][CHAINED] = length
    st[REG][BLOCKS] = blocked
    return 1 if periodic == 0 or node == nodes + late else 0
