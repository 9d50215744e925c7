"""Timetables as a picture: SVG or PNG, below each other on one time axis, memory under each.

`render` is pure: timetables in, bytes out, the same bytes for the same input (and the same
matplotlib). It draws on a figure of its own and leaves matplotlib's settings as they were. Boxes of
one kind are one collection, so that tens of thousands of operations stay a handful of artists.
"""

from __future__ import annotations

import io
import itertools
import os
import tempfile
import unicodedata
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from zbsolve.draw import colours
from zbsolve.draw.panel import Panel, Ticks, panels, ticks
from zbsolve.errors import InvalidInput, MissingExtra
from zbsolve.metrics import memory_curve, metrics
from zbsolve.ops import Kind
from zbsolve.timetable import Timetable
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

SIZES = (7.5, 7.0, 6.5, 6.0, 5.5, 5.0)  # of the letters in the boxes, in points
WAYS = ("line", "stack", "turned")
_EM = {"F": 0.58, "B": 0.69, "W": 0.99}  # widths of DejaVu Sans's letters, in em
_DIGIT = 0.64

_STYLE: dict[str, Any] = {
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
    suffix = target.suffix.lower()
    if suffix not in (".svg", ".png"):
        raise InvalidInput(f"{target}: a picture is written as .svg or .png, not {suffix or 'without a suffix'!r}")
    data = render(timetables, "svg" if suffix == ".svg" else "png", memory=memory)
    try:
        _replace(target, data)
    except OSError as error:
        raise InvalidInput(f"{target}: cannot write the picture: {error.strerror or error}") from error
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
        mpl.rcParams.update(cast("Any", _STYLE))
        figure = _Page(shown, memory).figure()
        data = io.BytesIO()
        described = {"Title": "; ".join(f"{panel.title}: {panel.headline}" for panel in shown)}
        if form == "svg":
            figure.savefig(data, format="svg", dpi=PNG_DPI, metadata={**described, "Date": None, "Creator": None})
        else:
            dpi = min(PNG_DPI, int(60_000 / figure.get_figheight()))
            figure.savefig(data, format="png", dpi=dpi, metadata={**described, "Software": None})
    return data.getvalue()


def _replace(target: Path, data: bytes) -> None:
    """Write a neighbour first, then rename: a reader never sees half a file."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:80]}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@dataclass(frozen=True, slots=True)
class _Memory:
    """The memory of one timetable: steps and peak of each rank, and the limits."""

    curves: tuple[tuple[tuple[int, int], ...], ...]
    peaks: tuple[int, ...]
    limits: tuple[int | None, ...]

    @classmethod
    def of(cls, timetable: Timetable) -> _Memory:
        return cls(memory_curve(timetable), metrics(timetable).peak_bytes, timetable.problem.limit_bytes)


class _Page:
    """Lays out and draws one figure: a title, rows and memory bands for each panel, one time axis."""

    def __init__(self, shown: tuple[Panel, ...], memory: bool) -> None:
        self.shown = shown
        self.memory = [_Memory.of(panel.timetable) for panel in shown] if memory else []
        if not any(peak for record in self.memory for peak in record.peaks):
            self.memory = []  # a profile without sizes has no memory to show
        self.right = 1.22 if self.memory else 0.14
        self.span = max(1, *(panel.end_ns for panel in shown))
        self.ticks: Ticks = ticks(self.span, 10)
        self.points_per_ns = 72 * (WIDTH - LEFT - self.right) / (self.span * 1.004)
        operations = sum(len(row) for panel in shown for row in panel.timetable.rows)
        self.raster = operations > RASTER_FROM
        self.top_bytes = _scale(self.memory)
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
        shown = _shorten(panel.title, 58)
        figure.text(LEFT / WIDTH, y, shown, fontsize=10.5, fontweight="bold", color=colours.INK)
        right = LEFT / WIDTH + room
        figure.text(right, y, panel.bubble_text, fontsize=10.5, fontweight="bold", color=colours.INK, ha="right")
        figure.text(right - 1.5 / WIDTH, y, panel.value_text, fontsize=10.5, color=colours.INK, ha="right")

    def _rows(self, axes: Axes, panel: Panel) -> None:
        ranks = len(panel.timetable.rows)
        axes.set_ylim(ranks, 0)
        self._rank_labels(axes, ranks, self.row_height(ranks))
        self._boxes(axes, [(a, r + 0.06, b, r + 0.94) for r, (a, b) in enumerate(panel.windows)], None)
        height = _box_height(panel)
        found: dict[Kind, list[tuple[float, float, float, float]]] = {}
        ends = []
        for rank, row in enumerate(panel.timetable.rows):
            for timed in row:
                top = _box_top(panel, rank, timed.op.stage)
                box = (timed.start_ns, top, timed.end_ns, top + height)
                found.setdefault(timed.op.kind, []).append(box)
            if row:
                ends += [[(x, rank + 0.02), (x, rank + 0.98)] for x in (row[0].start_ns, row[-1].end_ns)]
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
            wide = float(np.median(corners[:, 1, 0] - corners[:, 0, 0])) * self.points_per_ns > 2
            line = {"edgecolors": "white", "linewidths": 0.5} if wide else {"edgecolors": "none", "linewidths": 0}
            style = {"facecolors": colours.FILL[kind], "zorder": 2, **line}
        axes.add_collection(PolyCollection(list(corners), rasterized=self.raster, **style), autolim=False)

    def _segments(self, axes: Axes, segments: Sequence[Sequence[tuple[float, float]]], **style: Any) -> None:
        from matplotlib.collections import LineCollection

        axes.add_collection(LineCollection(segments, zorder=3, rasterized=self.raster, **style), autolim=False)

    def _lettering(self) -> tuple[float, dict[Kind, str]]:
        """The size in points of the letters, and for each kind how its labels stand, if they can.

        One size for the whole picture and one way for each kind look calmer than the best for each
        box: on one line, letter above number, or turned by a quarter; what suits nine in ten boxes.
        """
        timed = [t for panel in self.shown for row in panel.timetable.rows for t in row]
        if len(timed) > MOST_LABELS:
            return 0.0, {}
        rooms: dict[Kind, list[float]] = {}
        for t in timed:
            rooms.setdefault(t.op.kind, []).append((t.end_ns - t.start_ns) * self.points_per_ns - 0.6)
        narrow = {kind: sorted(room)[len(room) // 10] for kind, room in rooms.items()}
        digits = len(str(max((p.timetable.problem.microbatches for p in self.shown), default=1) - 1))
        tall = min(72 * self.row_height(len(p.timetable.rows)) * _box_height(p) for p in self.shown)
        best, size, ways = (-1, -1), 0.0, {}
        for candidate in SIZES:
            tried = {kind: _way(kind, digits, candidate, room, tall) for kind, room in narrow.items()}
            shown = (sum(way != "" for way in tried.values()), sum(way in WAYS[:2] for way in tried.values()))
            if shown > best:
                best, size, ways = shown, candidate, tried
        return size, ways

    def _labels(self, axes: Axes, panel: Panel) -> None:
        """Write letter and microbatch into the boxes that have room for them."""
        size, ways = self.lettering
        height = _box_height(panel)
        row_height = self.row_height(len(panel.timetable.rows))
        tall = 72 * row_height * height
        for rank, row in enumerate(panel.timetable.rows):
            for timed in row:
                way = ways.get(timed.op.kind, "")
                letter, number = timed.op.kind.letter, _number(timed.op.microbatch)
                room = (timed.end_ns - timed.start_ns) * self.points_per_ns - 0.6
                if not _fits(way, letter, number, size, room, tall):
                    continue
                middle = _box_top(panel, rank, timed.op.stage) + height / 2
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
                        color=colours.TEXT[timed.op.kind],
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

    def _bands(self, axes: Axes, panel: Panel, memory: _Memory) -> None:
        """One band a rank: the bytes held as an area from the band's floor, the limit as a dashed line."""
        from matplotlib.collections import PolyCollection

        ranks = len(memory.curves)
        axes.set_ylim(ranks, 0)
        inches = 0.5 * self.row_height(ranks)
        self._rank_labels(axes, ranks, inches)
        axes.set_ylabel("memory", fontsize=7.5, color=colours.MUTED)
        axes.yaxis.set_label_coords(-0.052 * WIDTH / (WIDTH - LEFT - self.right), 0.5)
        areas, statics, limits = [], [], []
        for rank, (curve, (start, end)) in enumerate(zip(memory.curves, panel.windows, strict=True)):
            floor, per_byte = rank + 0.97, 0.77 / self.top_bytes
            points, level = [(start, floor)], floor - curve[0][1] * per_byte
            points.append((start, level))
            for at, size in curve:
                if at >= start:
                    points.append((at, level))
                    level = floor - size * per_byte
                    points.append((at, level))
            areas.append([*points, (end, level), (end, floor)])
            base = floor - panel.timetable.problem.static_bytes(rank) * per_byte
            statics.append([(start, floor), (start, base), (end, base), (end, floor)])
            limit = memory.limits[rank]
            if limit is not None and limit <= self.top_bytes:
                limits.append([(start, floor - limit * per_byte), (end, floor - limit * per_byte)])
        for shape, colour in ((areas, colours.MEMORY), (statics, colours.STATIC)):
            collection = PolyCollection(shape, facecolors=colour, linewidths=0, zorder=2, rasterized=self.raster)
            axes.add_collection(collection, autolim=False)
        self._segments(axes, limits, color=colours.LIMIT, linewidth=min(0.8, 8 * inches), linestyle=(0, (3, 1.5)))
        step = max(1, round(0.12 / inches + 0.49))
        for rank in range(0, ranks, step):
            limit = memory.limits[rank]
            text = format_bytes(memory.peaks[rank]) + ("" if limit is None else f" of {format_bytes(limit)}")
            axes.text(
                1.008,
                rank + 0.5,
                text,
                transform=axes.get_yaxis_transform(),
                fontsize=6,
                color=colours.MUTED,
                va="center",
            )

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
        notes = list(dict.fromkeys(panel.formula for panel in self.shown))
        if self.memory:
            handles.append(Patch(facecolor=colours.MEMORY, label="memory held"))
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
            columnspacing=1.4,
        )
        for text in legend.get_texts():
            text.set_color(colours.INK)
        figure.text(LEFT / WIDTH, 0.09 / height, ";  ".join(notes), fontsize=7, color=colours.MUTED)


def _scale(memories: Sequence[_Memory]) -> int:
    """The bytes a band is high: the greatest peak, and limits unless they are far above it."""
    peak = max((peak for memory in memories for peak in memory.peaks), default=0)
    limits = [limit for memory in memories for limit in memory.limits if limit is not None and limit <= 2 * peak]
    return max([peak, *limits, 1])


def _box_height(panel: Panel) -> float:
    """The height of a box, of its row; boxes of a rank's chunks overlap by half, so that each keeps room."""
    return 0.88 / (1 + 0.45 * (panel.chunks - 1))


def _box_top(panel: Panel, rank: int, stage: int) -> float:
    """Later chunks of a rank stand lower in its row."""
    return rank + 0.06 + 0.45 * _box_height(panel) * panel.chunk_of[rank].get(stage, 0)


def _way(kind: Kind, digits: int, size: float, room: float, tall: float) -> str:
    """The first way in which a kind's longest label fits a box of this room, in points; "" for none."""
    return next((way for way in WAYS if _fits(way, kind.letter, "0" * digits, size, room, tall)), "")


def _fits(way: str, letter: str, number: str, size: float, room: float, tall: float) -> bool:
    long = _width(letter + number) * size
    if way == "line":
        return long <= room and size <= tall
    if way == "stack":
        return max(_width(letter), _width(number)) * size <= room and 2.1 * size <= tall
    return way == "turned" and 0.8 * size <= room and long <= tall


def _width(text: str) -> float:
    """The width of a label in em."""
    return sum(_EM.get(letter, _DIGIT) for letter in text)


def _number(microbatch: int | None) -> str:
    return "" if microbatch is None else str(microbatch)


def _shorten(text: str, most: int) -> str:
    """Cut a title to the room it has; East Asian letters are two wide."""
    widths = [2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text]
    if sum(widths) <= most:
        return text
    kept = sum(1 for width in itertools.accumulate(widths) if width <= most - 3)
    return text[:kept].rstrip() + "..."
