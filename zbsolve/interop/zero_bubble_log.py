"""Logs of the zero-bubble code: what each rank says of its timers when it has measured enough iterations.

::

    rank 3 profiling conclusion: [(18522, 18086), (18100, 18077), (9337, 9300), 601, (4.0, 4.0), (-2.0, -2.0), ...]

These are, for each chunk of the rank, the means of F, B and W in us; a transfer in us; and what F, B and W add to
the memory, in MB. With one chunk the tuples have one entry, or stand as plain numbers.

Source: https://github.com/sail-sg/zero-bubble-pipeline-parallelism, ``ScheduleTimers`` in
``megatron/core/pipeline_parallel/zerobubble/timer.py`` and where its conclusion is printed, in ``schedules.py``.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from typing import Literal

from zbsolve.errors import FileFormatError
from zbsolve.interop.samples import Samples
from zbsolve.interop.text import decoded, shown
from zbsolve.ops import Kind
from zbsolve.placement import Placement
from zbsolve.profile import MAX_STAGES
from zbsolve.units import MAX_AMOUNT, counted

__all__ = ["MARK", "read_zero_bubble_log"]

MARK = "profiling conclusion:"

_LINE = re.compile(r"rank (\d{1,6}) " + MARK + r"\s*([\[(].{1,4000}[\])])")
_GROUP = re.compile(r"[\[(]([^\[\]()]*)[\])]|([^\[\](),\s]+)")
_ITEM = r"(?:[\[(][^\[\]()]*[\])]|[^\[\](),\s]+)"
_SEVEN = re.compile(rf"[\[(]\s*{_ITEM}(?:\s*,\s*{_ITEM}){{6}}\s*,?\s*[\])]")
_KINDS = (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)


def read_zero_bubble_log(
    data: bytes, name: object, *, ranks: int | None = None, placement: Literal["v", "looped"] = "v"
) -> Samples:
    """Read the conclusions in a log, or in the logs of several ranks put together.

    Parameters
    ----------
    data
        The content of the file.
    name
        What messages call it.
    ranks
        Pipeline ranks; default as many as there are ranks in the log. Where there are more of these, neighbours
        make up one pipeline rank, as Megatron numbers them, and their means count as samples.
    placement
        Where chunks lie, if there are several: ``"v"`` or ``"looped"``.

    Raises
    ------
    FileFormatError
        If there is no conclusion, a rank is missing, or numbers are not what they should be.
    """
    found: dict[int, list[list[float]]] = {}
    for line, text in enumerate(decoded(data, name).splitlines(), start=1):
        if MARK in text and len(text) < 8000 and (match := _LINE.search(text)):
            found[int(match.group(1))] = _conclusion(match.group(2), name, f"line {line}")
    if not found:
        raise FileFormatError(name, f"has no line such as 'rank 0 {MARK} [...]'")
    processes = 1 + max(found)
    missing = next((rank for rank in range(processes) if rank not in found), None)
    ranks = ranks or processes
    if missing is not None or processes % ranks:
        told = f"no conclusion of rank {missing}" if missing is not None else counted(processes, "rank")
        raise FileFormatError(name, f"has {told}; give the logs of all ranks, and --ranks for those of the pipeline")
    chunks = len(found[0][0])
    if ranks * chunks > MAX_STAGES:
        raise FileFormatError(name, f"tells of more than {MAX_STAGES} stages")
    if any(len(values) != chunks for rank in found.values() for values in (*rank[:3], *rank[4:])):
        raise FileFormatError(name, "ranks tell of different numbers of chunks")
    where = Placement.linear(ranks) if chunks == 1 else _placed(ranks, chunks, placement, name)
    durations: dict[tuple[int, Kind], list[int]] = defaultdict(list)
    held: dict[tuple[int, str], list[int]] = defaultdict(list)
    for process, groups in found.items():
        for chunk, stage in enumerate(where.stages_of(process * ranks // processes)):
            for kind, values in zip(_KINDS, groups, strict=False):
                durations[stage, kind].append(round(values[chunk] * 1000))
            forward, backward = groups[4][chunk], groups[5][chunk]
            held[stage, "activation_bytes"].append(max(0, round(forward * 10**6)))
            held[stage, "backward_weight_bytes"].append(max(0, round((forward + backward) * 10**6)))
    known: dict[int, dict[str, int | str]] = defaultdict(dict)
    for (stage, field), sizes in held.items():
        known[stage][field] = round(statistics.median(sizes))
    latency = round(statistics.median(groups[3][0] for groups in found.values()) * 1000)
    notes = ("means, not medians, and memory in whole megabytes, as the timers tell them",)
    return Samples(
        durations=dict(durations), known=dict(known), latency_ns=latency, tool="the zero-bubble timers", notes=notes
    )


def _placed(ranks: int, chunks: int, placement: str, name: object) -> Placement:
    if placement == "v" and chunks != 2:
        raise FileFormatError(name, f"tells of {chunks} chunks a rank, a V has 2; say --placement looped")
    return Placement.v(ranks) if placement == "v" else Placement.looped(ranks, chunks)


def _conclusion(text: str, name: object, where: str) -> list[list[float]]:
    """Seven groups of numbers: F, B, W, a transfer, and three of memory."""
    groups: list[list[float]] = []
    for match in _GROUP.finditer(text[1:-1]):
        inside, alone = match.groups()
        words = [word for word in (alone or inside).split(",") if word.strip()]
        try:
            groups.append([float(word) for word in words])
        except ValueError:
            raise FileFormatError(name, f"expected numbers, got {shown(alone or inside)}", where) from None
    chunks = len(groups[0]) if groups else 0
    sound = _SEVEN.fullmatch(text) and chunks and len(groups[3]) == 1
    if not sound:
        raise FileFormatError(name, f"expected F, B, W, a transfer and three of memory, got {shown(text)}", where)
    for group, least in zip(groups, (0, 0, 0, 0, -math.inf, -math.inf, -math.inf), strict=True):
        if any(not math.isfinite(v) or v < least or abs(v) * 10**6 > MAX_AMOUNT for v in group):
            raise FileFormatError(name, f"a number is negative or beyond reason in {shown(text)}", where)
    return groups
