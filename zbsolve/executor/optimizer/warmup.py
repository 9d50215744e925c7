"""The next warm-up: where a rank may validate, and which of its forwards are stale afterwards.

A *closed* set of validation points is one where what any rank runs before its validation needs only
forwards that other ranks run before theirs::

    rank 0   F0  F1  F2 | validate | F3            closed: F1 of rank 1 needs F1 of rank 0
    rank 1   F0  F1 | validate | F2  F3            not closed, if rank 0 validated after its F0
    rank 2   F0 | validate | F1  F2  F3

Then nothing before a validation waits for another rank's validation, so they cannot wait for each
other in a circle; and every message that a rank takes before its validation was sent before the
sender's, so both know how many messages are void when forwards run again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

__all__ = ["stale_stages", "validation_points"]

T = TypeVar("T")


def validation_points(
    rows: Sequence[Sequence[T]], wanted: Sequence[int], needs: Callable[[T], T | None]
) -> tuple[int, ...]:
    """How many operations of its row each rank runs before it validates: closed, and the most that is.

    Parameters
    ----------
    rows
        The leading forwards of each rank, in order; no rank may have run a backward before.
    wanted
        The most for each rank: as many as fill the time until the full state can be there, such as
        ``ranks - 1 - position``.
    needs
        The forward whose output a forward takes; None where it takes data.
    """
    points = [min(most, len(row)) for most, row in zip(wanted, rows, strict=True)]
    while True:
        early = {op for row, point in zip(rows, points, strict=True) for op in row[:point]}
        shrunk = [_closed(row[:point], early, needs) for row, point in zip(rows, points, strict=True)]
        if shrunk == points:
            return tuple(points)
        points = shrunk


def _closed(head: Sequence[T], early: Collection[T], needs: Callable[[T], T | None]) -> int:
    for index, op in enumerate(head):
        source = needs(op)
        if source is not None and source not in early:
            return index
    return len(head)


def stale_stages(route: Sequence[int], wrong: Collection[int]) -> range:
    """Stages whose forwards, run before validation, must run again along one route.

    A forward is stale if its own weights were wrong or its input came from a stale forward: all
    stages from the first that lies on a wrong rank.

    Parameters
    ----------
    route
        Position of the rank of each stage.
    wrong
        `Validation.wrong_ranks`.
    """
    first = next((stage for stage, rank in enumerate(route) if rank in wrong), len(route))
    return range(first, len(route))
