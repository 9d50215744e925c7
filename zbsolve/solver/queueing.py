"""Kernels that time an order in which transfers queue on their links.

In a sequence in which every node stands after what it needs, a rank's nodes stand in the order of its row, so a pass
along it meets the messages of each link in the order in which it serves them: a link is free when its last message
so far has left it, as a rank is when its last node has ended::

    node ends ........|                          END
    its message waits |....| on the link |==|    free[link], then OFF
    and is there                            |--> latency: what needs it may start

A link repeats as a rank does (see `zbsolve.simulate`), so behind the R ranks each link is one more *column*, with a
release at ``END[N + R + link]``, its last message's end in ``FREE`` and where that hangs in ``HANGS``.

A move pushes messages of other ranks about, and with them what needs them, all over the order: so each move is timed
by a whole pass, which costs about what half a dozen incremental ones do. Nothing is journalled, since the next pass
writes all there is; only the releases are put back where a move is refused.
"""

from __future__ import annotations

from zbsolve.solver.network import (
    LINK_LOAD,
    LINKS,
    MESSAGE_BUSY,
    MESSAGE_FROM,
    MESSAGE_LATENCY,
    MESSAGE_LINK,
    RANK,
    SEND_PTR,
    SHAPE,
    WAIT_LAG,
    WAIT_MESSAGE,
    WAIT_PTR,
    WAIT_TAIL,
    Table,
)
from zbsolve.solver.state import (
    AHEAD,
    BEFORE,
    BLOCKED,
    BLOCKS,
    CHAIN,
    CHAINED,
    DUE,
    DURATION,
    END,
    FREE,
    HANGS,
    KEPT,
    LAST,
    LAST_MESSAGE,
    OFF,
    OFF_ORIGIN,
    ORIGIN,
    PART,
    PENDING,
    REG,
    SEQUENCE,
    VALUE,
    draw,
)

__all__ = ["counts", "queueing_critical", "queueing_settles", "queueing_sweep", "send", "shift"]

ATTEMPTS = 6
"""Times that releases are moved up before an order counts as too long."""


def send(net: Table, st: Table, node: int, at: int, origin: int) -> None:
    """Hand what a node sends to its links, once it has ended."""
    ranks = net[SHAPE][1]
    for m in range(net[SEND_PTR][node], net[SEND_PTR][node + 1]):
        column = ranks + net[MESSAGE_LINK][m]
        st[AHEAD][m] = -1
        if st[FREE][column] > at:
            st[AHEAD][m] = st[LAST_MESSAGE][column]
        else:
            st[FREE][column] = at
            st[HANGS][column] = origin
        st[FREE][column] += net[MESSAGE_BUSY][m]
        st[OFF][m] = st[FREE][column]
        st[OFF_ORIGIN][m] = st[HANGS][column]
        st[LAST_MESSAGE][column] = m


def queueing_sweep(net: Table, st: Table, low: int, high: int) -> None:
    """Ends of all nodes and messages under the present releases; the stretch low..high has the order of `part`."""
    nodes, ranks, links = net[SHAPE][0], net[SHAPE][1], net[SHAPE][LINKS]
    end, origin, free, hangs = st[END], st[ORIGIN], st[FREE], st[HANGS]
    off, off_origin = st[OFF], st[OFF_ORIGIN]
    for column in range(ranks + links):
        free[column] = end[nodes + column]
        hangs[column] = column
        # what stands ahead of the first message is the link's release
        st[LAST_MESSAGE][column] = -2 - column
    for i in range(nodes):
        node = st[PART][i - low] if low <= i <= high else st[SEQUENCE][i]
        st[DUE][node] = 0
        r = net[RANK][node]
        at = free[r]
        source = hangs[r]
        for k in range(net[WAIT_PTR][node], net[WAIT_PTR][node + 1]):
            m = net[WAIT_MESSAGE][k]
            if m >= 0:
                arrival = off[m] + net[MESSAGE_LATENCY][m]
                if arrival > at:
                    at = arrival
                    source = off_origin[m]
            else:
                arrival = end[net[WAIT_TAIL][k]] + net[WAIT_LAG][k]
                if arrival > at:
                    at = arrival
                    source = origin[net[WAIT_TAIL][k]]
        at += st[DURATION][node]
        end[node] = at
        free[r] = at
        hangs[r] = source
        origin[node] = source
        send(net, st, node, at, source)
    st[REG][PENDING] = 0


def counts(net: Table, st: Table, column: int, periodic: int) -> bool:
    """Whether a column's span counts: a rank with anything to do; under the period a link with anything to carry."""
    ranks = net[SHAPE][1]
    if column < ranks:
        return bool(st[LAST][column] < net[SHAPE][0])
    return periodic == 1 and net[LINK_LOAD][column - ranks] > 0


def shift(net: Table, st: Table, low: int) -> None:
    """Take what `settle` takes off all ends off what the last pass left beside them."""
    for column in range(net[SHAPE][1] + net[SHAPE][LINKS]):
        st[FREE][column] -= low
    for m in range(net[SEND_PTR][net[SHAPE][0]]):
        st[OFF][m] -= low


def queueing_settles(net: Table, st: Table, threshold: int, low: int, high: int, periodic: int) -> int:
    """Time the present order, moving releases up where that helps; the value, or -1 if beyond the threshold."""
    nodes, columns = net[SHAPE][0], net[SHAPE][1] + net[SHAPE][LINKS]
    end, free = st[END], st[FREE]
    for column in range(columns):
        st[KEPT][column] = end[nodes + column]
    for attempt in range(ATTEMPTS):
        queueing_sweep(net, st, low, high)
        value = 0
        late = 0
        hopeless = periodic == 0 or attempt == ATTEMPTS - 1
        for column in range(columns):
            if not counts(net, st, column, periodic):
                continue
            span = free[column] - end[nodes + column]
            value = max(value, span)
            if span > threshold:
                late = 1
                if st[HANGS][column] == column:
                    hopeless = True
        if late == 0:
            return value
        if hopeless:
            break
        for column in range(columns):
            if counts(net, st, column, periodic) and free[column] - end[nodes + column] > threshold:
                end[nodes + column] = free[column] - threshold
    for column in range(columns):
        end[nodes + column] = st[KEPT][column]
    return -1


def sent_by(net: Table, st: Table, message: int) -> int:
    """The node whose end a message hangs on, past all that it waited behind; or the release of its link.

    Those whose messages are passed on the way are noted in the chain: to send one of them later would help.
    """
    nodes = net[SHAPE][0]
    while message >= 0:
        node = net[MESSAGE_FROM][message]
        if st[AHEAD][message] == -1:
            return node
        st[CHAIN][st[REG][CHAINED]] = node
        st[REG][CHAINED] += 1
        message = st[AHEAD][message]
    return nodes + (-2 - message)


def queueing_critical(net: Table, st: Table, periodic: int) -> int:
    """Find one chain of nodes that makes the value what it is; 1 if it closes a cycle, which no releases could help."""
    nodes, columns = net[SHAPE][0], net[SHAPE][1] + net[SHAPE][LINKS]
    skip = int(draw(st) * columns)
    late = -1
    for k in range(columns):
        column = (skip + k) % columns
        if counts(net, st, column, periodic):
            span = st[FREE][column] - (st[END][nodes + column] if periodic == 1 else 0)
            if span == st[REG][VALUE]:
                late = column
                break
    st[REG][CHAINED] = 0
    blocked = 0
    node = st[LAST][late] if late < net[SHAPE][1] else sent_by(net, st, st[LAST_MESSAGE][late])
    while node < nodes:
        st[CHAIN][st[REG][CHAINED]] = node
        st[REG][CHAINED] += 1
        at = st[END][node] - st[DURATION][node]
        ahead = st[BEFORE][node]
        if st[END][ahead] == at:
            if ahead < nodes:
                st[BLOCKED][blocked] = node
                blocked += 1
            node = ahead
            continue
        found = ahead
        for k in range(net[WAIT_PTR][node], net[WAIT_PTR][node + 1]):
            m = net[WAIT_MESSAGE][k]
            if m >= 0:
                if st[OFF][m] + net[MESSAGE_LATENCY][m] == at:
                    found = sent_by(net, st, m)
                    break
            elif st[END][net[WAIT_TAIL][k]] + net[WAIT_LAG][k] == at:
                found = net[WAIT_TAIL][k]
                break
        node = found
    st[REG][BLOCKS] = blocked
    return 1 if periodic == 0 or node == nodes + late else 0
