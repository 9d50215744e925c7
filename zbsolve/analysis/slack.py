"""Slack: how much longer an operation may take without the objective's value growing.

Everything else is timed again as soon as possible, in the same order. Under the makespan objective
this is the value less the longest path through the operation. Under the period objective the
iteration repeats every T, so what counts are the closed walks through the operation: one of length L
that wraps around n times allows n T - L more. With a longest path to a rank's last operation, on
through any number of iterations (a longest walk between ranks, Floyd and Warshall), and from a
rank's first operation back, every closed walk is seen.

T is a whole number of ns, so where the critical cycle's mean is not, its operations have a slack of
less than its number of iterations in ns.
"""

from __future__ import annotations

import numpy as np

from zbsolve.analysis.longest import Longest, longest
from zbsolve.analysis.network import Network

__all__ = ["slacks"]


def slacks(network: Network, paths: Longest | None = None) -> tuple[int, ...]:
    """The slack of every node in ns, transfers included, against the value of the planned times.

    Parameters
    ----------
    network
        Of a sound timetable.
    paths
        Its longest paths, where they are known already.
    """
    paths = paths or longest(network)
    value = network.value_ns
    duration = network.duration
    if not network.by_period:
        free = value - (paths.head[:, 0] + duration + paths.tail[:, 0])
        return tuple(int(v) for v in free)
    around = paths.span - value  # from a rank's start to another's, an iteration later
    np.fill_diagonal(around, np.maximum(np.diag(around), 0))
    for via in range(len(around)):
        np.maximum(around, around[:, via, None] + around[None, via, :], out=around)
    longest_walk = np.full(len(duration), -(2**62), dtype=paths.head.dtype)
    if paths.head.dtype == object:
        longest_walk = np.full(len(duration), -(2**200), dtype=object)
    for rank in range(len(around)):  # the rank whose end the walk passes first
        onward = (around[rank][None, :] + paths.head).max(axis=1)
        np.maximum(longest_walk, paths.tail[:, rank] - value + onward, out=longest_walk)
    return tuple(int(v) for v in -(longest_walk + duration))
