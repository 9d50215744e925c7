"""Kernels that time an order: from nothing, or what a move has changed.

Timing is incremental. A node is *due* when something it waits for has changed; due nodes are timed
in the order of the sequence, from the first place that changed on until none is due. What is
overwritten goes into a journal, so that a refused move costs what it touched.

The period of an order is the least T for which some vector x of first starts, one a rank, has every
rank done within T of its first start (see `zbsolve.simulate`). x is kept from one order to the next.
Whether a move is taken is a question with a threshold drawn beforehand: is there an x with every rank
within the threshold? A rank that is late hangs on some rank's first start. If that is its own, no x
can help; if it is another's, its own first start moves up and its nodes become due.
"""

from __future__ import annotations

from zbsolve.solver.network import (
    BASE,
    LIMIT,
    LINK_LOAD,
    LINKS,
    NET_CHANGE,
    NET_DURATION,
    NET_START,
    OUT,
    OUT_PTR,
    RANK,
    SHAPE,
    WAIT_LAG,
    WAIT_PTR,
    WAIT_TAIL,
    Row,
    Table,
)
from zbsolve.solver.queueing import counts, queueing_critical, queueing_settles, queueing_sweep, shift
from zbsolve.solver.state import (
    AFTER,
    BEFORE,
    BEST,
    BLOCKED,
    BLOCKS,
    CHAIN,
    CHAINED,
    CHANGE,
    DUE,
    DURATION,
    END,
    FREE,
    FUSED,
    HANGS,
    JOURNAL_END,
    JOURNAL_NODE,
    LAST,
    LEVEL,
    ORIGIN,
    PART,
    PATH_FROM,
    PATH_LENGTH,
    PENDING,
    PLACE,
    RAISED_FROM,
    RAISED_LENGTH,
    REG,
    SAVED,
    SEEN,
    SEQUENCE,
    STAMP,
    START,
    VALUE,
    WRITTEN,
    draw,
    keep,
)

__all__ = ["critical", "load", "settle"]

ROUNDS = 6
"""Times that first starts are moved up before an order counts as too long."""


def load(net: Table, st: Table, periodic: int) -> int:
    """Set the state up for its `sequence` and `fused`; the value, or -1 if it exceeds the memory."""
    nodes, ranks = net[SHAPE][0], net[SHAPE][1]
    for link in range(net[SHAPE][LINKS]):
        st[END][nodes + ranks + link] = 0
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


def sweep(net: Table, st: Table) -> None:
    """Ends of all nodes under the present first starts, and by node and rank whose first start they hang on."""
    nodes, ranks = net[SHAPE][0], net[SHAPE][1]
    if net[SHAPE][LINKS] > 0:
        queueing_sweep(net, st, nodes, -1)
        return
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
    ranks = net[SHAPE][1] + net[SHAPE][LINKS]
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
    columns = ranks + net[SHAPE][LINKS]
    end, last = st[END], st[LAST]
    if periodic == 0:
        for r in range(columns):
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
    for r in range(ranks, columns):
        st[RAISED_FROM][r] = -1
        value = max(value, net[LINK_LOAD][r - ranks])
    while True:
        sweep(net, st)
        for r in range(columns):
            st[PATH_FROM][r] = st[HANGS][r] if counts(net, st, r, 1) else -1
            st[PATH_LENGTH][r] = st[FREE][r] - end[nodes + st[HANGS][r]]
        mean = cycle_mean(net, st, st[PATH_FROM], st[PATH_LENGTH])
        if mean > value:
            value = mean
            for r in range(columns):
                st[RAISED_FROM][r] = -1
        moved = 0
        for r in range(columns):
            if counts(net, st, r, 1) and st[FREE][r] - value > end[nodes + r]:
                st[RAISED_FROM][r] = st[PATH_FROM][r]
                st[RAISED_LENGTH][r] = st[PATH_LENGTH][r]
                moved = 1
        if moved == 0:
            break
        mean = cycle_mean(net, st, st[RAISED_FROM], st[RAISED_LENGTH])
        if mean > value:
            value = mean
            for r in range(columns):
                st[RAISED_FROM][r] = -1
        else:
            for r in range(columns):
                if counts(net, st, r, 1) and st[FREE][r] - value > end[nodes + r]:
                    end[nodes + r] = st[FREE][r] - value
    st[REG][VALUE] = value
    low = end[nodes]
    for r in range(ranks):
        low = min(low, end[nodes + r])
    for i in range(nodes + columns):
        end[i] -= low
    if columns > ranks:
        shift(net, st, low)


def make_due(st: Table, node: int) -> None:
    """Note that a node has to be timed."""
    if node >= 0 and st[DUE][node] == 0:
        st[DUE][node] = 1
        st[REG][PENDING] += 1


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
    if net[SHAPE][LINKS] > 0:
        return queueing_settles(net, st, threshold, low, high, periodic)
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


def critical(net: Table, st: Table, periodic: int) -> int:
    """Find one chain of nodes that makes the value what it is; 1 if it closes a cycle, so that no x could help."""
    nodes, ranks = net[SHAPE][0], net[SHAPE][1]
    if net[SHAPE][LINKS] > 0:
        return queueing_critical(net, st, periodic)
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
