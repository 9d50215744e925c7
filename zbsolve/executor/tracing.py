"""From the marks that ranks have noted to a trace, and how far their clocks are apart."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from zbsolve.errors import RunError
from zbsolve.executor.rank import Rank
from zbsolve.executor.transports.protocol import Endpoint
from zbsolve.ops import Op
from zbsolve.problem import Problem
from zbsolve.timetable import TimedOp
from zbsolve.trace import Trace

__all__ = ["clock_offset", "measured_rows", "trace_of"]

_PINGS = 12
_TAG = (1 << 20) + 1

Rows = dict[int, list[tuple[int, int]]]
"""By step, start and end of each operation of a rank, in ns."""


def measured_rows(rank: Rank) -> Rows:
    """Start and end of every operation of the kept steps, in ns of this process's clock."""
    rank.clock.settle()
    found: Rows = {}
    anchor, anchor_ns = rank.anchor
    for step, marks in rank.history:
        times = [anchor_ns + rank.clock.between(anchor, mark) for mark in marks]
        found[step] = list(zip(times[::2], times[1::2], strict=True))
    return found


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
    first = min(min((start for start, _ in mine[common[0]]), default=2**62) for mine in rows)
    steps = tuple(
        tuple(
            tuple(TimedOp(op, start - first, end - first) for op, (start, end) in zip(own, mine[step], strict=True))
            for own, mine in zip(ops, rows, strict=True)
        )
        for step in common
    )
    return Trace(problem=problem, steps=steps, clock_error_ns=clock_error_ns, peak_bytes=tuple(peak_bytes))


def as_tensor(rows: Rows, steps: Sequence[int]) -> torch.Tensor:
    """Rows as numbers, to be told to other ranks."""
    return torch.tensor([[list(pair) for pair in rows[step]] for step in steps], dtype=torch.int64)


def from_tensor(numbers: torch.Tensor, steps: Sequence[int]) -> Rows:
    """What `as_tensor` made."""
    return {step: [(a, b) for a, b in row] for step, row in zip(steps, numbers.tolist(), strict=True)}


def shifted(rows: Mapping[int, Any], offset: int) -> Rows:
    """Rows by another clock."""
    return {step: [(a + offset, b + offset) for a, b in row] for step, row in rows.items()}
