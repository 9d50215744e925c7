"""Kernels of the order search: one move tried, timed, kept or taken back.

To put v in front of u in its row, the part of the sequence from u to v is split into what v needs,
which goes with it, and the rest, which stays behind.

A move is refused where nodes of one twin class would change places, where v needs a node it would
overtake, where memory would exceed the limit (running sums tell), or where v needs u through other
ranks, which would close a circle.
"""

from __future__ import annotations

from zbsolve.solver.network import (
    BASE,
    LIMIT,
    MATE,
    NEED,
    NEED_PTR,
    NET_CHANGE,
    NET_DURATION,
    NET_START,
    RANK,
    SHAPE,
    TWIN,
    Table,
)
from zbsolve.solver.state import (
    AFTER,
    BEFORE,
    CHANGE,
    DURATION,
    FUSED,
    LAST,
    LEVEL,
    MARK,
    PART,
    PLACE,
    RANK_MARK,
    REG,
    REST,
    SEQUENCE,
    STAMP,
    START,
    VALUE,
    WRITTEN,
)
from zbsolve.solver.timing import critical, make_due, roll_back, settle, settles_within

__all__ = ["FAR", "try_pair", "try_shift", "try_switch"]

FAR = 2**61
"""A threshold that nothing exceeds."""


def forward_reach(net: Table, st: Table, node: int, steps: int, bounded: int) -> int:
    """The row predecessor, at most `steps` away, in front of which a node may go; -1 if it may not.

    Whatever the memory if `bounded` is 0.
    """
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
        if bounded == 1 and change > 0 and st[LEVEL][ahead] + change + st[START][ahead] > limit:
            return -1
        target = ahead
    if target == node or (bounded == 1 and st[LEVEL][target] + st[START][node] > limit):
        return -1
    return target


def backward_reach(net: Table, st: Table, node: int, steps: int, bounded: int) -> int:
    """The row successor, at most `steps` away, behind which a node may go; -1 if it may not.

    Whatever the memory if `bounded` is 0.
    """
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
        if bounded == 1 and change < 0 and st[LEVEL][behind] - change + st[START][behind] > limit:
            return -1
        target = behind
    if target == node:
        return -1
    if bounded == 1 and st[LEVEL][target] + st[CHANGE][target] - change + st[START][node] > limit:
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


def try_shift(net: Table, st: Table, node: int, steps: int, threshold: int, periodic: int) -> int:
    """Move a node `steps` places earlier (later if negative) if the value stays within the threshold: 1 if so."""
    return shift(net, st, node, steps, threshold, periodic, 1)


def shift(net: Table, st: Table, node: int, steps: int, threshold: int, periodic: int, bounded: int) -> int:
    """The same, whatever the memory if `bounded` is 0."""
    if steps > 0:
        target = forward_reach(net, st, node, steps, bounded)
        if target < 0:
            return 0
        low = st[PLACE][target]
        high = st[PLACE][node]
        if carry_back(net, st, low, high) == 0:
            return 0
        ahead = st[BEFORE][target]
    else:
        target = backward_reach(net, st, node, -steps, bounded)
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


def room_for_both(net: Table, st: Table, node: int, weight: int, steps: int) -> int:
    """How many places, up to `steps`, a B and the W right behind it may go together as far as memory goes; else 0."""
    nodes = net[SHAPE][0]
    limit = net[LIMIT][net[RANK][node]]
    both = st[CHANGE][node] + st[CHANGE][weight]
    most = max(st[START][node], st[CHANGE][node] + st[START][weight])
    made = 0
    level = 0
    if steps > 0:
        other = st[BEFORE][node]
        while made < steps and other < nodes:
            level = st[LEVEL][other]
            if level + both + st[START][other] > limit:
                return 0
            made += 1
            other = st[BEFORE][other]
    else:
        other = st[AFTER][weight]
        while made < -steps and other >= 0:
            if st[LEVEL][other] - both + st[START][other] > limit:
                return 0
            level = st[LEVEL][other] + st[CHANGE][other] - both
            made += 1
            other = st[AFTER][other]
    if made == 0 or level + most > limit:
        return 0
    return made if steps > 0 else -made


def try_pair(net: Table, st: Table, node: int, steps: int, threshold: int, periodic: int) -> int:
    """Move a B and the W right behind it together if value and memory allow it: 1 if so.

    One after the other they could not go where W keeps more than F held: between the two memory is short.
    """
    weight = net[MATE][node]
    if weight < 0:
        return 0
    if st[PLACE][node] > st[PLACE][weight]:
        node = weight
        weight = net[MATE][node]
    if st[FUSED][node] == 1 or st[AFTER][node] != weight:
        return 0
    made = room_for_both(net, st, node, weight, steps)
    if made == 0:
        return 0
    first = node if made > 0 else weight
    if shift(net, st, first, made, FAR, periodic, 0) == 0:
        return 0
    if shift(net, st, weight if made > 0 else node, made, threshold, periodic, 0) == 1:
        return 1
    shift(net, st, first, -made, FAR, periodic, 0)
    if critical(net, st, periodic) == 0:
        settle(net, st, periodic)
        critical(net, st, periodic)
    return 0


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
