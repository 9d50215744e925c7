"""Rules about planned times: exact durations, one operation at a time, nothing before its data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from zbsolve.check.links import is_queueing, least_repetitions
from zbsolve.check.sheet import Entry, Sheet, number, show
from zbsolve.ops import Kind, Op
from zbsolve.timetable import Violation

__all__ = [
    "early_in_rank",
    "early_over_links",
    "first_start",
    "overlaps",
    "readable_times",
    "row_against_time",
    "unattained_claim",
    "wrong_durations",
]

_F, _B, _W, _BW = Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT, Kind.BACKWARD


def _clocked(row: list[Entry]) -> list[Entry]:
    return [entry for entry in row if entry.clocked]


def _span(entry: Entry) -> tuple[int, int]:
    return entry.start, entry.end


def _shown_span(entry: Entry) -> str:
    return f"{number(entry.start)} to {number(entry.end)} ns"


def readable_times(sheet: Sheet) -> Iterator[Violation]:
    """Starts and ends are whole numbers of ns from 0 on; the other rules skip those that are not."""
    for entry in itertools.chain.from_iterable(sheet.rows):
        if entry.clocked or entry.timed is None:
            continue
        for name, at in (("start", entry.timed.start_ns), ("end", entry.timed.end_ns)):
            if type(at) is not int:
                message = f"is of type {type(at).__name__}, but must be an int of ns"
            elif at < 0:
                message = f"is {number(at)} ns, but must not be negative"
            else:
                continue
            yield Violation("time", f"the {name} of {entry} (place {entry.place}) {message}", (entry.op,))


def first_start(sheet: Sheet) -> Iterator[Violation]:
    """The first start is 0."""
    entries = list(itertools.chain.from_iterable(sheet.rows))
    if not entries or not all(entry.clocked for entry in entries):
        return
    first = min(entries, key=_span)
    if first.start > 0:
        yield Violation(
            "first_start",
            f"{first} starts first, at {number(first.start)} ns, but the first start must be 0",
            (first.op,),
        )


def _duration(sheet: Sheet, op: Op, cell: int) -> int:
    kind, cost = op.kind, sheet.cost(cell)
    if kind is Kind.RELEASE:
        return 0
    if kind in (Kind.OFFLOAD, Kind.RELOAD):
        return _copy(sheet, kind, cell)
    if kind is _F:
        return cost.forward_ns
    if kind is _B:
        return cost.backward_input_ns
    if kind is _W:
        return cost.backward_weight_ns
    if kind is Kind.RECOMPUTE:
        return cost.recomputing_ns
    if kind is Kind.REDUCE_GRADIENT:
        return cost.grad_reduce_ns
    if kind is Kind.OPTIMIZER:
        return cost.optimizer_ns
    return cost.backward_ns


def _due(sheet: Sheet, entry: Entry) -> int:
    """What an entry takes: two operations that run together as measured, or as one after the other."""
    together = sheet.problem.overlap_ns(entry.op) if len(entry.halves) > 1 else None
    if together is not None:
        return together
    return sum(_duration(sheet, op, cell) for op, cell in entry.halves)


def _copy(sheet: Sheet, kind: Kind, cell: int) -> int:
    """The ns that a copy to host memory, or back, takes on the rank where it belongs, rounded up."""
    link = sheet.problem.profile.host_link
    if link is None:
        return 0
    latency, to_host, from_host = link.of(sheet.home(cell))
    rate = to_host if kind is Kind.OFFLOAD else from_host
    cost = sheet.cost(cell)
    size = cost.activation_bytes if cost.offload_bytes is None else cost.offload_bytes
    if rate is None:
        return latency
    whole, rest = divmod(size * 1_000_000_000, rate)
    return latency + whole + (1 if rest else 0)


def wrong_durations(sheet: Sheet) -> Iterator[Violation]:
    """Every operation takes exactly as long as it costs."""
    for entry in sheet.known:
        if not entry.clocked:
            continue
        due, planned = _due(sheet, entry), entry.end - entry.start
        if planned != due:
            yield Violation(
                "duration",
                f"{entry} takes {due} ns, but is planned for {number(planned)} ns, from {_shown_span(entry)}",
                (entry.op,),
            )


def overlaps(sheet: Sheet) -> Iterator[Violation]:
    """A rank computes one operation at a time; its network, and its copies either way, run one at a time each.

    One of no duration may share the instant at which another starts or ends.
    """
    for row in _lanes(sheet):
        latest: Entry | None = None
        for entry in sorted(_clocked(row), key=_span):
            if latest is not None and entry.start < latest.end:
                yield Violation(
                    "overlap",
                    f"{entry} runs from {_shown_span(entry)}, while {show(latest.op)} runs from {_shown_span(latest)}",
                    (latest.op, entry.op),
                )
            if latest is None or entry.end > latest.end:
                latest = entry


def row_against_time(sheet: Sheet) -> Iterator[Violation]:
    """Operations run in the order in which they stand in their row, each lane by itself.

    What the network of a rank or its copies run starts no earlier than the last computation ahead has ended.
    """
    for row in _lanes(sheet):
        for ahead, entry in itertools.pairwise(_clocked(row)):
            if _span(entry) < _span(ahead):
                yield _before_its_turn(ahead, entry, "runs before it")
    for row in sheet.rows:
        compute: Entry | None = None
        for entry in _clocked(row):
            if not entry.beside:
                compute = entry
            elif compute is not None and entry.start < compute.end:
                yield _before_its_turn(compute, entry, "starts before that has ended")


def _before_its_turn(ahead: Entry, entry: Entry, what: str) -> Violation:
    return Violation(
        "row_order",
        f"{entry} (place {entry.place}, {_shown_span(entry)}) stands behind {show(ahead.op)} "
        f"(place {ahead.place}, {_shown_span(ahead)}), but {what}",
        (ahead.op, entry.op),
    )


def _lanes(sheet: Sheet) -> Iterator[list[Entry]]:
    """Of each row what computes, what the network runs, and what is copied either way."""
    for row in sheet.rows:
        for which in range(4):
            yield [entry for entry in row if entry.beside == which]


def early_in_rank(sheet: Sheet) -> Iterator[Violation]:
    """No operation starts before those that it needs of its own rank have ended."""
    for entry, need, _ in _needs_in_time(sheet):
        # a need that stands behind in the row has been reported for that
        if need.rank == entry.rank and need.place <= entry.place and entry.start < need.end:
            yield Violation(
                "precedence",
                f"{entry} starts at {number(entry.start)} ns, {number(need.end - entry.start)} ns too early: "
                f"it needs {show(need.op)}, which ends at {number(need.end)} ns",
                (entry.op, need.op),
            )


def early_over_links(sheet: Sheet) -> Iterator[Violation]:
    """No operation starts before what it needs of other ranks has ended and its output has come over."""
    flights: dict[tuple[int, int, int], int] = {}
    for entry, need, handed in _needs_in_time(sheet):
        if need.rank == entry.rank or is_queueing(sheet, need, entry):
            continue
        # without a message on two ranks only if one of them is misplaced
        size = -1 if handed < 0 else sheet.cost(handed).output_bytes
        journey = (need.rank, entry.rank, size)
        if journey not in flights:
            flights[journey] = _flight(sheet, *journey)
        arrival = need.end + flights[journey]
        if entry.start < arrival:
            yield Violation(
                "transfer",
                f"{entry} starts at {number(entry.start)} ns, {number(arrival - entry.start)} ns too early: "
                f"it needs {need}, which ends at {number(need.end)} ns and takes {flights[journey]} ns to come over",
                (entry.op, need.op),
            )


def _needs_in_time(sheet: Sheet) -> Iterator[tuple[Entry, Entry, int]]:
    for entry in sheet.known:
        for need, handed in zip(entry.needs, entry.handed, strict=True):
            if entry.clocked and need.clocked:
                yield entry, need, handed


def _flight(sheet: Sheet, sender: int, receiver: int, size: int) -> int:
    """The ns that a message takes, rounded up."""
    if size < 0:
        return 0
    latency, bandwidth = sheet.problem.profile.link.between(sender, receiver)
    if bandwidth is None:
        return latency
    whole, rest = divmod(size * 1_000_000_000, bandwidth)
    return latency + whole + (1 if rest else 0)


def unattained_claim(sheet: Sheet, claimed_ns: int) -> Iterator[Violation]:
    """The times attain the claimed value exactly: no less, and no more."""
    rows = [row for row in map(_clocked, sheet.rows) if row]
    spans = [(min(entry.start for entry in row), max(entry.end for entry in row)) for row in rows]
    if sheet.problem.objective == "makespan" and spans:
        spans = [(min(first for first, _ in spans), max(last for _, last in spans))]
    value = max((last - first for first, last in spans), default=0)
    if sheet.problem.objective == "period":
        value = max(value, *least_repetitions(sheet), 0)
    if value != claimed_ns:
        yield Violation(
            "claim",
            f"a {sheet.problem.objective} of {number(claimed_ns)} ns is claimed, the times attain {number(value)} ns",
        )
