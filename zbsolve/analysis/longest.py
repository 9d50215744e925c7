"""Longest paths through a network, from the start of the iteration and to its end.

Under the makespan objective a path may start and end anywhere. Under the period objective it matters
*whose* start and end: an iteration wraps around rank by rank, from the end of a rank's last operation
to the start of its first. So there is a column a rank, and one for each queueing link, else one column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zbsolve.analysis.network import Network

__all__ = ["Longest", "longest"]

Amounts = NDArray[Any]
"""Of int64, or of Python's integers where sums would not fit."""


@dataclass(frozen=True, slots=True, eq=False)
class Longest:
    """Lengths of longest paths in ns; far below zero where there is none.

    Parameters
    ----------
    head
        Shape (N, columns): from the start of a column's first operations to the start of each node.
    tail
        Shape (N, columns): from the end of each node to the end of a column's last operations.
    span
        Shape (columns, columns): from the start of one to the end of the other.
    firsts, lasts
        By column: the nodes that may start first and end last.
    """

    head: Amounts
    tail: Amounts
    span: Amounts
    firsts: tuple[tuple[int, ...], ...]
    lasts: tuple[tuple[int, ...], ...]


def longest(network: Network) -> Longest:
    """Run one pass forth and one back; effort N x columns."""
    nodes, by_period = len(network.edges), network.by_period
    duration = network.duration.tolist()
    columns = network.columns if by_period else 1
    firsts: list[tuple[int, ...]] = [tuple(range(nodes))]
    lasts = firsts
    if by_period:
        firsts = [_ends(network, rank, reverse=True) for rank in range(columns)]
        lasts = [_ends(network, rank, reverse=False) for rank in range(columns)]
    total = sum(duration) + int(network.graph.arc_lag_ns.astype(object).sum() if len(network.graph.arc_lag_ns) else 0)
    # no walk through all columns may leave the range, nor three parts of one that are all missing
    wide = (total + network.value_ns) * (columns + 2) >= 2**59
    none = -(2**200) if wide else -(2**60)
    head, tail = (np.full((nodes, columns), none, dtype=object if wide else np.int64) for _ in range(2))
    for column, ends in enumerate(firsts):
        head[list(ends), column] = 0
    for column, ends in enumerate(lasts):
        tail[list(ends), column] = 0
    for node in network.sequence:
        own = head[node]
        for edge in network.edges[node]:
            np.maximum(own, head[edge.tail] + (duration[edge.tail] + edge.lag_ns), out=own)
    for node in reversed(network.sequence):
        own = tail[node] + duration[node]
        for edge in network.edges[node]:
            before = tail[edge.tail]
            np.maximum(before, own + edge.lag_ns, out=before)
    span = np.full((columns, columns), none, dtype=head.dtype)
    for column, ends in enumerate(lasts):
        for node in ends:
            span[:, column] = np.maximum(span[:, column], head[node] + duration[node])
    return Longest(head, tail, span, tuple(firsts), tuple(lasts))


def _ends(network: Network, rank: int, *, reverse: bool) -> tuple[int, ...]:
    """The first (or last) node of a rank on each of its lanes; of a link its first (or last) transfer."""
    if rank >= network.ranks:
        return (network.links[rank - network.ranks][1][-1 if not reverse else 0],)
    row: Sequence[int] = network.rows[rank].tolist()
    found = {int(network.graph.lane[node]): node for node in (reversed(row) if reverse else row)}
    return tuple(found.values())
