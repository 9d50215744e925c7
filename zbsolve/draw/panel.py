"""What a picture of one timetable shows, before any drawing: its figures, windows and time axis.

A picture paints idle time grey inside each rank's *window*. Under the period objective the window
of a rank starts with its first operation and lasts one period: the next iteration follows at once.
Under the makespan objective it is the whole span on every rank. Either way the grey share of the
windows is the bubble.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zbsolve.errors import InvalidInput
from zbsolve.ops import Kind
from zbsolve.timetable import Timetable
from zbsolve.units import format_ns

__all__ = ["Panel", "Ticks", "clean", "panels", "ticks"]

_UNITS = (("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1))
LONGEST_TITLE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One timetable and its figures at the planned times.

    Parameters
    ----------
    title
        Printable, on one line.
    timetable
        What is drawn.
    value_ns
        The period or the makespan of the planned times.
    bubble
        1 - compute work / (ranks x value); 0 where there is no work.
    windows
        For each rank the time it is asked to fill, start and end in ns.
    chunk_of
        For each rank the stages it holds, and which of its chunks each is, from 0.
    """

    title: str
    timetable: Timetable
    value_ns: int
    bubble: float
    windows: tuple[tuple[int, int], ...]
    chunk_of: tuple[dict[int, int], ...]

    @property
    def value_text(self) -> str:
        """The objective's value in words, such as ``"period 1.31 s"``."""
        return f"{self.timetable.problem.objective} {format_ns(self.value_ns)}"

    @property
    def bubble_text(self) -> str:
        """The bubble in words, such as ``"bubble 15.85 %"``."""
        return f"bubble {100 * self.bubble:.2f} %"

    @property
    def caption(self) -> str:
        """Title and figures on one line."""
        title = f"{self.title}: " if self.title else ""
        return f"{title}{self.value_text}, {self.bubble_text}"

    @property
    def formula(self) -> str:
        """How the bubble is computed."""
        return f"bubble = 1 - compute work / (ranks x {self.timetable.problem.objective})"

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds that occur, in the order of `Kind`."""
        found = {op.kind for row in self.timetable.rows for timed in row for op in timed.op.halves}
        return tuple(kind for kind in Kind if kind in found)

    @property
    def chunks(self) -> int:
        """The most stages that one rank holds."""
        return max(map(len, self.chunk_of), default=1)

    @property
    def end_ns(self) -> int:
        """Where the last window or operation ends."""
        last = max((timed.end_ns for row in self.timetable.rows for timed in row), default=0)
        return max(last, max((end for _, end in self.windows), default=0))


@dataclass(frozen=True, slots=True)
class Ticks:
    """Marks of a time axis: multiples of `step_ns` from 0, written in `unit`."""

    step_ns: int
    unit: str
    unit_ns: int

    def label(self, at_ns: int) -> str:
        """The number at a mark, without its unit."""
        return str(at_ns // self.unit_ns)


def panels(timetables: Sequence[tuple[str, Timetable]]) -> tuple[Panel, ...]:
    """Work out the figures of several timetables.

    Raises
    ------
    InvalidInput
        If there are none, or one has no ranks.
    """
    if not timetables:
        raise InvalidInput("nothing to draw: give at least one timetable with its title")
    for title, timetable in timetables:
        if not timetable.rows:
            raise InvalidInput(f"nothing to draw: the timetable {clean(title)!r} has no ranks")
    return tuple(_panel(title, timetable) for title, timetable in timetables)


def _panel(title: str, timetable: Timetable) -> Panel:
    rows = timetable.rows
    computes = (timed for row in rows for timed in row if timed.op.kind.resource == "compute")
    work = sum(timed.end_ns - timed.start_ns for timed in computes)
    first = [min((timed.start_ns for timed in row), default=0) for row in rows]
    if timetable.problem.objective == "period":
        value = timetable.period_ns
        windows = tuple((start, start + value) for start in first)
    else:
        value = timetable.makespan_ns
        start = min((start for start, row in zip(first, rows, strict=True) if row), default=0)
        windows = ((start, start + value),) * len(rows)
    bubble = 1 - work / (len(rows) * value) if value else 0.0
    held: list[set[int]] = [set() for _ in range(max(timetable.problem.placement.ranks, len(rows)))]
    for route in timetable.problem.placement.routes:
        for stage, rank in enumerate(route):
            held[rank].add(stage)
    return Panel(
        title=clean(title),
        timetable=timetable,
        value_ns=value,
        bubble=bubble,
        windows=windows,
        chunk_of=tuple({stage: k for k, stage in enumerate(sorted(stages))} for stages in held),
    )


def clean(title: str) -> str:
    """Make a title safe to show: one line, printable (no escape sequences, no surrogates), not endless."""
    text = " ".join(
        "".join(c if c.isprintable() or c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in title).split()
    )
    return text if len(text) <= LONGEST_TITLE else text[: LONGEST_TITLE - 3] + "..."


def ticks(span_ns: int, most: int) -> Ticks:
    """Choose the least step of 1, 2 or 5 times a power of ten with at most `most` marks after 0."""
    step, factors = 1, (2, 5, 10)
    while span_ns > step * most:
        for factor in factors:
            if span_ns <= step * factor * most or factor == 10:
                step *= factor
                break
    unit, size = next((unit, size) for unit, size in _UNITS if step >= size)
    return Ticks(step, unit, size)
