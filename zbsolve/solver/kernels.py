"""Timing of an order given as a sequence: every node after what it needs, rows implied by ranks.

They agree with `zbsolve.simulate.Timer`, which explains the period; they only are lighter: a sequence
needs no row links, since a rank is free when its last operation so far has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zbsolve.opgraph import OpGraph
from zbsolve.simulate import cycle_mean
from zbsolve.units import MAX_AMOUNT

__all__ = ["Arrays", "fits", "makespan", "period", "rows_of", "sequence_of", "sweep"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrays:
    """A graph as plain lists.

    Parameters
    ----------
    graph
        What it was made from.
    rank, duration, start_bytes, end_bytes, twin
        By node, as in the graph; the network of a rank, where it is used, counts as a rank of its own,
        whose span lies within that of the rank, since an optimizer follows.
    preds
        The tails of all arcs into each node.
    waits
        (tail, lag) of the arcs that can bind in time: from another rank, or with a lag.
    base, limit
        Bytes by rank.
    work
        The sum of durations of each rank.
    busy
        The ranks that have any operation.
    sends
        By node, what it sends over queueing links: (message, link, time on it).
    receives
        By node, what it waits for there: (message, time from when it has left its link).
    loads
        What each queueing link has to carry, in ns; none where transfers need not wait, or are not to.
    """

    graph: OpGraph
    rank: list[int]
    duration: list[int]
    start_bytes: list[int]
    end_bytes: list[int]
    twin: list[int]
    preds: list[tuple[int, ...]]
    waits: list[tuple[tuple[int, int], ...]]
    base: list[int]
    limit: list[int]
    work: list[int]
    busy: list[int]
    sends: tuple[tuple[tuple[int, int, int], ...], ...] = ()
    receives: tuple[tuple[tuple[int, int], ...], ...] = ()
    loads: tuple[int, ...] = ()

    @classmethod
    def of(cls, graph: OpGraph) -> Arrays:
        """The lists of a graph."""
        rank, duration = graph.lane.tolist(), graph.duration_ns.tolist()
        more = len(graph.lanes) - graph.ranks
        tails, lags, pointers = graph.arc_tail.tolist(), graph.arc_lag_ns.tolist(), graph.pred_ptr.tolist()
        preds, waits = [], []
        for node, r in enumerate(rank):
            into = range(pointers[node], pointers[node + 1])
            preds.append(tuple(tails[a] for a in into))
            waits.append(tuple((tails[a], lags[a]) for a in into if rank[tails[a]] != r or lags[a]))
        sends, receives, loads = _messages(graph)
        work = [0] * len(graph.lanes)
        for r, d in zip(rank, duration, strict=True):
            work[r] += d
        return cls(
            graph=graph,
            rank=rank,
            duration=duration,
            start_bytes=graph.start_bytes.tolist(),
            end_bytes=graph.end_bytes.tolist(),
            twin=graph.twin.tolist(),
            preds=preds,
            waits=waits,
            base=graph.base_bytes.tolist() + [0] * more,
            limit=graph.limit_bytes.tolist() + [MAX_AMOUNT] * more,
            work=work,
            busy=sorted(set(rank)),
            sends=sends,
            receives=receives,
            loads=loads,
        )

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.base)


def _messages(graph: OpGraph) -> tuple[Any, Any, tuple[int, ...]]:
    """What `Arrays` has of queueing links."""
    if not graph.links:
        return (), (), ()
    sends: list[list[tuple[int, int, int]]] = [[] for _ in range(len(graph))]
    receives: list[list[tuple[int, int]]] = [[] for _ in range(len(graph))]
    loads = [0] * len(graph.links)
    for message, arc in enumerate(graph.sends.tolist()):
        link, busy = int(graph.arc_link[arc]), int(graph.arc_busy_ns[arc])
        sends[graph.arc_tail[arc]].append((message, link, busy))
        receives[graph.arc_head[arc]].append((message, int(graph.arc_lag_ns[arc]) - busy))
        loads[link] += busy
    return tuple(map(tuple, sends)), tuple(map(tuple, receives)), tuple(loads)


def rows_of(arrays: Arrays, sequence: Sequence[int]) -> list[list[int]]:
    """Each rank's row."""
    rows: list[list[int]] = [[] for _ in arrays.base]
    rank = arrays.rank
    for node in sequence:
        rows[rank[node]].append(node)
    return rows


def sequence_of(arrays: Arrays, rows: Sequence[Sequence[int]]) -> list[int] | None:
    """A sequence with these rows, in which every node stands after what it needs; None if there is none."""
    preds = arrays.preds
    done = bytearray(len(arrays.rank))
    at = [0] * len(rows)
    waiting: dict[int, list[int]] = {}
    ready = list(range(len(rows)))
    sequence: list[int] = []
    while ready:
        r = ready.pop()
        row, k = rows[r], at[r]
        while k < len(row):
            node = row[k]
            blocker = next((tail for tail in preds[node] if not done[tail]), -1)
            if blocker >= 0:
                waiting.setdefault(blocker, []).append(r)
                break
            done[node] = 1
            sequence.append(node)
            k += 1
            if node in waiting:
                ready.extend(waiting.pop(node))
        at[r] = k
    return sequence if len(sequence) == len(arrays.rank) else None


def sweep(arrays: Arrays, sequence: Sequence[int], release: Sequence[int]) -> tuple[list[int], list[int]]:
    """As-soon-as-possible ends under a first start for each rank, and the last end of each rank.

    Links on which transfers queue are further ranks, each with a first start and a last end.
    """
    if arrays.loads:
        end, free, _ = _sweep_queueing(arrays, sequence, release)
        return end, free
    rank, duration, waits = arrays.rank, arrays.duration, arrays.waits
    end = [0] * len(rank)
    free = list(release)
    for node in sequence:
        r = rank[node]
        at = free[r]
        for tail, lag in waits[node]:
            arrival = end[tail] + lag
            if arrival > at:  # noqa: PLR1730  (a call of max costs four times as much here)
                at = arrival
        free[r] = end[node] = at + duration[node]
    return end, free


def _sweep_with_source(arrays: Arrays, sequence: Sequence[int], release: Sequence[int]) -> tuple[list[int], list[int]]:
    """The last end of each rank and the rank whose release it hangs on."""
    if arrays.loads:
        return _sweep_queueing(arrays, sequence, release)[1:]
    rank, duration, waits = arrays.rank, arrays.duration, arrays.waits
    end, source = [0] * len(rank), [0] * len(rank)
    free, hangs = list(release), list(range(len(release)))
    for node in sequence:
        r = rank[node]
        at, origin = free[r], hangs[r]
        for tail, lag in waits[node]:
            arrival = end[tail] + lag
            if arrival > at:
                at, origin = arrival, source[tail]
        free[r] = end[node] = at + duration[node]
        hangs[r] = source[node] = origin
    return free, hangs


def _sweep_queueing(
    arrays: Arrays, sequence: Sequence[int], release: Sequence[int]
) -> tuple[list[int], list[int], list[int]]:
    """Ends of all nodes, then by rank and by link behind them the last end and whose release it hangs on.

    A sequence has the nodes of each rank in the order of its row, and so meets the messages of each link in theirs.
    """
    rank, duration, waits, ranks = arrays.rank, arrays.duration, arrays.waits, arrays.ranks
    end, source = [0] * len(rank), [0] * len(rank)
    free, hangs = list(release), list(range(len(release)))
    off: dict[int, tuple[int, int]] = {}
    for node in sequence:
        r = rank[node]
        at, origin = free[r], hangs[r]
        for tail, lag in waits[node]:
            if end[tail] + lag > at:
                at, origin = end[tail] + lag, source[tail]
        for message, later in arrays.receives[node]:
            left, column = off[message]
            if left + later > at:
                at, origin = left + later, column
        free[r] = end[node] = at + duration[node]
        hangs[r] = source[node] = origin
        for message, link, busy in arrays.sends[node]:
            column = ranks + link
            if free[column] < end[node]:
                free[column], hangs[column] = end[node], origin
            free[column] += busy
            off[message] = free[column], hangs[column]
    return end, free, hangs


def makespan(arrays: Arrays, sequence: Sequence[int]) -> int:
    """First start to last end, as soon as possible."""
    end, _ = sweep(arrays, sequence, [0] * (arrays.ranks + len(arrays.loads)))
    return max(end, default=0) - min((e - d for e, d in zip(end, arrays.duration, strict=True)), default=0)


def period(arrays: Arrays, sequence: Sequence[int], release: Sequence[int] | None = None) -> tuple[int, list[int]]:
    """The least period, rounded up to a whole ns, and a release vector that attains it.

    Parameters
    ----------
    arrays
        The graph.
    sequence
        The order.
    release
        A guess of the release vector, such as that of a similar order; links follow on the ranks.
    """
    value = max(*arrays.work, *arrays.loads, 0)
    columns = [*arrays.busy, *(arrays.ranks + k for k, load in enumerate(arrays.loads) if load)]
    x = [0] * (arrays.ranks + len(arrays.loads)) if release is None else list(release)
    # why `raised` is needed: see zbsolve.simulate
    raised: dict[int, tuple[int, int]] = {}
    while True:
        last, source = _sweep_with_source(arrays, sequence, x)
        hangs = {r: (source[r], last[r] - x[source[r]]) for r in columns}
        mean = cycle_mean(hangs)
        if mean > value:
            value, raised = mean, {}
        later = list(x)
        for r, path in hangs.items():
            if last[r] - value > x[r]:
                later[r], raised[r] = last[r] - value, path
        if later == x:
            low = min(x)
            return value, [t - low for t in x]
        mean = cycle_mean(raised)
        if mean > value:
            value, raised = mean, {}
        else:
            x = later


def fits(arrays: Arrays, sequence: Sequence[int]) -> bool:
    """True if no rank's memory exceeds its limit along the sequence."""
    level = list(arrays.base)
    rank, start, end, limit = arrays.rank, arrays.start_bytes, arrays.end_bytes, arrays.limit
    if any(b > most for b, most in zip(level, limit, strict=True)):
        return False
    for node in sequence:
        r = rank[node]
        during = level[r] + start[node]
        if during > limit[r]:
            return False
        level[r] = during + end[node]
    return True
