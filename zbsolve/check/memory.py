"""The rule of memory: along its row, a rank never holds more than its limit.

What an operation adds, it adds at its start; what it frees, it frees at its end; workspace is there
while it runs, and so is what a forward holds that no backward follows. A forward that is computed again
holds its checkpoint until then, and all that the backward needs from then on. What two operations that run
together add, both add at the start; what they free, both free at the end. What is moved to host memory is
freed by the release behind the copy, and taken again where the reload stands. So the bytes held follow from
the row alone, whenever its operations run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zbsolve.check.sheet import Entry, Sheet, show
from zbsolve.ops import Kind
from zbsolve.profile import StageCost
from zbsolve.timetable import Violation

__all__ = ["exceeded_limits", "peaks_of"]


_COPYING = (Kind.OFFLOAD, Kind.RELEASE, Kind.RELOAD)
"""These compute nothing, and so need no workspace."""


@dataclass(frozen=True, slots=True)
class _Walk:
    """Along one row: the peak in bytes, where it is first reached, and where the limit is first exceeded.

    An entry of None is the time before the first operation.
    """

    peak: int
    at: Entry | None
    exceeded: bool
    over: Entry | None


def _change(kind: Kind, cost: StageCost, *, again: bool) -> int:
    """Bytes that an operation leaves behind, less those that it found."""
    if kind is Kind.FORWARD:
        return cost.checkpoint if again else cost.activation_bytes
    if kind is Kind.RECOMPUTE:
        return cost.activation_bytes - cost.checkpoint
    if kind is Kind.OFFLOAD:
        return 0
    if kind in (Kind.RELEASE, Kind.RELOAD):
        moved = cost.activation_bytes if cost.offload_bytes is None else cost.offload_bytes
        return moved if kind is Kind.RELOAD else -moved
    if kind is Kind.BACKWARD_INPUT:
        return cost.backward_weight_bytes - cost.activation_bytes
    if kind is Kind.BACKWARD_WEIGHT:
        return -cost.backward_weight_bytes
    return -cost.activation_bytes


def _static(sheet: Sheet) -> list[int]:
    """What each rank holds all the time; a stage that lies on several ranks counts on each."""
    held = [0] * sheet.ranks
    for stage, cost in enumerate(sheet.problem.profile.stages):
        for rank in {route[stage] for route in sheet.problem.placement.routes}:
            held[rank] += cost.static_bytes
    return held


def _walk(sheet: Sheet, row: list[Entry], static: int, limit: int | None) -> _Walk:
    held = peak = static
    at = over = None
    exceeded = limit is not None and held > limit
    for entry in row:
        if entry.cell < 0 or entry.op.microbatch is None:  # once an iteration: all it needs is static
            continue
        during = held
        for op, cell in entry.halves:
            cost = sheet.cost(cell)
            change = _change(op.kind, cost, again=sheet.reruns[cell] is not None)
            during += max(change, 0) + (0 if op.kind in _COPYING else cost.workspace_bytes)
            held += 0 if sheet.problem.forward_only else change
        if during > peak:
            peak, at = during, entry
            if limit is not None and during > limit and not exceeded:
                exceeded, over = True, entry
    return _Walk(peak, at, exceeded, over)


def _walks(sheet: Sheet) -> Iterator[_Walk]:
    limits = sheet.problem.limit_bytes
    for rank, (static, limit) in enumerate(zip(_static(sheet), limits, strict=True)):
        yield _walk(sheet, sheet.rows[rank] if rank < len(sheet.rows) else [], static, limit)


def peaks_of(sheet: Sheet) -> tuple[int, ...]:
    """The peak of each rank, in bytes."""
    return tuple(walk.peak for walk in _walks(sheet))


def exceeded_limits(sheet: Sheet) -> Iterator[Violation]:
    """No rank ever holds more than its limit."""
    for rank, walk in enumerate(_walks(sheet)):
        if not walk.exceeded:
            continue
        limit = sheet.problem.limit_bytes[rank]
        assert limit is not None
        peak_at = "there" if walk.at is walk.over else _where(walk.at)
        yield Violation(
            "memory",
            f"rank {rank} exceeds its limit of {limit} bytes, first {_where(walk.over)}; its peak is {walk.peak} bytes "
            f"({walk.peak - limit} too many), {peak_at}",
            tuple(entry.op for entry in dict.fromkeys((walk.over, walk.at)) if entry is not None),
        )


def _where(entry: Entry | None) -> str:
    if entry is None:
        return "before its first operation, by static bytes alone"
    return f"at {show(entry.op)} (place {entry.place})"
