"""A sweep as a picture: the best value found over memory (or microbatches), a line a chain.

Below each line a band reaches down to what is proven: nobody can get below it. Filled marks are proven
optimal, hollow ones are not. Limits that nothing fits are crosses at the foot.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from zbsolve.analysis.sweep import SweepOutcome
from zbsolve.disk import write_atomic
from zbsolve.draw import colours
from zbsolve.draw.figure import PNG_DPI, STYLE
from zbsolve.draw.panel import clean
from zbsolve.errors import InvalidInput, MissingExtra
from zbsolve.units import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_frontier", "render_frontier"]

# the colours of Okabe and Ito without yellow, which is too light for a line
_LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#1A1A1A")
_MARKS = ("o", "s", "^", "D", "v", "P", "X")

_TIMES = re.compile(r"(\d+(?:\.\d+)?)x")
_UNITS = (("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0))
_SIZES = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))


def draw_frontier(outcomes: Sequence[SweepOutcome], path: str | Path) -> Path:
    """Draw a sweep into a file.

    Parameters
    ----------
    outcomes
        Of `zbsolve.analysis.sweep.sweep`.
    path
        Ends in ``.svg`` or ``.png``; replaced as a whole or not at all.

    Raises
    ------
    InvalidInput
        If there is nothing to draw, the suffix is another one, or the file cannot be written.
    MissingExtra
        If matplotlib is not installed.
    """
    target = Path(path)
    form = target.suffix.lower().removeprefix(".")
    if form not in ("svg", "png"):
        raise InvalidInput(f"{target}: a picture is written as .svg or .png")
    write_atomic(target, render_frontier(outcomes, form))
    return target


def render_frontier(outcomes: Sequence[SweepOutcome], form: str) -> bytes:
    """Draw a sweep as the bytes of an SVG or PNG file."""
    if not any(outcome.solution for outcome in outcomes):
        raise InvalidInput("nothing to draw: no point of the sweep has a timetable")
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingExtra("matplotlib", "plot") from error
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name may have letters that the font lacks
        mpl.rcdefaults()
        mpl.rcParams.update(cast("Any", STYLE))
        figure = Figure(figsize=(8.0, 4.6), facecolor="white", layout="constrained")
        FigureCanvasAgg(figure)
        _draw(figure.add_subplot(), outcomes)
        buffer = io.BytesIO()
        extra: dict[str, Any] = {"metadata": {"Date": None}} if form == "svg" else {"dpi": PNG_DPI}
        figure.savefig(buffer, format=form, **extra)
    return buffer.getvalue()


def _draw(axes: Axes, outcomes: Sequence[SweepOutcome]) -> None:
    several = len({outcome.point.memory for outcome in outcomes}) > 1
    place, label = _places(outcomes) if several else ([float(o.point.problem.microbatches) for o in outcomes], None)
    objective = outcomes[0].point.problem.objective
    greatest = max(o.solution.value_ns for o in outcomes if o.solution)
    unit, size = next((u, s) for u, s in _UNITS if greatest >= s or s == 1.0)
    lines: dict[str, list[tuple[float, SweepOutcome]]] = {}
    for x, outcome in zip(place, outcomes, strict=True):
        lines.setdefault(_line(outcome, several), []).append((x, outcome))
    for number, (name, points) in enumerate(lines.items()):
        colour, mark = _LINES[number % len(_LINES)], _MARKS[number % len(_MARKS)]
        solved = [(x, o.solution) for x, o in sorted(points, key=lambda p: p[0]) if o.solution]
        xs = [x for x, _ in solved]
        ys, bounds = [s.value_ns / size for _, s in solved], [s.lower_bound_ns / size for _, s in solved]
        axes.plot(xs, ys, color=colour, linewidth=1.4, label=name, zorder=3)
        axes.fill_between(xs, bounds, ys, color=colour, alpha=0.15, linewidth=0, zorder=2)
        for proven, face in ((True, colour), (False, "white")):
            here = [(x, y) for (x, s), y in zip(solved, ys, strict=True) if (s.status == "optimal") is proven]
            axes.plot(*_columns(here), linestyle="", marker=mark, markersize=4.5, color=colour, mfc=face, zorder=4)
        none = [(x, 0.02 + 0.02 * number) for x, o in points if not o.solution]
        axes.plot(
            *_columns(none), linestyle="", marker="x", markersize=5, color=colour, transform=axes.get_xaxis_transform()
        )
    axes.set_ylabel(f"{objective} in {unit}", color=colours.MUTED)
    axes.set_xlabel(label or "microbatches", color=colours.MUTED)
    axes.set_ylim(bottom=0)
    axes.grid(color=colours.GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    notes = "band: down to the proven bound;  filled: proven optimal"
    axes.set_title(
        notes + (";  x: nothing fits" if any(not o.solution for o in outcomes) else ""), fontsize=8, loc="left"
    )


def _columns(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _line(outcome: SweepOutcome, several: bool) -> str:
    problem = outcome.point.problem
    name = f"{clean(outcome.point.placement)} on {counted(problem.placement.ranks, 'rank')}"
    return f"{name}, {counted(problem.microbatches, 'microbatch')}" if several else f"{name}, {outcome.point.memory}"


def _places(outcomes: Sequence[SweepOutcome]) -> tuple[list[float], str]:
    """Where each limit stands on the axis; unlimited stands a step beyond the last."""
    times = [_TIMES.fullmatch(outcome.point.memory) for outcome in outcomes]
    found: list[float | None]
    if all(match or None in o.point.problem.limit_bytes for match, o in zip(times, outcomes, strict=True)):
        found, label = [float(m.group(1)) if m else None for m in times], "memory limit, times what 1F1B needs"
    else:
        limits = [o.point.problem.limit_bytes for o in outcomes]
        most = [None if None in row else float(max(b or 0 for b in row)) for row in limits]
        unit, size = next((u, s) for u, s in _SIZES if max((m or 0 for m in most), default=0) >= s or s == 1)
        found, label = [None if m is None else m / size for m in most], f"memory limit of the fullest rank in {unit}"
    known = sorted({x for x in found if x is not None})
    beyond = (
        (known[-1] + (known[-1] - known[0]) / max(1, len(known) - 1) if len(known) > 1 else known[0] + 1)
        if known
        else 0.0
    )
    if None in found:
        label += "; the rightmost is unlimited"
    return [beyond if x is None else x for x in found], label
