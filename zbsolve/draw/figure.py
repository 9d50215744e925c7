"""Timetables as a picture: SVG or PNG, below each other on one time axis, memory under each.

`render` is pure: timetables in, bytes out, the same bytes for the same input (and the same
matplotlib). It draws on a figure of its own and leaves matplotlib's settings as they were. Boxes of
one kind are one collection, so that tens of thousands of operations stay a handful of artists.
"""

from __future__ import annotations

import io
import itertools
import unicodedata
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from zbsolve.disk import write_atomic
from zbsolve.draw import colours
from zbsolve.draw.bands import Memory, band_bytes
from zbsolve.draw.lettering import Lettering, choose_lettering, fits
from zbsolve.draw.panel import Panel, Ticks, panels, ticks
from zbsolve.errors import InvalidInput, MissingExtra
from zbsolve.ops import Kind, Op
from zbsolve.timetable import TimedOp, Timetable
from zbsolve.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_timetables", "render"]

Format = Literal["svg", "png"]

WIDTH = 10.0  # inches; at 100 dots an inch the width of a README
LEFT, TOP, BOTTOM, GAP = 0.70, 0.10, 0.88, 0.18
BETWEEN = 0.10  # from the rows to the memory bands
TITLE = 0.30
PNG_DPI = 200
MOST_PANELS = 24
MOST_LABELS = 4000
RASTER_FROM = 6000  # operations; beyond it an SVG holds the boxes as an image

STYLE: dict[str, Any] = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8,
    "text.parse_math": False,
    "text.usetex": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "zbsolve",
    "svg.image_inline": True,
    "hatch.linewidth": 0.5,
    "path.simplify": False,
}

_STRIPS = {Kind.REDUCE_GRADIENT: (0.88, 0.09), Kind.OFFLOAD: (0.88, 0.045), Kind.RELOAD: (0.925, 0.045)}
"""Where in a row, and how high, what runs beside the computing is drawn."""

_UNLETTERED = {*_STRIPS, Kind.RELEASE}


def draw_timetables(timetables: Sequence[tuple[str, Timetable]], path: str | Path, *, memory: bool = True) -> Path:
    """Draw timetables below each other on one time axis into a file.

    Parameters
    ----------
    timetables
        Titles and timetables, top to bottom, at their planned times.
    path
        Ends in ``.svg`` or ``.png``; replaced as a whole or not at all.
    memory
        Whether each rank's memory is drawn under its timetable, against the limit.

    Returns
    -------
    Path
        The file written.

    Raises
    ------
    InvalidInput
        If there is nothing to draw, or too much, or the suffix is another one, or the file cannot be written.
    OrderError
        If memory is asked for and a timetable's rows are no order of its problem.
    MissingExtra
        If matplotlib is not installed.
    """
    target = Path(path)
    if "\0" in str(target):
        raise InvalidInput("the path of a picture must not contain a null character")
    suffix = target.suffix.lower()
    if suffix not in (".svg", ".png"):
        raise InvalidInput(f"{target}: a picture is written as .svg or .png, not {suffix or 'without a suffix'!r}")
    data = render(timetables, "svg" if suffix == ".svg" else "png", memory=memory)
    write_atomic(target, data)
    return target


def render(timetables: Sequence[tuple[str, Timetable]], form: Format, *, memory: bool = True) -> bytes:
    """Draw timetables as the bytes of an SVG or PNG file; see `draw_timetables`."""
    shown = panels(timetables)
    if len(shown) > MOST_PANELS:
        raise InvalidInput(f"one picture holds at most {MOST_PANELS} timetables, got {len(shown)}")
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingExtra("matplotlib", "plot") from error

    with mpl.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a title may have letters that the font lacks
        mpl.rcdefaults()
        mpl.rcParams.update(cast("Any", STYLE))
        figure = _Page(shown, memory).figure()
        data = io.BytesIO()
        described = {"Title": "; ".join(panel.caption for panel in shown)}
        if form == "svg":
            figure.savefig(data, format="svg", dpi=PNG_DPI, metadata={**described, "Date": None, "Creator": None})
        else:
            dpi = min(PNG_DPI, int(60_000 / figure.get_figheight()))
            figure.savefig(data, format="png", dpi=dpi, metadata={**described, "Software": None})
    return data.getvalue()


class _Page:
    """Lays out and draws one figure: a title, rows and memory bands for each panel, one time axis."""

    def __init__(self, shown: tuple[Panel, ...], memory: bool) -> None:
        self.shown = shown
        self.memory = [Memory.of(panel.timetable) for panel in shown] if memory else []
        if not any(peak for record in self.memory for peak in record.peaks):
            self.memory = []  # a profile without sizes has no memory to show
        self.right = 1.22 if self.memory else 0.14
        self.span = max(1, *(panel.end_ns for panel in shown))
        self.ticks: Ticks = ticks(self.span, 10)
        self.points_per_ns = 72 * (WIDTH - LEFT - self.right) / (self.span * 1.004)
        operations = sum(len(row) for panel in shown for row in panel.timetable.rows)
        self.raster = operations > RASTER_FROM
        self.top_bytes = band_bytes(self.memory)
        self.lettering = self._lettering()

    @staticmethod
    def row_height(ranks: int) -> float:
        """Inches of one rank's row: roomy for few ranks, thin for many."""
        return min(0.29, max(0.5, 9 / ranks) * 0.29, 16 / ranks)

    def figure(self) -> Figure:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        heights = []
        for panel in self.shown:
            rows = len(panel.timetable.rows) * self.row_height(len(panel.timetable.rows))
            heights.append((rows, 0.5 * rows if self.memory else 0.0))
        inner = sum(TITLE + rows + (bands and bands + BETWEEN) + GAP for rows, bands in heights)
        height = TOP + inner + BOTTOM - GAP
        figure = Figure(figsize=(WIDTH, height), facecolor="white")
        FigureCanvasAgg(figure)
        at = height - TOP
        last: Axes | None = None
        for number, (panel, (rows, bands)) in enumerate(zip(self.shown, heights, strict=True)):
            self._title(figure, panel, at, height)
            at -= TITLE + rows
            last = self._axes(figure, at, rows, height)
            self._rows(last, panel)
            if bands:
                at -= BETWEEN + bands
                last = self._axes(figure, at, bands, height)
                self._bands(last, panel, self.memory[number])
            at -= GAP
        assert last is not None
        last.tick_params(axis="x", labelbottom=True, length=3, color=colours.MUTED)
        last.set_xticklabels([self.ticks.label(t) for t in self._marks()], color=colours.MUTED, fontsize=7.5)
        last.set_xlabel(f"time in {self.ticks.unit}", fontsize=8, color=colours.MUTED, labelpad=2)
        self._legend(figure, height)
        return figure

    def _axes(self, figure: Figure, bottom: float, inches: float, height: float) -> Axes:
        axes = figure.add_axes((LEFT / WIDTH, bottom / height, 1 - (LEFT + self.right) / WIDTH, inches / height))
        axes.set_xlim(-0.002 * self.span, 1.002 * self.span)
        axes.set_xticks(self._marks())
        axes.tick_params(axis="both", length=0, labelbottom=False)
        axes.grid(axis="x", color=colours.GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.spines["bottom"].set(color=colours.GRID, linewidth=0.8)
        return axes

    def _marks(self) -> list[int]:
        return list(range(0, self.span + 1, self.ticks.step_ns))

    def _title(self, figure: Figure, panel: Panel, top: float, height: float) -> None:
        room = 1 - (LEFT + 0.14) / WIDTH
        y = (top - 0.20) / height
        shown = _shorten(panel.title, 52)
        figure.text(LEFT / WIDTH, y, shown, fontsize=10.5, fontweight="bold", color=colours.INK)
        right = LEFT / WIDTH + room
        figure.text(right, y, panel.bubble_text, fontsize=10.5, fontweight="bold", color=colours.INK, ha="right")
        figure.text(right - 1.5 / WIDTH, y, panel.value_text, fontsize=10.5, color=colours.INK, ha="right")

    def _rows(self, axes: Axes, panel: Panel) -> None:
        ranks = len(panel.timetable.rows)
        axes.set_ylim(ranks, 0)
        self._rank_labels(axes, ranks, self.row_height(ranks))
        self._boxes(axes, [(a, r + 0.06, b, r + 0.94) for r, (a, b) in enumerate(panel.windows)], None)
        found: dict[Kind, list[tuple[float, float, float, float]]] = {}
        ends = []
        for rank, row in enumerate(panel.timetable.rows):
            for timed in row:
                for op, top, tall in _places(panel, rank, timed.op):
                    box = (timed.start_ns, top, timed.end_ns, top + tall)
                    found.setdefault(op.kind, []).append(box)
            if row:
                sides = min(timed.start_ns for timed in row), max(timed.end_ns for timed in row)
                ends += [[(x, rank + 0.02), (x, rank + 0.98)] for x in sides]
        for kind in panel.kinds:
            self._boxes(axes, found[kind], kind)
        self._segments(axes, ends, color=colours.INK, linewidth=0.9)
        self._labels(axes, panel)

    def _boxes(self, axes: Axes, boxes: list[tuple[float, float, float, float]], kind: Kind | None) -> None:
        """Draw the boxes (left, top, right, bottom) of one kind, or idle windows, as one artist."""
        import numpy as np
        from matplotlib.collections import PolyCollection

        corners = np.asarray(boxes, dtype=float)[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2)
        if kind is None:
            style: dict[str, Any] = {
                "facecolors": colours.IDLE,
                "edgecolors": colours.IDLE_HATCH,
                "linewidths": 0,
                "hatch": "//////",
                "zorder": 1.5,
            }
        else:
            wide = float(np.quantile(corners[:, 1, 0] - corners[:, 0, 0], 0.1)) * self.points_per_ns > 2
            line = {"edgecolors": "white", "linewidths": 0.5} if wide else {"edgecolors": "none", "linewidths": 0}
            style = {"facecolors": colours.FILL[kind], "zorder": 2, **line}
        axes.add_collection(PolyCollection(list(corners), rasterized=self.raster, **style), autolim=False)

    def _segments(self, axes: Axes, segments: Sequence[Sequence[tuple[float, float]]], **style: Any) -> None:
        from matplotlib.collections import LineCollection

        axes.add_collection(LineCollection(segments, zorder=3, rasterized=self.raster, **style), autolim=False)

    def _lettering(self) -> Lettering:
        rooms: dict[Kind, list[float]] = {}
        for panel in self.shown:
            for row in panel.timetable.rows:
                for timed in row:
                    for op in timed.op.halves:
                        if op.kind not in _UNLETTERED:
                            rooms.setdefault(op.kind, []).append(self._room(timed))
        if sum(map(len, rooms.values())) > MOST_LABELS:
            return Lettering()
        digits = len(str(max(panel.timetable.problem.microbatches for panel in self.shown) - 1))
        tall = min(72 * self.row_height(len(p.timetable.rows)) * _box_height(p) for p in self.shown)
        return choose_lettering(rooms, digits, tall)

    def _room(self, timed: TimedOp) -> float:
        """Points between the edges of a box."""
        return (timed.end_ns - timed.start_ns) * self.points_per_ns - 0.6

    def _labels(self, axes: Axes, panel: Panel) -> None:
        """Write letter and microbatch into the boxes that have room for them."""
        size, ways = self.lettering.size, self.lettering.ways
        row_height = self.row_height(len(panel.timetable.rows))
        for rank, row in enumerate(panel.timetable.rows):
            for timed, (op, top, height) in ((t, place) for t in row for place in _places(panel, rank, t.op)):
                way = ways.get(op.kind)
                letter = op.kind.letter
                number = "" if op.microbatch is None else str(op.microbatch)
                tall = 72 * row_height * height
                if way is None or not fits(way, letter, number, size, self._room(timed), tall):
                    continue
                middle = top + height / 2
                up = 0.53 * size / (72 * row_height)
                pieces = (
                    [(letter, middle - up), (number, middle + up)] if way == "stack" else [(letter + number, middle)]
                )
                for text, y in pieces:
                    axes.text(
                        (timed.start_ns + timed.end_ns) / 2,
                        y,
                        text,
                        fontsize=size,
                        color=colours.TEXT[op.kind],
                        rotation=90 if way == "turned" else 0,
                        rotation_mode="anchor",  # keeps labels centred in an SVG viewer with other fonts
                        ha="center",
                        va="center_baseline",
                        zorder=4,
                    )

    def _rank_labels(self, axes: Axes, ranks: int, inches: float) -> None:
        step = max(1, round(0.13 / inches + 0.49))
        shown = range(0, ranks, step)
        axes.set_yticks([r + 0.5 for r in shown])
        axes.set_yticklabels(
            [f"rank {r}" for r in shown], fontsize=min(7.5, 72 * inches * step * 0.8), color=colours.MUTED
        )

    def _bands(self, axes: Axes, panel: Panel, memory: Memory) -> None:
        """One band a rank: the bytes held as an area from the band's floor, the limit as a dashed line."""
        from matplotlib.collections import PolyCollection

        ranks = len(memory.curves)
        axes.set_ylim(ranks, 0)
        inches = 0.5 * self.row_height(ranks)
        self._rank_labels(axes, ranks, inches)
        axes.set_ylabel("memory", fontsize=7.5, color=colours.MUTED)
        axes.yaxis.set_label_coords(-0.052 * WIDTH / (WIDTH - LEFT - self.right), 0.5)
        for shapes, colour in (
            (memory.areas(panel, self.top_bytes), colours.MEMORY),
            (memory.always(panel, self.top_bytes), colours.STATIC),
        ):
            collection = PolyCollection(shapes, facecolors=colour, linewidths=0, zorder=2, rasterized=self.raster)
            axes.add_collection(collection, autolim=False)
        limits = memory.limit_lines(panel, self.top_bytes)
        width = min(0.8, 8 * inches)
        self._segments(axes, limits, color=colours.LIMIT, linewidth=width, linestyle=(0, (3, 1.5)))
        at = axes.get_yaxis_transform()
        for rank in range(0, ranks, max(1, round(0.12 / inches + 0.49))):
            text = memory.label(rank)
            axes.text(1.008, rank + 0.5, text, transform=at, fontsize=6, color=colours.MUTED, va="center")

    def _legend(self, figure: Figure, height: float) -> None:
        """The kinds that occur and what grey and dashes mean; below it how the figures are computed."""
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        kinds = [kind for kind in Kind if any(kind in panel.kinds for panel in self.shown)]
        handles: list[Any] = [
            Patch(facecolor=colours.FILL[kind], label=f"{kind.letter}  {colours.MEANING[kind]}") for kind in kinds
        ]
        idle = Patch(facecolor=colours.IDLE, edgecolor=colours.IDLE_HATCH, linewidth=0, hatch="//////", label="idle")
        handles.append(idle)
        notes = [f"{formula}: the hatched share" for formula in dict.fromkeys(panel.formula for panel in self.shown)]
        notes.append("black marks: a rank's first start and last end")
        if self.memory:
            handles.append(Patch(facecolor=colours.MEMORY, label="memory held"))
            if any(any(m.static) for m in self.memory):
                handles.append(Patch(facecolor=colours.STATIC, label="static"))
            if any(limit is not None and limit <= self.top_bytes for m in self.memory for limit in m.limits):
                handles.append(Line2D([], [], color=colours.LIMIT, linewidth=0.9, linestyle="--", label="limit"))
            notes.append(f"a memory band is {format_bytes(self.top_bytes)} high; right of it the peak")
        if any(panel.chunks > 1 for panel in self.shown):
            notes.append("lower in a row: a later chunk")
        legend = figure.legend(
            handles=handles,
            loc="lower left",
            bbox_to_anchor=(LEFT / WIDTH, 0.27 / height),
            borderaxespad=0,
            borderpad=0,
            ncols=len(handles),
            frameon=False,
            fontsize=7.5,
            handlelength=1.3,
            handleheight=0.9,
            handletextpad=0.5,
            columnspacing=1.3,
        )
        for text in legend.get_texts():
            text.set_color(colours.INK)
        figure.text(LEFT / WIDTH, 0.09 / height, ";  ".join(notes), fontsize=7, color=colours.MUTED)


def _box_height(panel: Panel) -> float:
    """The height of a box, of its row; boxes of a rank's chunks overlap by half, so that each keeps room."""
    return 0.88 / (1 + 0.45 * (panel.chunks - 1))


def _box_top(panel: Panel, rank: int, stage: int) -> float:
    """Later chunks of a rank stand lower in its row."""
    return rank + 0.06 + 0.45 * _box_height(panel) * panel.chunk_of[rank].get(stage, 0)


def _places(panel: Panel, rank: int, op: Op) -> list[tuple[Op, float, float]]:
    """Top and height of the box of an operation; of the two that run together, one above the other as chunks are."""
    if op.kind in _STRIPS:  # beside the computing: at the foot of the row
        below, tall = _STRIPS[op.kind]
        return [(op, rank + below, tall)]
    height = _box_height(panel)
    tops = sorted(((_box_top(panel, rank, half.stage), half) for half in op.halves), key=lambda place: place[0])
    high, low = tops[0][0], tops[-1][0] + height
    each = (low - high) / len(tops)
    return [(half, high + number * each, each) for number, (_, half) in enumerate(tops)]


def _shorten(text: str, most: int) -> str:
    """Cut a title to the room it has; East Asian letters are two wide."""
    widths = [2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text]
    if sum(widths) <= most:
        return text
    kept = sum(1 for width in itertools.accumulate(widths) if width <= most - 3)
    return text[:kept].rstrip() + "..."
