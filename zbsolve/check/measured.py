"""Rules about measured times: what they are is nobody's to judge, but not what came before what.

Within a rank one clock has measured everything, so nothing may be out of order by a single ns. Between
ranks clocks differ, and what one of them says may be wrong by the clock error that the trace states::

    rank 0   F0 |=====|  sent                      F0 ends by its own clock
    rank 1            taken  F0 |=====|            may seem to start up to the clock error before that
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from zbsolve.check.sheet import Entry, Sheet, number, show
from zbsolve.timetable import Violation
from zbsolve.trace import Trace, Transfer

__all__ = ["backwards", "early_between_ranks", "steps_in_each_other", "strange_transfers"]


def backwards(sheet: Sheet) -> Iterator[Violation]:
    """Nothing ends before it starts."""
    for entry in itertools.chain.from_iterable(sheet.rows):
        if entry.clocked and entry.end < entry.start:
            yield Violation(
                "time",
                f"{entry} ends at {number(entry.end)} ns, before its start at {number(entry.start)} ns",
                (entry.op,),
            )


def early_between_ranks(sheet: Sheet, clock_error_ns: int) -> Iterator[Violation]:
    """No operation starts before those that it needs of other ranks have ended, as far as the clocks can tell."""
    for entry in sheet.known:
        for need in entry.needs:
            if need.rank == entry.rank or not (entry.clocked and need.clocked):
                continue
            if entry.start + clock_error_ns < need.end:
                yield Violation(
                    "transfer",
                    f"{entry} starts at {number(entry.start)} ns, {number(need.end - entry.start)} ns before {need} "
                    f"ends, which it needs; the clocks are at most {number(clock_error_ns)} ns apart",
                    (entry.op, need.op),
                )


def steps_in_each_other(sheets: Sequence[Sheet]) -> Iterator[Violation]:
    """A rank starts a step when it is done with the one before."""
    for step, (before, sheet) in enumerate(itertools.pairwise(sheets), start=1):
        for ahead, row in zip(before.rows, sheet.rows, strict=True):
            done = [entry for entry in ahead if entry.clocked]
            new = [entry for entry in row if entry.clocked]
            if not done or not new:
                continue
            last, first = max(done, key=_end), min(new, key=_start)
            if first.start < last.end:
                yield Violation(
                    "row_order",
                    f"step {step}: {first} starts at {number(first.start)} ns, while {show(last.op)} of the step "
                    f"before runs until {number(last.end)} ns",
                    (last.op, first.op),
                )


def _start(entry: Entry) -> int:
    return entry.start


def _end(entry: Entry) -> int:
    return entry.end


def strange_transfers(sheet: Sheet, trace: Trace, step: int) -> Iterator[Violation]:
    """Messages lead from an operation to one that needs it, and are sent after the one and taken before the other."""
    if not trace.transfers:
        return
    if len(trace.transfers) != len(trace.steps):
        if not step:
            yield Violation(
                "transfer", f"the trace has {len(trace.steps)} steps, but transfers of {len(trace.transfers)}"
            )
        return
    places = {(entry.rank, op): entry for entry in sheet.known for op, _ in entry.halves}
    for transfer in trace.transfers[step]:
        head, tail = places.get((transfer.receiver, transfer.head)), places.get((transfer.sender, transfer.tail))
        if head is None or tail is None or tail not in head.needs:
            yield Violation(
                "transfer",
                f"a message was measured from {show(transfer.tail)} on rank {number(transfer.sender)} to "
                f"{show(transfer.head)} on rank {number(transfer.receiver)}, which the rows do not have or do not need",
                (transfer.tail, transfer.head),
            )
            continue
        yield from _order_of(transfer, tail, head, trace.clock_error_ns)


def _order_of(transfer: Transfer, tail: Entry, head: Entry, clock_error_ns: int) -> Iterator[Violation]:
    times = (transfer.sent_ns, transfer.waited_ns, transfer.taken_ns)
    if not all(type(at) is int for at in times) or not (tail.clocked and head.clocked):
        if not all(type(at) is int for at in times):
            yield Violation(
                "time", f"the times of the message from {tail} to {head} must be ints of ns", (tail.op, head.op)
            )
        return
    sent, waited, taken = times
    # each line: the earlier, the later, what the clocks allow between them, in words
    for first, then, allowed, words in (
        (tail.end, sent, 0, f"was sent at {number(sent)} ns, before {tail} ended at {number(tail.end)} ns"),
        (sent, taken, clock_error_ns, f"was taken at {number(taken)} ns, before it was sent at {number(sent)} ns"),
        (waited, taken, 0, f"was taken at {number(taken)} ns, before it was waited for at {number(waited)} ns"),
        (taken, head.start, 0, f"was taken at {number(taken)} ns, after {head} started at {number(head.start)} ns"),
    ):
        if then + allowed < first:
            yield Violation("transfer", f"the message from {tail} to {head} {words}", (tail.op, head.op))
