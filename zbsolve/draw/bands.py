"""The memory of a timetable as bands, one a rank: an area over time below the rank's limit.

All bands of a picture have one scale, from no bytes at a band's floor to `band_bytes` at its top,
so that ranks and timetables compare by eye.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zbsolve.draw.panel import Panel
from zbsolve.metrics import memory_curve, metrics
from zbsolve.timetable import Timetable
from zbsolve.units import format_bytes

__all__ = ["Memory", "band_bytes"]

Line = list[tuple[float, float]]
FLOOR, HEIGHT = 0.97, 0.77  # of a band's place, downwards from its top


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of one timetable: for each rank its steps, its peak, what it always holds, its limit."""

    curves: tuple[tuple[tuple[int, int], ...], ...]
    peaks: tuple[int, ...]
    static: tuple[int, ...]
    limits: tuple[int | None, ...]

    @classmethod
    def of(cls, timetable: Timetable) -> Memory:
        """Read it off a timetable.

        Raises
        ------
        OrderError
            If the rows are no order of the problem or can never finish.
        """
        problem = timetable.problem
        static = tuple(problem.static_bytes(rank) for rank in range(problem.placement.ranks))
        return cls(memory_curve(timetable), metrics(timetable).peak_bytes, static, problem.limit_bytes)

    def areas(self, panel: Panel, top: int) -> list[Line]:
        """For each rank the outline of what it holds within its window."""
        areas: list[Line] = []
        for rank, (curve, (start, end)) in enumerate(zip(self.curves, panel.windows, strict=True)):
            level = _at(rank, self.static[rank], top)
            outline: Line = [(start, rank + FLOOR), (start, level)]
            for time, size in curve:
                if time >= start:
                    outline.append((time, level))
                    level = _at(rank, size, top)
                    outline.append((time, level))
            areas.append([*outline, (end, level), (end, rank + FLOOR)])
        return areas

    def always(self, panel: Panel, top: int) -> list[Line]:
        """For each rank the outline of its static bytes."""
        shapes: list[Line] = []
        for rank, (start, end) in enumerate(panel.windows):
            floor, level = rank + FLOOR, _at(rank, self.static[rank], top)
            shapes.append([(start, floor), (start, level), (end, level), (end, floor)])
        return shapes

    def limit_lines(self, panel: Panel, top: int) -> list[Line]:
        """The limits that lie within their band."""
        return [
            [(start, _at(rank, limit, top)), (end, _at(rank, limit, top))]
            for rank, (limit, (start, end)) in enumerate(zip(self.limits, panel.windows, strict=True))
            if limit is not None and limit <= top
        ]

    def label(self, rank: int) -> str:
        """The peak of a rank in words, and its limit."""
        limit = self.limits[rank]
        return format_bytes(self.peaks[rank]) + ("" if limit is None else f" of {format_bytes(limit)}")


def _at(rank: int, size: int, top: int) -> float:
    return rank + FLOOR - HEIGHT * size / top


def band_bytes(memories: Sequence[Memory]) -> int:
    """The bytes a band is high: the greatest peak, and limits unless they are far above it."""
    peak = max((peak for memory in memories for peak in memory.peaks), default=0)
    limits = [limit for memory in memories for limit in memory.limits if limit is not None and limit <= 2 * peak]
    return max([peak, *limits, 1])
