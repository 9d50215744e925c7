"""Rules about links on which transfers queue: each is served one at a time, in the order of its sender's row.

A timetable does not say when a transfer runs, and need not: the link takes it when the operation has ended and the
one before it is through, and latency after it has left the link it is there::

    rank 0    F0 |==|F1 |==|F2 |==|
    link         |-- 0 --|-- 1 --|-- 2 --|        1 and 2 wait for the link
    rank 1                ^ 0 is there, a latency after the link has let it go

Iterations that repeat share the link: the first transfer of the next one comes after the last of this one. The first
may wait for that as long as no operation is kept waiting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zbsolve.check.sheet import Entry, Sheet, number
from zbsolve.timetable import Violation

__all__ = ["early_over_queueing_links", "is_queueing", "least_repetitions"]

_Way = tuple[int, int | str]
"""The sender and the receiver, or "any" where all that leaves a sender shares one way out."""


@dataclass(slots=True)
class _Message:
    """What one operation sends another, and when it is on its way."""

    giver: Entry
    taker: Entry
    takes: int
    latency: int
    gone: int
    there: int


def is_queueing(sheet: Sheet, giver: Entry, taker: Entry) -> bool:
    """Whether what one operation hands to another has to wait for its link."""
    if giver.rank == taker.rank or giver.op.stage == taker.op.stage:
        return False
    return sheet.problem.profile.link.queueing_between(giver.rank, taker.rank) is not None


def _served(sheet: Sheet) -> dict[_Way, list[_Message]]:
    """The messages of each way, in the order in which they are sent, as soon as possible."""
    ways: dict[_Way, list[_Message]] = {}
    link = sheet.problem.profile.link
    if not link.queues:
        return ways
    takers: dict[Entry, list[Entry]] = {}
    for entry in sheet.known:
        for need in entry.needs:
            if entry.clocked and need.clocked and is_queueing(sheet, need, entry):
                takers.setdefault(need, []).append(entry)
    for row in sheet.rows:
        for giver in row:
            # an output before a gradient
            for taker in sorted(takers.get(giver, ()), key=lambda taker: -taker.op.stage):
                latency, bandwidth = link.between(giver.rank, taker.rank)
                assert bandwidth is not None
                size = sheet.cost(min(giver.cell, taker.cell)).output_bytes
                whole, rest = divmod(size * 1_000_000_000, bandwidth)
                takes = whole + (1 if rest else 0)
                shared = link.queueing_between(giver.rank, taker.rank) == "sender"
                before = ways.setdefault((giver.rank, "any" if shared else taker.rank), [])
                free = before[-1].gone if before else 0
                gone = max(free, giver.end) + takes
                before.append(_Message(giver, taker, takes, latency, gone, gone + latency))
    return ways


def early_over_queueing_links(sheet: Sheet) -> Iterator[Violation]:
    """No operation starts before what it needs has had its turn on the link, and has come over."""
    for way, messages in _served(sheet).items():
        for message in messages:
            giver, taker = message.giver, message.taker
            if taker.start >= message.there:
                continue
            waits = message.gone - message.takes - giver.end
            busy = f" after {number(waits)} ns of waiting for the link {_named(way)}" if waits else ""
            yield Violation(
                "transfer",
                f"{taker} starts at {number(taker.start)} ns, {number(message.there - taker.start)} ns too early: it "
                f"needs {giver}, which ends at {number(giver.end)} ns and takes "
                f"{number(message.takes + message.latency)} ns to come over{busy}",
                (taker.op, giver.op),
            )


def _named(way: _Way) -> str:
    return f"out of rank {way[0]}" if way[1] == "any" else f"from rank {way[0]} to rank {way[1]}"


def least_repetitions(sheet: Sheet) -> Iterator[int]:
    """For each way the least time after which another iteration can use it, the operations as they are planned."""
    for messages in _served(sheet).values():
        # put off as far as they can be, from the last one back: when does the first one start?
        start = messages[-1].taker.start - messages[-1].latency - messages[-1].takes
        for message in reversed(messages[:-1]):
            start = min(start, message.taker.start - message.latency) - message.takes
        yield max(messages[-1].gone - start, sum(message.takes for message in messages))
