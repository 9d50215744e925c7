"""Timetables as text: one line a rank, time to the right, exactly to scale.

A column stands for an equal slice of time. An operation takes the columns between its rounded
start and end and shows its letter and microbatch where they fit. One too short for a column of its
own is not lost: the column it falls into turns into ``#``, or ``:`` where it is mostly idle.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from zbsolve.draw.colours import FILL, MEANING, TEXT
from zbsolve.draw.panel import Panel, Ticks, panels, ticks
from zbsolve.errors import InvalidInput
from zbsolve.ops import Kind, Op
from zbsolve.timetable import TimedOp, Timetable
from zbsolve.units import format_ns

__all__ = ["gantt", "gantt_stack"]

LEAST_WIDTH = 20
_RESET = "\x1b[0m"
_LETTER = {
    Kind.FORWARD: "F",
    Kind.BACKWARD_INPUT: "B",
    Kind.BACKWARD_WEIGHT: "W",
    Kind.BACKWARD: "&",
    Kind.RECOMPUTE: "C",
    Kind.OPTIMIZER: "O",
}
_DIM = "\x1b[2m"
_BOLD = "\x1b[1m"


def gantt(timetable: Timetable, *, width: int = 100, colour: bool = True) -> str:
    """Draw a timetable as text.

    Parameters
    ----------
    timetable
        Drawn at its planned times.
    width
        The most columns a line may take, at least 20.
    colour
        With ANSI colours (256), else plain ASCII; the characters are the same.

    Returns
    -------
    str
        Figures, one line a rank, a time axis and a legend; lines end without trailing spaces.

    Raises
    ------
    InvalidInput
        If the width is too small.
    """
    return gantt_stack([("", timetable)], width=width, colour=colour)


def gantt_stack(timetables: Sequence[tuple[str, Timetable]], *, width: int = 100, colour: bool = True) -> str:
    """Draw several timetables below each other on one time axis; see `gantt`.

    Parameters
    ----------
    timetables
        Titles and timetables, top to bottom.
    width, colour
        As for `gantt`.

    Raises
    ------
    InvalidInput
        If there are none, or the width is too small.
    """
    if width < LEAST_WIDTH:
        raise InvalidInput(f"a picture needs a width of at least {LEAST_WIDTH} columns, got {width}")
    shown = panels(timetables)
    ranks = max(len(panel.timetable.rows) for panel in shown)
    label = f"rank {ranks - 1} " if width >= 60 else f"{ranks - 1} "
    columns = width - len(label)
    span = max(1, *(panel.end_ns for panel in shown))
    lines: list[str] = []
    crowded = False
    for panel in shown:
        if lines:
            lines.append("")
        lines += _header(panel, width, colour)
        for rank in range(len(panel.timetable.rows)):
            name = f"rank {rank} " if width >= 60 else f"{rank} "
            row = _Row.build(panel, rank, span, columns)
            crowded |= row.crowded
            lines.append((name.rjust(len(label)) + row.text(colour)).rstrip())
    lines += [" " * len(label) + line for line in _axis(span, columns)]
    lines += _legend(shown, span, columns, width, crowded, colour)
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class _Row:
    """The columns of one rank: a character and, where an operation stands there, its kind."""

    cells: tuple[str, ...]
    kinds: tuple[Kind | None, ...]
    crowded: bool

    @classmethod
    def build(cls, panel: Panel, rank: int, span: int, columns: int) -> _Row:
        computes = (t for t in panel.timetable.rows[rank] if t.op.kind in _LETTER)
        row = sorted(computes, key=lambda timed: (timed.start_ns, timed.end_ns))
        start, end = panel.windows[rank]
        chunk_of, many = panel.chunk_of[rank], panel.chunks > 2
        cells = [" "] * columns
        kinds: list[Kind | None] = [None] * columns
        for column in range(_column(start, span, columns), _column(end, span, columns)):
            cells[column] = "."
        owner: list[int | None] = [None] * columns
        crowded: set[int] = set()
        for index, timed in enumerate(row):
            a, b = _column(timed.start_ns, span, columns), _column(timed.end_ns, span, columns)
            if a >= b:
                middle = (timed.start_ns + timed.end_ns) * columns // (2 * span)
                crowded.add(max(0, min(columns - 1, middle)))
            for column in range(a, b):
                if owner[column] is not None:  # overlapping operations: the judge's business, but not hidden
                    crowded.add(column)
                owner[column] = index
        for index, run in _runs(owner, crowded):
            timed = row[index]
            cells[run.start : run.stop], kinds[run.start : run.stop] = _shown(timed.op, chunk_of, many, len(run))
        for column in crowded:
            cells[column] = "#" if _busy_half(row, column, span, columns) else ":"
            kinds[column] = None
        return cls(tuple(cells), tuple(kinds), bool(crowded))

    def text(self, colour: bool) -> str:
        """The line, with ANSI colours if asked; idle columns stay without."""
        if not colour:
            return "".join(self.cells)
        parts, at = [], 0
        while at < len(self.cells):
            kind, until = self.kinds[at], at
            while until < len(self.cells) and self.kinds[until] is kind:
                until += 1
            piece = "".join(self.cells[at:until])
            parts.append(piece if kind is None else _paint(piece, kind))
            at = until
        return "".join(parts)


def _column(at_ns: int, span: int, columns: int) -> int:
    """The column boundary nearest to a time, half up, in exact integers; within the picture."""
    return max(0, min(columns, (2 * at_ns * columns + span) // (2 * span)))


def _runs(owner: list[int | None], crowded: set[int]) -> Iterator[tuple[int, range]]:
    """For each operation its stretches of columns that it has to itself; the label goes to each."""
    at = 0
    while at < len(owner):
        index, until = owner[at], at
        while until < len(owner) and owner[until] == index and until not in crowded:
            until += 1
        if index is not None and until > at:
            yield index, range(at, until)
        at = max(until, at + 1)


def _shown(op: Op, chunk_of: Mapping[int, int], many: bool, room: int) -> tuple[str, list[Kind | None]]:
    """Text and kinds of the columns of an operation; of a pair the forward's half, then the backward's."""
    halves = op.halves if room > 1 else op.halves[:1]
    rooms = [room] if len(halves) == 1 else [room - room // 2, room // 2]
    texts = [_label(half, chunk_of.get(half.stage, 0) > 0, many, own) for half, own in zip(halves, rooms, strict=True)]
    return "".join(texts), [half.kind for half, own in zip(halves, rooms, strict=True) for _ in range(own)]


def _label(op: Op, later: bool, many: bool, room: int) -> str:
    """Letter and microbatch, filled up with dashes; the stage too where a rank has more than two chunks."""
    number = "" if op.microbatch is None else str(op.microbatch)
    letter = _LETTER[op.kind].lower() if later else _LETTER[op.kind]
    choices = [f"{letter}{number}@{op.stage}"] if many else []
    choices += [f"{letter}{number}", letter]
    return next(choice for choice in choices if len(choice) <= room).ljust(room, "-")


def _busy_half(row: list[TimedOp], column: int, span: int, columns: int) -> bool:
    """Whether operations fill more than half of a column's slice of time."""
    start, end = column * span, (column + 1) * span  # in ns x columns
    at = bisect_left(row, start, key=lambda timed: timed.end_ns * columns)
    busy = 0
    while at < len(row) and row[at].start_ns * columns < end:
        busy += max(0, min(end, row[at].end_ns * columns) - max(start, row[at].start_ns * columns))
        at += 1
    return 2 * busy > span


def _axis(span: int, columns: int) -> list[str]:
    """Two lines: marks, and times with their units."""
    most = max(1, columns // 8)
    marks = ticks(span, most)
    rule, labels = ["-"] * columns, ""
    for at in range(0, span + 1, marks.step_ns):
        column = min(columns - 1, _column(at, span, columns))
        rule[column] = "+"
        text = _tick_text(marks, at)
        if column + len(text) <= columns and (not labels or column > len(labels)):
            labels = labels.ljust(column) + text
    return ["".join(rule), labels]


def _tick_text(marks: Ticks, at: int) -> str:
    return f"{marks.label(at)}{marks.unit}" if at else "0"


def _header(panel: Panel, width: int, colour: bool) -> list[str]:
    lines = _wrap(panel.caption.split(" "), width)
    return [f"{_BOLD}{line}{_RESET}" for line in lines] if colour else lines


def _legend(shown: tuple[Panel, ...], span: int, columns: int, width: int, crowded: bool, colour: bool) -> list[str]:
    present = [kind for kind in Kind if any(kind in panel.kinds for panel in shown)]
    used = [kind for kind in present if kind in _LETTER]
    entries = [f"{_LETTER[kind]} {MEANING[kind]}" for kind in used]
    chunks = max(panel.chunks for panel in shown)
    if chunks > 1:
        entries.append("lower case: a later chunk of its rank" + (" (@ its stage)" if chunks > 2 else ""))
    if any(t.op.beside is not None for panel in shown for row in panel.timetable.rows for t in row):
        entries.append("a forward right ahead of a backward may run together with it: each has half of the columns")
    entries.append(". idle")
    if Kind.REDUCE_GRADIENT in present:
        entries.append("reductions of gradients run beside what is shown")
    if any(kind.moves for kind in present):
        entries.append("copies to host memory and back run beside what is shown")
    if crowded:
        entries.append("# several in one column (: mostly idle)")
    facts = [f"one column is {format_ns(span / columns)}", *dict.fromkeys(panel.formula for panel in shown)]
    lines = _flow(entries, "   ", width) + _flow(facts, "; ", width)
    return [f"{_DIM}{line}{_RESET}" for line in lines] if colour else lines


def _flow(entries: list[str], between: str, width: int) -> list[str]:
    """Put entries side by side while they fit; one that is too long for a line is broken."""
    lines: list[str] = []
    for entry in entries:
        if lines and len(lines[-1]) + len(between) + len(entry) <= width:
            lines[-1] += between + entry
        else:
            lines += _wrap(entry.split(" "), width)
    return lines


def _wrap(words: list[str], width: int) -> list[str]:
    """Fill lines of at most `width` terminal cells; a longer word is broken."""
    from rich.cells import cell_len, chop_cells

    lines, line = [], ""
    for word in words:
        longer = f"{line} {word}" if line else word
        if cell_len(longer) <= width:
            line = longer
            continue
        if line:
            lines.append(line)
        *full, line = chop_cells(word, width) or [""]
        lines += full
    return [*lines, line]


def _paint(text: str, kind: Kind) -> str:
    return f"\x1b[38;5;{_ansi(TEXT[kind])};48;5;{_ansi(FILL[kind])}m{text}{_RESET}"


def _ansi(colour: str) -> int:
    """The nearest of the 6 x 6 x 6 colours that every 256-colour terminal has."""
    levels = (0, 95, 135, 175, 215, 255)
    digits = [min(range(6), key=lambda k: abs(levels[k] - int(colour[i : i + 2], 16))) for i in (1, 3, 5)]
    return 16 + 36 * digits[0] + 6 * digits[1] + digits[2]
