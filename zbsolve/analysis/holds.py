"""What holds an operation's start, and what holds that in turn, back to where the chain begins.

The start of an operation in a timetable with no needless delay is the end of something: of data that
arrives, or of the operation ahead of it in its row. A row holds it for one of three reasons, told
apart exactly: it became ready while the operation ahead was running (`busy`); the row would exceed
the memory limit if it ran sooner (`memory`); or it would not, and the order puts another first (`order`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from zbsolve.analysis.idle import binding, place_that_fits, windows
from zbsolve.analysis.network import Network

__all__ = ["Hold", "HoldKind", "chain", "hold"]

HoldKind = Literal["data", "queue", "busy", "memory", "order", "pace", "start", "late"]


@dataclass(frozen=True, slots=True)
class Hold:
    """What holds the start of one operation.

    Parameters
    ----------
    node
        The operation held.
    kind
        ``"data"``: it starts as its last input arrives. ``"queue"``: the same, and that had to wait for its link,
        which was busy with what `by` hands over. ``"busy"``, ``"memory"``, ``"order"``: as the
        operation ahead of it ends. ``"pace"``: it begins the iteration of its rank, which the period
        sets. ``"start"``: it begins the makespan. ``"late"``: nothing; it is planned later.
    by
        The operation that ends; None where nothing does.
    lag_ns
        How long the data is on its way.
    """

    node: int
    kind: HoldKind
    by: int | None = None
    lag_ns: int = 0


def hold(network: Network, node: int) -> Hold:
    """Find what holds one operation."""
    start = network.start(node)
    edge = binding(network, node)
    if edge is not None and network.end(edge.tail) + edge.lag_ns == start:
        sent = network.transfer(edge.tail)
        if sent is not None and sent.behind is not None:
            ahead_of_it = network.links[network.column(edge.tail) - network.ranks][1][sent.behind]
            return Hold(node, "queue", network.giver(ahead_of_it), start - network.end(network.giver(edge.tail)))
        giver = network.giver(edge.tail)
        return Hold(node, "data", giver, start - network.end(giver))
    ahead = [other.tail for other in network.edges[node] if other.in_row and network.end(other.tail) == start]
    if not ahead:
        rank = network.rank(node)
        if network.rows[rank][0] == node and network.by_period:
            return Hold(node, "pace")
        return Hold(node, "start" if start == windows(network)[rank][0] else "late")
    by = ahead[-1]
    row = network.rows[network.rank(node)].tolist()
    at = row.index(node)
    arrived = -1 if edge is None else network.end(edge.tail) + edge.lag_ns
    earliest = next(place for place in range(at + 1) if network.start(row[place]) >= arrived)
    if earliest == at:
        return Hold(node, "busy", by)
    return Hold(node, "memory" if place_that_fits(network, node, earliest) == at else "order", by)


def chain(network: Network, node: int) -> tuple[Hold, ...]:
    """What holds an operation, what holds the data that it waits for, and so on; the last is not data."""
    found = [hold(network, node)]
    while found[-1].kind == "data" and found[-1].by is not None:
        found.append(hold(network, found[-1].by))
    return tuple(found)
