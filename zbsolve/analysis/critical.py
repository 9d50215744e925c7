"""What sets the value: the critical path of a makespan, the critical cycle of a period.

The period of an order is the greatest mean, over the cycles of ranks, of the longest paths from one
rank's first operation to the next one's last (see `zbsolve.simulate`). The cycle is found by raising
a mean: as long as some cycle is longer than the mean allows, take that cycle's mean. Bellman and
Ford's rounds find such a cycle; each mean is a true cycle's, so the last one is the greatest, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from zbsolve.analysis.longest import Amounts, Longest, longest
from zbsolve.analysis.network import Network

__all__ = ["CriticalPath", "Step", "Via", "critical_path", "greatest_cycle"]

Via = Literal["start", "row", "data", "iteration"]


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of the path, or transfer on a queueing link, and how the one before it holds it.

    Parameters
    ----------
    node
        The operation or the transfer.
    via
        ``"start"`` of the path, the ``"row"``, ``"data"``, or the next ``"iteration"`` of its rank.
    lag_ns
        What the data is on its way.
    """

    node: int
    via: Via
    lag_ns: int = 0


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """Operations that end to end take as long as the order needs.

    Parameters
    ----------
    steps
        In the order of time; under the period objective the first follows on the last, an iteration later.
    length_ns
        Durations and lags.
    iterations
        How many iterations it covers; 1 under the makespan objective.
    """

    steps: tuple[Step, ...]
    length_ns: int
    iterations: int

    @property
    def value_ns(self) -> int:
        """The least value that it allows, rounded up."""
        return -(-self.length_ns // self.iterations) if self.iterations else 0


def critical_path(network: Network, paths: Longest | None = None) -> CriticalPath:
    """Find it; empty where there are no operations.

    Parameters
    ----------
    network
        Of a sound timetable. If its times are later than they must be, the path is the order's.
    paths
        Its longest paths, where they are known already.
    """
    paths = paths or longest(network)
    if not network.timed:
        return CriticalPath((), 0, 0)
    if not network.by_period:
        steps = _path(network, paths, 0, 0)
        return CriticalPath(tuple(steps), int(paths.span[0, 0]), 1)
    cycle = greatest_cycle(paths.span)
    steps, length = [], 0
    for at, rank in enumerate(cycle):
        following = cycle[(at + 1) % len(cycle)]
        part = _path(network, paths, rank, following)
        steps += [Step(part[0].node, "iteration"), *part[1:]]
        length += int(paths.span[rank, following])
    return CriticalPath(tuple(steps), length, len(cycle))


def _path(network: Network, paths: Longest, origin: int, target: int) -> list[Step]:
    """The longest path from a column's start to a column's end; along rows where it can."""
    head = paths.head[:, origin]
    duration = network.duration
    firsts = set(paths.firsts[origin])
    node = max(paths.lasts[target], key=lambda n: int(head[n]) + int(duration[n]))
    steps: list[Step] = []
    while head[node] > 0 or node not in firsts:
        edge = next(
            edge
            for edge in reversed(network.edges[node])  # rows come last
            if head[edge.tail] >= 0 and head[edge.tail] + int(duration[edge.tail]) + edge.lag_ns == head[node]
        )
        steps.append(Step(node, "row" if edge.in_row else "data", edge.lag_ns))
        node = edge.tail
    steps.append(Step(node, "start"))
    return steps[::-1]


def greatest_cycle(span: Amounts) -> list[int]:
    """A cycle of greatest mean in a matrix of lengths between ranks, far below zero where there is no path."""
    alone = [int(v) for v in np.diag(span)]
    best = [max(range(len(alone)), key=lambda rank: alone[rank])]
    mean = Fraction(alone[best[0]])
    while (found := _longer_cycle(span, mean)) is not None:
        best = found
        lengths = [int(span[a, b]) for a, b in zip(best, best[1:] + best[:1], strict=True)]
        mean = Fraction(sum(lengths), len(best))
    return best


def _longer_cycle(span: Amounts, mean: Fraction) -> list[int] | None:
    """A cycle whose mean is greater, if there is one."""
    ranks = len(span)
    weight = span.astype(object) * mean.denominator - mean.numerator
    distance = np.zeros(ranks, dtype=object)
    parent = [-1] * ranks
    raised = -1
    for _ in range(ranks):
        reached = distance[:, None] + weight
        raised = -1
        later = distance.copy()
        for rank in range(ranks):
            origin = int(np.argmax(reached[:, rank]))
            if reached[origin, rank] > distance[rank]:
                later[rank], parent[rank], raised = reached[origin, rank], origin, rank
        distance = later
        if raised < 0:
            return None
    at = raised
    for _ in range(ranks):
        at = parent[at]
    cycle = [at]
    while parent[cycle[-1]] != at:
        cycle.append(parent[cycle[-1]])
    return cycle[::-1]
