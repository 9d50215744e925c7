"""Timetables as one self-contained HTML page: it works offline, asks for nothing, and prints.

`payload` turns timetables and what `analysis` says of them into compact columns, `page` writes the
HTML: what needs no script stands in it as text, tables and small SVG bars; the timelines are drawn
from the columns by the scripts in the folder `page/`, which are inlined. A content security policy
lets nothing run but these scripts, by their hash, and nothing be loaded from anywhere. Every name
that comes from a file is text to HTML, to JSON and to the scripts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zbsolve.disk import write_atomic
from zbsolve.draw.panel import clean
from zbsolve.draw.report.page import html
from zbsolve.draw.report.payload import Section, section
from zbsolve.errors import InvalidInput
from zbsolve.solution import Bound, Solution
from zbsolve.timetable import Timetable

__all__ = ["MOST_TIMETABLES", "Entry", "render_report", "write_report"]

MOST_TIMETABLES = 24


@dataclass(frozen=True, slots=True)
class Entry:
    """One timetable of a report.

    Parameters
    ----------
    title
        What to call it.
    timetable
        As `check` accepts it.
    recorded
        A bound that its solver proved, if there is one.
    """

    title: str
    timetable: Timetable
    recorded: Bound | None = None

    @classmethod
    def of(cls, title: str, what: Timetable | Solution) -> Entry:
        """A timetable, or a solution with its bound."""
        if isinstance(what, Solution):
            return cls(title, what.timetable, Bound(what.lower_bound_ns, what.bound))
        return cls(title, what)


def render_report(entries: Sequence[Entry]) -> bytes:
    """Write the page as bytes of UTF-8; the same bytes for the same input.

    Raises
    ------
    InvalidInput
        If there is no timetable, or more than `MOST_TIMETABLES`.
    OrderError
        If the rows of one are no order of its problem or can never finish.
    """
    if not entries:
        raise InvalidInput("nothing to report: give at least one timetable with its title")
    if len(entries) > MOST_TIMETABLES:
        raise InvalidInput(f"one report holds at most {MOST_TIMETABLES} timetables, got {len(entries)}")
    sections: list[Section] = [section(clean(e.title), e.timetable, e.recorded) for e in entries]
    return html(sections)


def write_report(timetables: Sequence[tuple[str, Timetable | Solution]], path: str | Path) -> Path:
    """Write a report of timetables, one below the other on one time axis.

    Parameters
    ----------
    timetables
        Titles and sound timetables, or solutions, top to bottom.
    path
        The HTML file; replaced as a whole or not at all.

    Returns
    -------
    Path
        The file written.

    Raises
    ------
    InvalidInput
        If there is nothing to report, or too much, or the file cannot be written.
    OrderError
        If the rows of a timetable are no order of its problem or can never finish.
    """
    data = render_report([Entry.of(title, what) for title, what in timetables])
    write_atomic(path, data)
    return Path(path)
