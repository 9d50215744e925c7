"""Timetables and measured runs for ui.perfetto.dev and chrome://tracing, in the trace-event format.

A process a rank and run, so that a rank's plan and its measured run stand below each other::

    rank 0 planned     compute     F0 F1 F2 ...        slices (X), joined by flow arrows (s, f)
                       transfers   ..F0->1...
                       memory      a curve             counters (C)
    rank 0 measured    ...

Times in the format are in microseconds; decimals keep the nanoseconds. Slices of a thread must lie within
each other or apart, so transfers that overlap get a thread more.

Source: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from zbsolve.disk import write_atomic
from zbsolve.errors import OrderError
from zbsolve.metrics import memory_curve
from zbsolve.opgraph import OpGraph
from zbsolve.ops import Op
from zbsolve.timetable import TimedOp, Timetable
from zbsolve.trace import Trace
from zbsolve.transfers import queued_transfers
from zbsolve.units import format_bytes

__all__ = ["perfetto_bytes", "write_perfetto"]

_NEVER = -(2**61)
"""A message that was not noted has times before this."""

Args = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class _Passing:
    """A message between two ranks, from when it sets out until it is there; `known` if those times are known."""

    tail: Op
    head: Op
    sender: int
    receiver: int
    from_ns: int
    to_ns: int
    known: bool = True


@dataclass(frozen=True, slots=True)
class _Slice:
    """An event with a duration."""

    name: str
    category: str
    start_ns: int
    end_ns: int
    args: Args


def write_perfetto(
    path: str | os.PathLike[str], timetable: Timetable, measured: Trace | Timetable | None = None, *, step: int = -1
) -> None:
    """Write the trace-event file of a timetable; see `perfetto_bytes`.

    Raises
    ------
    OrderError, FileFormatError
        As `perfetto_bytes`; if the file cannot be written.
    """
    write_atomic(path, perfetto_bytes(timetable, measured, step=step))


def perfetto_bytes(timetable: Timetable, measured: Trace | Timetable | None = None, *, step: int = -1) -> bytes:
    """A timetable, and beside it a measured run of its order, as a trace-event file (JSON).

    Parameters
    ----------
    timetable
        As planned.
    measured
        A trace, or measured times in the form of a timetable, of the same order.
    step
        Which step of a trace.

    Raises
    ------
    OrderError
        If the measured run has another order, or the rows are no order of the problem.
    """
    if isinstance(measured, Trace):  # what ends an iteration is not measured
        timetable = timetable.without_ends()
    graph = OpGraph.build(timetable.problem, timetable.order.rows)
    runs = [_Run("planned", timetable, _planned(graph, timetable), graph)]
    if measured is not None:
        if measured.order.rows != timetable.order.rows:
            raise OrderError("the measured run has another order than the timetable; give one of the same")
        shown, passing = _measured(measured, step, graph)
        runs.append(_Run("measured", shown, passing, graph, timetable))
    events = list(itertools.chain.from_iterable(run.events(number, len(runs)) for number, run in enumerate(runs)))
    about = {"format": "trace-event", "objective": timetable.problem.objective, "digest": timetable.problem.digest}
    lines = ",\n".join(events)
    head = f'{{"displayTimeUnit":"ns","otherData":{json.dumps(about)},"traceEvents":[\n'
    return f"{head}{lines}\n]}}\n".encode()


def _planned(graph: OpGraph, timetable: Timetable) -> list[_Passing]:
    """Every message between two ranks; it takes the lag of its arc, and where transfers queue, sets out in its turn."""
    problem = timetable.problem
    period = timetable.period_ns if problem.objective == "period" else None
    lines = queued_transfers(problem, timetable.rows, period_ns=period).values()
    queued = {(sent.tail, sent.head): sent for line in lines for sent in line}
    rank = graph.rank.tolist()
    end = {timed.op: timed.end_ns for row in timetable.rows for timed in row}
    columns = (a.tolist() for a in (graph.arc_tail, graph.arc_head, graph.arc_lag_ns, graph.arc_bytes))
    found = []
    for tail, head, lag, size in zip(*columns, strict=True):
        if size >= 0 and rank[tail] != rank[head]:
            op, needs = graph.op(tail), graph.op(head)
            sent = queued.get((op, needs))
            times = (end[op], end[op] + lag) if sent is None else (sent.start_ns, sent.arrival_ns)
            found.append(_Passing(op, needs, rank[tail], rank[head], *times))
    return found


def _measured(measured: Trace | Timetable, step: int, graph: OpGraph) -> tuple[Timetable, list[_Passing]]:
    """Measured times from 0, and the messages with their times where these were noted."""
    if isinstance(measured, Timetable):
        return measured, [
            _Passing(p.tail, p.head, p.sender, p.receiver, p.from_ns, p.to_ns, known=False)
            for p in _planned(graph, measured)
        ]
    shown = measured.timetable(step)
    if not measured.transfers:
        return _measured(shown, step, graph)
    first = min((row[0].start_ns for row in measured.steps[step] if row), default=0)
    passing = []
    for t in measured.transfers[step]:
        noted = t.sent_ns > _NEVER and t.taken_ns > _NEVER
        times = (t.sent_ns - first, t.taken_ns - first)
        passing.append(_Passing(t.tail, t.head, t.sender, t.receiver, *times, known=noted))
    return shown, passing


@dataclass(frozen=True, slots=True)
class _Run:
    """One way in which the order went, or is to go."""

    name: str
    timetable: Timetable
    passing: Sequence[_Passing]
    graph: OpGraph
    plan: Timetable | None = None

    def events(self, number: int, runs: int) -> Iterator[str]:
        """All events of the run; ranks of several runs stand in turn."""
        memory = memory_curve(self.timetable)
        where: dict[Op, tuple[int, int, TimedOp]] = {}
        for rank in range(len(self.timetable.rows)):
            process = 1 + rank * runs + number
            yield from self._names(process, rank, number)
            for thread, piece, timed in self._threads(process, rank):
                if isinstance(thread, str):
                    yield thread
                    continue
                yield _slice(process, thread, piece)
                if timed is not None:
                    where[timed.op] = process, thread, timed
            for time_ns, size in memory[rank]:
                yield _event("C", "memory", process, 0, time_ns, args={"bytes": size})
        for arrow, message in enumerate(self.passing, start=1):
            yield from _arrow(number * len(self.passing) + arrow, message, where)

    def _names(self, process: int, rank: int, number: int) -> Iterator[str]:
        limit = self.timetable.problem.limit_bytes[rank]
        stages = ", ".join(map(str, self.timetable.problem.placement.stages_of(rank)))
        label = f"stages {stages}" + ("" if limit is None else f", limit {format_bytes(limit)}")
        for name, args in (
            ("process_name", {"name": f"rank {rank} {self.name}"}),
            ("process_sort_index", {"sort_index": process}),
            ("process_labels", {"labels": label}),
        ):
            yield _event("M", name, process, 0, 0, args=args)

    def _threads(self, process: int, rank: int) -> Iterator[tuple[int | str, _Slice, TimedOp | None]]:
        """Thread by thread: its name (as an event), then its slices with the operation that each shows."""
        row = self.timetable.rows[rank]
        nodes = self.graph.encode(self.timetable.order)[rank].tolist()
        plans = (None,) * len(row) if self.plan is None else self.plan.rows[rank]
        by_lane: dict[str, list[tuple[_Slice, TimedOp | None]]] = {"compute": []}
        for timed, node, plan in zip(row, nodes, plans, strict=True):
            lane = self.graph.lanes[self.graph.lane[node]].resource
            by_lane.setdefault(lane, []).append((_operation(timed, plan), timed))
        by_lane["transfers"] = [(_transfer(p), None) for p in self.passing if p.sender == rank and p.known]
        numbers = itertools.count(1)
        for lane, slices in by_lane.items():
            for which, apart in enumerate(_apart(slices)):
                thread = next(numbers)
                name = lane if not which else f"{lane} {which + 1}"
                for meta, args in (("thread_name", {"name": name}), ("thread_sort_index", {"sort_index": thread})):
                    yield _event("M", meta, process, thread, 0, args=args), apart[0][0], None
                for piece, shown in apart:
                    yield thread, piece, shown


def _operation(timed: TimedOp, plan: TimedOp | None) -> _Slice:
    op = timed.op
    args: dict[str, object] = {
        "kind": op.kind.value,
        "stage": op.stage,
        "microbatch": op.microbatch,
        "start_ns": timed.start_ns,
        "duration_ns": timed.end_ns - timed.start_ns,
    }
    if plan is not None:
        args["planned_start_ns"] = plan.start_ns
        args["planned_duration_ns"] = plan.end_ns - plan.start_ns
    return _Slice(str(op), op.kind.value, timed.start_ns, timed.end_ns, args)


def _transfer(message: _Passing) -> _Slice:
    args = {"from": str(message.tail), "to": str(message.head), "sender": message.sender, "receiver": message.receiver}
    name = f"{message.tail} to rank {message.receiver}"
    return _Slice(name, "transfer", message.from_ns, max(message.from_ns, message.to_ns), args)


def _apart(slices: Sequence[tuple[_Slice, TimedOp | None]]) -> list[list[tuple[_Slice, TimedOp | None]]]:
    """Slices on as few threads as can be, so that those of one thread do not overlap."""
    threads: list[list[tuple[_Slice, TimedOp | None]]] = []
    free: list[tuple[int, int]] = []
    for both in sorted(slices, key=lambda s: (s[0].start_ns, s[0].end_ns)):
        if free and free[0][0] <= both[0].start_ns:
            _, thread = heapq.heappop(free)
        else:
            thread = len(threads)
            threads.append([])
        threads[thread].append(both)
        heapq.heappush(free, (both[0].end_ns, thread))
    return threads


def _arrow(number: int, message: _Passing, where: Mapping[Op, tuple[int, int, TimedOp]]) -> Iterator[str]:
    """From the last moment of the operation that gives a message to the first of the one that needs it."""
    process, thread, tail = where[message.tail]
    leaves = max(tail.start_ns, tail.end_ns - 1)
    yield _event("s", "message", process, thread, leaves, cat="message", id=number)
    process, thread, head = where[message.head]
    yield _event("f", "message", process, thread, max(head.start_ns, leaves), cat="message", id=number, bp="e")


def _slice(process: int, thread: int, piece: _Slice) -> str:
    length = _us(max(0, piece.end_ns - piece.start_ns))
    return _event("X", piece.name, process, thread, piece.start_ns, cat=piece.category, args=piece.args, dur=length)


def _event(phase: str, name: str, process: int, thread: int, time_ns: int, *, dur: str = "", **more: object) -> str:
    """One event as JSON; written by hand, since no float holds every time to the nanosecond."""
    length = f',"dur":{dur}' if dur else ""
    extra = "".join(f",{json.dumps(key)}:{json.dumps(value)}" for key, value in more.items())
    head = f'"ph":"{phase}","name":{json.dumps(name)},"pid":{process},"tid":{thread},"ts":{_us(time_ns)}'
    return f"{{{head}{length}{extra}}}"


def _us(ns: int) -> str:
    """Nanoseconds as microseconds, exactly."""
    whole, part = divmod(abs(ns), 1000)
    return f"{'-' if ns < 0 else ''}{whole}" + (f".{part:03d}" if part else "")
