"""The cause of every idle moment, exactly: the pieces of a rank's idle time add up to its bubble.

A rank is asked to fill its *window*: the whole makespan, or one period from its first start on. While
it idles it waits for the next compute operation of its row; under the period objective that is, after
the last one, the first of the next iteration. At each moment the cause is the first of these that holds:

| cause | the rank idles while |
|---|---|
| `done` | nothing of it is left to do until the iteration ends (makespan), or at all |
| `pace` | nothing holds the next iteration's first operation but the period, which others set (period) |
| `late` | the next operation could run, but is planned later |
| `order` | an operation is ready, and the row with it here would keep the memory limit |
| `memory` | operations are ready, but the row with any of them here would exceed the limit |
| `link` | what the next operation waits for has ended and is on its way |
| `queue` | what it waits for has ended, but the link that it takes is busy with another transfer |
| `data` | what the next operation waits for has not ended |

*Ready* means that all that an operation needs has ended and arrived; *the row with it here* is the
row with that operation moved forward to this place, all others as they are. Memory depends on the
row alone, so this needs no new times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from zbsolve.analysis.network import Edge, Network
from zbsolve.metrics import memory_levels
from zbsolve.opgraph import Int64

__all__ = ["Cause", "Idle", "binding", "by_cause", "idle_times", "place_that_fits", "windows"]

_NEVER, _ALWAYS = 2**63 - 1, -(2**62)


class Cause(StrEnum):
    """Why a rank idles; the first of these that holds, from the last on."""

    DATA = "data"
    QUEUE = "queue"
    LINK = "link"
    MEMORY = "memory"
    ORDER = "order"
    LATE = "late"
    PACE = "pace"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Idle:
    """A piece of idle time with one cause.

    Parameters
    ----------
    rank
        Who idles.
    start_ns, end_ns
        From when to when.
    cause
        Why.
    before
        The node that the rank runs next; None where nothing is left.
    wraps
        Whether that one belongs to the next iteration.
    waits_for
        The operation whose result `before` waits for last (data, queue, link); None for other causes.
    ready
        The node that could run but for memory, or but for the order; None for other causes.
    """

    rank: int
    start_ns: int
    end_ns: int
    cause: Cause
    before: int | None
    wraps: bool = False
    waits_for: int | None = None
    ready: int | None = None
    transfer: int | None = None
    """The transfer that waits for its link (queue) or is on it (link), where transfers queue."""

    @property
    def length_ns(self) -> int:
        """How long it lasts."""
        return self.end_ns - self.start_ns


def windows(network: Network) -> tuple[tuple[int, int], ...]:
    """For each rank the time that it is asked to fill, start and end in ns."""
    value = network.value_ns
    # not always the first of the row: what runs beside the computing may wait for other ranks
    started = [min((timed.start_ns for timed in row), default=0) for row in network.timetable.rows]
    if network.by_period:
        return tuple((start, start + value) for start in started)
    first = min((start for start, row in zip(started, network.timetable.rows, strict=True) if row), default=0)
    return ((first, first + value),) * network.ranks


def idle_times(network: Network) -> tuple[Idle, ...]:
    """All idle time within the windows, rank by rank, in the order of time, each piece with its cause."""
    pieces: list[Idle] = []
    for rank, window in enumerate(windows(network)):
        pieces += _Rank(network, rank).pieces(*window)
    return tuple(pieces)


def by_cause(pieces: Sequence[Idle], rank: int | None = None) -> dict[Cause, int]:
    """The ns of each cause that occurs, over all ranks or one; together they are the idle time."""
    found = dict.fromkeys(Cause, 0)
    for piece in pieces:
        if rank is None or piece.rank == rank:
            found[piece.cause] += piece.length_ns
    return {cause: ns for cause, ns in found.items() if ns}


def place_that_fits(network: Network, node: int, earliest: int) -> int:
    """The first place of a node's row, from `earliest` on, where the row with the node there keeps the limit."""
    rank = network.rank(node)
    at = network.rows[rank].tolist().index(node)
    room = _Room(network, rank)
    return next(place for place in range(earliest, at + 1) if place == at or room.fits(at, place))


class _Room:
    """The memory of a row, asked whether operations could stand further ahead in it."""

    def __init__(self, network: Network, rank: int) -> None:
        graph, row = network.graph, network.rows[rank]
        levels: Int64 = memory_levels(graph, row, rank)
        self._before, self._during = levels[:, 0], levels[:, 1]
        self._start = graph.start_bytes[row]
        self._stays = np.maximum(graph.start_bytes[row] + graph.end_bytes[row], 0)
        self._limit = int(graph.limit_bytes[rank])

    def fits(self, position: int, place: int) -> bool:
        """Whether the row keeps the limit with the operation at `position` moved forward to `place`."""
        return bool(self.fitting(np.asarray([position]), place)[0])

    def fitting(self, positions: Int64, place: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """The same for several positions, in ascending order."""
        last = int(positions[-1])
        crowded = np.maximum.accumulate(self._during[place:last]) if last > place else self._during[:0]
        start, stays = self._start[positions], self._stays[positions]
        # subtracted from the limit, since the sum of two amounts may not fit
        fits = start <= self._limit - self._before[place]
        passed = positions > place
        fits[passed] &= stays[passed] <= self._limit - crowded[positions[passed] - place - 1]
        return np.asarray(fits)


class _Rank:
    """The idle time of one rank."""

    def __init__(self, network: Network, rank: int) -> None:
        self.network, self.rank = network, rank
        row = network.rows[rank].tolist()
        self.positions = [at for at, node in enumerate(row) if network.on_compute(node)]
        self.row = [row[at] for at in self.positions]
        self.arrival = np.asarray([_arrival(network, node) for node in self.row], dtype=np.int64)
        # for each place the earliest arrival of all from there on: most gaps have nobody ready
        self.soonest = np.minimum.accumulate(self.arrival[::-1])[::-1]
        self.room = _Room(network, rank)

    def pieces(self, start: int, end: int) -> list[Idle]:
        """Walk the window."""
        network = self.network
        if not self.row:
            return self._last(start, end)
        found: list[Idle] = []
        free = start
        for place, node in enumerate(self.row):
            if network.start(node) > free:
                found += self._gap(free, network.start(node), place, shift=0)
            free = max(free, network.end(node))
        if free < end:
            if network.by_period:
                found += self._gap(free, end, 0, shift=network.value_ns)
            else:
                found += self._last(free, end)
        return found

    def _last(self, start: int, end: int) -> list[Idle]:
        return [Idle(self.rank, start, end, Cause.DONE, None)] if end > start else []

    def _gap(self, start: int, end: int, place: int, *, shift: int) -> list[Idle]:
        """The idle time before the operation at a place; `shift` is how much later all runs in its iteration."""
        network, before = self.network, self.row[place]
        arrived = int(self.arrival[place]) + shift
        late = min(max(arrived, start), end)
        ready_from, fitting_from, ready, fitting = late, late, None, None
        if int(self.soonest[place]) + shift < late:
            waiting = place + np.flatnonzero(self.arrival[place:] + shift < late)
            times = np.maximum(self.arrival[waiting] + shift, start)
            ready_from, ready = int(times.min()), self.row[waiting[times.argmin()]]
            standing = np.asarray(self.positions, dtype=np.int64)
            fits = self.room.fitting(standing[waiting], int(standing[place]))
            if fits.any():
                of_them = np.where(fits, times, _NEVER)
                fitting_from, fitting = int(of_them.min()), self.row[waiting[of_them.argmin()]]
        edge = binding(network, before)
        waits_for = None if edge is None else network.giver(edge.tail)
        transfer = None if edge is None or network.transfer(edge.tail) is None else edge.tail
        sent = start if waits_for is None else min(max(network.end(waits_for) + shift, start), ready_from)
        served = sent if transfer is None else min(max(network.start(transfer) + shift, sent), ready_from)
        wraps = shift > 0
        told = [
            Idle(self.rank, start, sent, Cause.DATA, before, wraps, waits_for=waits_for),
            Idle(self.rank, sent, served, Cause.QUEUE, before, wraps, waits_for=waits_for, transfer=transfer),
            Idle(self.rank, served, ready_from, Cause.LINK, before, wraps, waits_for=waits_for, transfer=transfer),
            Idle(self.rank, ready_from, fitting_from, Cause.MEMORY, before, wraps, ready=ready),
            Idle(self.rank, fitting_from, late, Cause.ORDER, before, wraps, ready=fitting),
            Idle(self.rank, late, end, Cause.PACE if wraps else Cause.LATE, before, wraps),
        ]
        return [piece for piece in told if piece.length_ns > 0]


def binding(network: Network, node: int) -> Edge | None:
    """The data that reaches an operation last; of several, what is longest on its way."""
    data = [edge for edge in network.edges[node] if not edge.in_row]
    return max(data, key=lambda edge: (network.end(edge.tail) + edge.lag_ns, edge.lag_ns), default=None)


def _arrival(network: Network, node: int) -> int:
    """When all that an operation needs is there; what needs nothing is always ready."""
    edge = binding(network, node)
    return _ALWAYS if edge is None else network.end(edge.tail) + edge.lag_ns
