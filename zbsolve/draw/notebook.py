"""Timetables and solutions as a cell of a notebook: one small picture and a table of figures.

It is plain HTML with an inline SVG: no script, no link, no font of its own, every name escaped, colours
by kind as in all pictures. Rows are drawn in columns of a fixed number, one path a kind, so the size is
bounded whatever the number of operations; where all boxes are few, each also tells its times on hover.
"""

from __future__ import annotations

from html import escape
from itertools import groupby

from zbsolve.draw import colours
from zbsolve.draw.panel import Panel, clean, panels, ticks
from zbsolve.ops import Kind
from zbsolve.solution import Solution
from zbsolve.timetable import TimedOp, Timetable
from zbsolve.units import counted, format_bytes, format_ns

__all__ = ["solution_html", "timetable_html"]

WIDTH, LEFT, ROW, GAP, AXIS = 860, 52, 20, 3, 18

MOST_ROWS = 32
MOST_BOXES = 400
"""Up to so many operations are drawn one by one, with letters and times."""

COLUMNS = 800
"""Else a row is so many columns, each in the colour of what fills most of it."""


def timetable_html(timetable: Timetable) -> str:
    """Show a timetable as HTML: a picture at its planned times, and one line of figures."""
    if not timetable.rows or not any(timetable.rows):
        return f"<pre>{escape(repr(timetable))}</pre>"
    (panel,) = panels([(timetable.problem.profile.name, timetable)])
    return _box(panel, escape(f"{panel.caption}; {_asked(timetable)}"), "")


def solution_html(solution: Solution) -> str:
    """Show a solution as HTML: its picture, and its figures as a table."""
    timetable = solution.timetable
    problem, found = timetable.problem, solution.metrics
    (panel,) = panels([(problem.profile.name, timetable)])
    peaks = list(zip(found.peak_bytes, problem.limit_bytes, strict=True))
    fullest, limit = max(peaks, key=lambda pair: pair[0] - (pair[1] or 0))
    figures = [
        ("status", solution.status),
        (problem.objective, f"{format_ns(solution.value_ns)} ({solution.value_ns} ns)"),
        ("bound", f"{format_ns(solution.lower_bound_ns)} by {clean(solution.bound)}, gap {solution.gap:.2%}"),
        ("bubble", f"{found.bubble:.4f} = {found.bubble_formula}"),
        ("makespan", format_ns(found.makespan_ns)),
        ("fullest rank", format_bytes(fullest) + ("" if limit is None else f" of {format_bytes(limit)}")),
        ("found by", f"{clean(solution.method)} in {solution.seconds:.1f} s, seed {solution.seed}"),
    ]
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in figures
    )
    return _box(
        panel, escape(f"{panel.title + ': ' if panel.title else ''}{_asked(timetable)}"), f"<table>{cells}</table>"
    )


def _asked(timetable: Timetable) -> str:
    problem = timetable.problem
    where = problem.placement
    return (
        f"{problem.microbatches_in_words}, {counted(where.stages, 'stage')} on "
        f"{counted(where.ranks, 'rank')} ({clean(where.name)})"
    )


def _box(panel: Panel, caption: str, below: str) -> str:
    return f'<div><div style="font-weight:600">{caption}</div>{_svg(panel)}{_legend(panel)}{below}</div>'


def _legend(panel: Panel) -> str:
    entries = "".join(
        f'<span style="margin-right:1em"><span style="color:{colours.FILL[kind]}">&#9632;</span> '
        f"{escape(kind.letter)} {escape(colours.MEANING[kind])}</span>"
        for kind in panel.kinds
    )
    hidden = len(panel.timetable.rows) - MOST_ROWS
    more = f"and {counted(hidden, 'more rank')}" if hidden > 0 else ""
    return f'<div style="font-size:85%">{entries}{more}</div>'


def _svg(panel: Panel) -> str:
    rows = panel.timetable.rows[:MOST_ROWS]
    span = max(1, panel.end_ns)
    scale = (WIDTH - LEFT) / span
    height = len(rows) * (ROW + GAP) + AXIS
    few = sum(map(len, panel.timetable.rows)) <= MOST_BOXES
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'style="display:block;width:100%;max-width:{WIDTH}px;background:#fff" '
        'font-family="sans-serif" font-size="10">',
        f"<title>{escape(panel.caption)}</title>",
    ]
    for rank, row in enumerate(rows):
        top = rank * (ROW + GAP)
        start, end = panel.windows[rank]
        parts.append(f'<text x="0" y="{top + 14}" fill="{colours.MUTED}">rank {rank}</text>')
        parts.append(
            f'<rect x="{_at(start, scale)}" y="{top}" width="{(end - start) * scale:.1f}" height="{ROW}" '
            f'fill="{colours.IDLE}"/>'
        )
        parts += _boxes(row, top, scale) if few else _columns(row, top, span)
    parts += _axis(span, scale, height)
    return "".join([*parts, "</svg>"])


def _at(ns: int, scale: float) -> str:
    return f"{LEFT + ns * scale:.1f}"


def _boxes(row: tuple[TimedOp, ...], top: int, scale: float) -> list[str]:
    made = []
    for timed in row:
        op, wide = timed.op, (timed.end_ns - timed.start_ns) * scale
        told = f"{op}: {format_ns(timed.start_ns)} to {format_ns(timed.end_ns)}"
        made.append(
            f'<rect x="{_at(timed.start_ns, scale)}" y="{top}" width="{wide:.1f}" height="{ROW}" '
            f'fill="{colours.FILL[op.kind]}" stroke="#fff" stroke-width=".5"><title>{escape(told)}</title></rect>'
        )
        label = f"{op.kind.letter}{'' if op.microbatch is None else op.microbatch}"
        if wide > 7 * len(label):
            made.append(
                f'<text x="{LEFT + timed.start_ns * scale + wide / 2:.1f}" y="{top + 14}" text-anchor="middle" '
                f'fill="{colours.TEXT[op.kind]}" pointer-events="none">{escape(label)}</text>'
            )
    return made


def _columns(row: tuple[TimedOp, ...], top: int, span: int) -> list[str]:
    """One path a kind, in columns: exact where operations are wide, the most of each column where they are not."""
    filled: list[dict[Kind, float]] = [{} for _ in range(COLUMNS)]
    for timed in row:
        first, last = timed.start_ns * COLUMNS / span, timed.end_ns * COLUMNS / span
        for column in range(int(first), min(COLUMNS, int(last) + 1)):
            part = min(last, column + 1) - max(first, column)
            filled[column][timed.op.kind] = filled[column].get(timed.op.kind, 0.0) + part
    kinds = [max(part, key=lambda kind: part[kind]) if sum(part.values()) >= 0.5 else None for part in filled]
    wide = (WIDTH - LEFT) / COLUMNS
    paths: dict[Kind, list[str]] = {}
    column = 0
    for kind, run in groupby(kinds):
        length = len(list(run))
        if kind is not None:
            paths.setdefault(kind, []).append(
                f"M{LEFT + column * wide:.1f} {top}h{length * wide:.1f}v{ROW}h-{length * wide:.1f}z"
            )
        column += length
    return [f'<path fill="{colours.FILL[kind]}" d="{"".join(pieces)}"/>' for kind, pieces in paths.items()]


def _axis(span: int, scale: float, height: int) -> list[str]:
    marks = ticks(span, 8)
    made = []
    for at in range(0, span + 1, marks.step_ns):
        x = _at(at, scale)
        made.append(f'<path stroke="{colours.GRID}" d="M{x} {height - AXIS}v4"/>')
        made.append(
            f'<text x="{x}" y="{height - 3}" fill="{colours.MUTED}" text-anchor="middle">'
            f"{marks.label(at)}{' ' + marks.unit if not at else ''}</text>"
        )
    return made
