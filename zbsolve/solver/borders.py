"""What follows each operation of an order: the kernel that lets a part of it be timed for itself.

For first starts x, one a rank, the value of an order is the greatest end of a rank's last operation less
its x. Along the paths that lead there, the value is the greatest over any set of operations that all of
them cross of (end of the operation + what follows it). So a part between two borders in time needs from
the rest no more than when its inputs arrive, and what follows what it hands on: see
`zbsolve.solver.parts`.

A kernel, as in `zbsolve.solver.state`.
"""

from __future__ import annotations

from zbsolve.solver.network import SHAPE, WAIT_LAG, WAIT_PTR, WAIT_TAIL, Table
from zbsolve.solver.state import BEFORE, DURATION, END, LAST, PART, SEQUENCE

__all__ = ["tails"]

NOTHING = -(2**60)
"""What follows an operation that nothing waits for; none is left with it."""


def tails(net: Table, st: Table, periodic: int) -> int:
    """Fill `part`, for an order that `load` has timed: by node, the longest path from its end to the value.

    That is, to the end of a rank's last operation, less that rank's first start for the period. Returns
    the greatest first start.
    """
    nodes, ranks = net[SHAPE][0], net[SHAPE][1]
    end, follows = st[END], st[PART]
    for node in range(nodes):
        follows[node] = NOTHING
    latest = 0
    for r in range(ranks):
        if st[LAST][r] < nodes:
            first = end[nodes + r] if periodic == 1 else 0
            latest = max(latest, first)
            follows[st[LAST][r]] = -first
    for i in range(nodes - 1, -1, -1):
        node = st[SEQUENCE][i]
        whole = follows[node] + st[DURATION][node]
        ahead = st[BEFORE][node]
        if ahead < nodes:
            follows[ahead] = max(follows[ahead], whole)
        for k in range(net[WAIT_PTR][node], net[WAIT_PTR][node + 1]):
            tail = net[WAIT_TAIL][k]
            follows[tail] = max(follows[tail], whole + net[WAIT_LAG][k])
    return latest
