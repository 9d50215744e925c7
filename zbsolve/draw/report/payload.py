"""What the page's scripts draw from: one object a timetable, its operations as short columns.

An operation is a number: its place when all rows are written one after the other. Its *class* holds
what many share (kind, stage, duration, memory effect), its start is the end of the one ahead in its
row plus a gap, mostly 0, and what it waits for is told by how far back it stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from zbsolve.analysis.explain import Explanation, explain
from zbsolve.analysis.idle import Cause, windows
from zbsolve.draw import colours
from zbsolve.draw.panel import clean
from zbsolve.ops import Kind
from zbsolve.solution import Bound
from zbsolve.timetable import Timetable

__all__ = ["Section", "payload", "section"]

MOST_BUBBLES = 40

CAUSES = tuple(Cause)


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """One timetable with all that is said of it."""

    title: str
    told: Explanation

    @property
    def fits(self) -> bool:
        """Whether every rank keeps its limit."""
        limits = self.told.network.timetable.problem.limit_bytes
        return all(
            limit is None or peak <= limit for peak, limit in zip(self.told.metrics.peak_bytes, limits, strict=True)
        )


def section(title: str, timetable: Timetable, recorded: Bound | None) -> Section:
    """Look at a timetable in every way.

    Raises
    ------
    OrderError
        If its rows are no order of its problem or can never finish.
    """
    return Section(title, explain(timetable, recorded=recorded, most_bubbles=MOST_BUBBLES))


def payload(sections: list[Section]) -> dict[str, Any]:
    """Everything the scripts need, as plain lists and numbers."""
    found = {timed.op.kind for s in sections for timed in s.told.network.timed}
    kinds = [kind for kind in Kind if kind in found]
    return {
        "kinds": [_kind(kind) for kind in kinds],
        "causes": [[cause.value, *colours.CAUSE[cause]] for cause in CAUSES],
        "tables": [_table(s, {kind: number for number, kind in enumerate(kinds)}) for s in sections],
    }


def _kind(kind: Kind) -> list[str]:
    fill = colours.FILL.get(kind, colours.STATIC)
    dark = colours.FILL_DARK.get(kind, fill)
    ink = colours.TEXT.get(kind, "#FFFFFF")
    on_dark = colours.INK if kind in colours.FILL_DARK else ink
    return [kind.letter, colours.MEANING.get(kind, kind.value.replace("_", " ")), fill, ink, dark, on_dark]


class _Numbers:
    """The numbers of things that repeat."""

    def __init__(self) -> None:
        self.of: dict[Any, int] = {}

    def __call__(self, thing: Any) -> int:
        return self.of.setdefault(thing, len(self.of))

    def all(self) -> list[Any]:
        """Each thing, at its number."""
        return list(self.of)


def _table(shown: Section, kinds: dict[Kind, int]) -> dict[str, Any]:
    told = shown.told
    network = told.network
    graph, problem = network.graph, network.timetable.problem
    rows = [row.tolist() for row in network.rows]
    number = {node: n for n, node in enumerate(node for row in rows for node in row)}
    classes, lags = _Numbers(), _Numbers()
    chunk_of = [{s: k for k, s in enumerate(problem.placement.stages_of(rank))} for rank in range(network.ranks)]
    columns: dict[str, list[int]] = {name: [] for name in ("class", "microbatch", "gap", "slack", "inputs")}
    for rank, row in enumerate(rows):
        free = 0
        for node in row:
            op, start, end = network.op(node), network.start(node), network.end(node)
            columns["class"].append(
                classes(
                    (
                        kinds[op.kind],
                        op.stage,
                        chunk_of[rank].get(op.stage, 0),
                        end - start,
                        int(graph.start_bytes[node]),
                        int(graph.end_bytes[node]),
                        int(network.on_compute(node)),
                    )
                )
            )
            columns["microbatch"].append(-1 if op.microbatch is None else op.microbatch)
            columns["gap"].append(start - free)
            columns["slack"].append(told.slack_ns[node])
            free = end
            data = [edge for edge in network.edges[node] if not edge.in_row]
            columns["inputs"].append(len(data))
            for edge in data:
                giver = network.giver(edge.tail)  # where transfers queue, the lag is all that this one took
                lag = network.end(edge.tail) + edge.lag_ns - network.end(giver)
                columns["inputs"] += [number[node] - number[giver], lags(lag)]
    return {
        "title": shown.title,
        "by_period": network.by_period,
        "value": network.value_ns,
        "microbatches": problem.microbatches,
        "stages": [clean(stage.name) for stage in problem.profile.stages],
        "chunks": max((len(chunks) for chunks in chunk_of), default=1),
        "starts": [0, *accumulate(map(len, rows))],
        "windows": [list(window) for window in windows(network)],
        "base": [int(b) for b in graph.base_bytes],
        "limit": list(problem.limit_bytes),
        "peak": list(told.metrics.peak_bytes),
        "classes": [list(c) for c in classes.all()],
        "lags": lags.all(),
        **columns,
        "idle": [
            value
            for piece in told.idle
            for value in (
                piece.rank,
                piece.start_ns,
                piece.length_ns,
                CAUSES.index(piece.cause),
                *(-1 if n is None else number[n] for n in (piece.before, piece.waits_for, piece.ready)),
                int(piece.wraps),
            )
        ],
        "critical": [number[step.node] for step in told.path.steps if step.node in number],
        "bubbles": [[b.pieces[0].rank, b.pieces[0].start_ns, b.length_ns] for b in told.bubbles],
    }
