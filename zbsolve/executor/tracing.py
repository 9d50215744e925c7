"""From the marks that ranks have noted to a trace, and how far their clocks are apart."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from zbsolve.errors import RunError
from zbsolve.executor.rank import Rank
from zbsolve.executor.transports.protocol import Endpoint
from zbsolve.lowering import Message
from zbsolve.ops import Op
from zbsolve.problem import Problem
from zbsolve.timetable import TimedOp
from zbsolve.trace import Trace, Transfer

__all__ = ["clock_offset", "measured_rows", "rows_of_all", "trace_of"]

_PINGS = 12
_TAG = (1 << 20) + 1
_ROWS_TAG = _TAG + 1

Rows = dict[int, list[int]]
"""By step: start and end of each operation of a rank, then three times of each message of all ranks, in ns."""

_NEVER = -(2**62)


def measured_rows(rank: Rank) -> Rows:
    """The times of the kept steps, in ns of this process's clock."""
    rank.clock.settle()
    anchor, anchor_ns = rank.anchor

    def told(mark: Any) -> int:
        return _NEVER if mark is None else anchor_ns + rank.clock.between(anchor, mark)

    return {step: [told(mark) for mark in (*marks, *passing)] for step, marks, passing in rank.history}


def clock_offset(endpoint: Endpoint, ranks: int) -> tuple[int, int]:
    """How far this rank's clock is behind rank 0's, and how wrong that can be, in ns.

    Rank 0 answers every rank in turn. The answer was written between question and arrival, so half of
    the fastest round is the error.
    """
    now = [torch.zeros(1, dtype=torch.int64)]
    if endpoint.rank:
        best: tuple[int, int] | None = None
        for _ in range(_PINGS):
            asked = time.perf_counter_ns()
            endpoint.tell(0, now, _TAG)
            (answer,) = endpoint.hear(0, now, _TAG)
            heard = time.perf_counter_ns()
            if best is None or heard - asked < best[1]:
                best = int(answer) - (asked + heard) // 2, heard - asked
        assert best is not None
        return best[0], -(-best[1] // 2)
    for other in range(1, ranks):
        for _ in range(_PINGS):
            endpoint.hear(other, now, _TAG)
            endpoint.tell(other, [torch.tensor([time.perf_counter_ns()])], _TAG)
    return 0, 0


def trace_of(
    problem: Problem,
    ops: Sequence[Sequence[Op]],
    messages: Sequence[Message],
    rows: Sequence[Rows],
    clock_error_ns: int,
    peak_bytes: Sequence[int | None],
) -> Trace:
    """Put the rows of all ranks together; steps that not every rank has are left out.

    Raises
    ------
    RunError
        If no step was measured.
    """
    common = sorted(set.intersection(*(set(mine) for mine in rows))) if rows else []
    if not common:
        raise RunError("no step has been measured yet; run one first")
    # a row without operations has no times
    first = min(mine[common[0]][0] for mine, own in zip(rows, ops, strict=True) if own)

    def row(rank: int, step: int) -> tuple[TimedOp, ...]:
        times = rows[rank][step]
        return tuple(TimedOp(op, times[2 * i] - first, times[2 * i + 1] - first) for i, op in enumerate(ops[rank]))

    def passed(step: int) -> tuple[Transfer, ...]:
        found = []
        for number, m in enumerate(messages):
            if not m.local:
                sent = rows[m.sender][step][2 * len(ops[m.sender]) + 3 * number]
                at = 2 * len(ops[m.receiver]) + 3 * number
                waited, taken = rows[m.receiver][step][at + 1 : at + 3]
                found.append(
                    Transfer(m.tail, m.head, m.sender, m.receiver, sent - first, waited - first, taken - first)
                )
        return tuple(found)

    return Trace(
        problem=problem,
        steps=tuple(tuple(row(rank, step) for rank in range(len(ops))) for step in common),
        transfers=tuple(passed(step) for step in common),
        clock_error_ns=clock_error_ns,
        peak_bytes=tuple(peak_bytes),
    )


def rows_of_all(rank: Rank, widths: Sequence[int]) -> tuple[list[Rows], int]:
    """The rows of all ranks by rank 0's clock, in every process, and how far the clocks can be apart.

    Parameters
    ----------
    rank
        Of this process; all ranks call this.
    widths
        How many times each rank notes in a step.
    """
    own, endpoint = measured_rows(rank), rank.endpoint
    others = [r for r in range(len(widths)) if r != rank.number]
    endpoint.befriend(others)
    offset, error = clock_offset(endpoint, len(widths))
    own = {step: [t if t == _NEVER else t + offset for t in row] for step, row in own.items()}
    steps = sorted(own)
    head = torch.tensor([len(steps), steps[0] if steps else 0, error], dtype=torch.int64)
    mine = torch.tensor([own[step] for step in steps], dtype=torch.int64).reshape(len(steps), widths[rank.number])
    for other in others:
        endpoint.tell(other, [head, mine], _ROWS_TAG)
    rows: list[Rows] = []
    for other, width in enumerate(widths):
        if other == rank.number:
            rows.append(own)
            continue
        (told,) = endpoint.hear(other, [head], _ROWS_TAG)
        count, first, theirs = (int(v) for v in told)
        error = max(error, theirs)
        (numbers,) = endpoint.hear(other, [torch.zeros((count, width), dtype=torch.int64)], _ROWS_TAG)
        rows.append(dict(zip(range(first, first + count), numbers.tolist(), strict=True)))
    return rows, 2 * error
