"""The zero-bubble code: its timers' logs as measurements, and timetables as its node tables.

What each rank says of its timers when it has measured enough iterations::

    rank 3 profiling conclusion: [(18522, 18086), (18100, 18077), (9337, 9300), 601, (4.0, 4.0), (-2.0, -2.0), ...]

These are, for each chunk of the rank, the means of F, B and W in us; a transfer in us; and what F, B and W add to
the memory, in MB. With one chunk the tuples have one entry, or stand as plain numbers.

A node table holds the computation of each rank with its planned times; the code places messages and the validation of
its optimizer by them (``run_communication_passes``).

Source: https://github.com/sail-sg/zero-bubble-pipeline-parallelism, in ``megatron/core/pipeline_parallel/zerobubble``:
``ScheduleTimers`` in ``timer.py`` and where its conclusion is printed, in ``runtime.py``; ``ScheduledNode`` in
``scheduler/graph.py``, and ``scheduler/passes.py``.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import defaultdict
from typing import Any, Literal

from zbsolve.errors import FileFormatError
from zbsolve.interop.node_tables import chunks_of, layout_of, ready_for
from zbsolve.interop.samples import Samples
from zbsolve.interop.text import decoded, shown
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.profile import MAX_STAGES
from zbsolve.timetable import Timetable
from zbsolve.units import MAX_AMOUNT, counted

__all__ = ["FORMAT", "MARK", "read_zero_bubble_log", "zero_bubble_json"]

FORMAT = "zbsolve.zero-bubble/1"

TOOL = "the zero-bubble code"

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


_TYPES = {Kind.FORWARD: "F", Kind.BACKWARD_INPUT: "B", Kind.BACKWARD_WEIGHT: "W", Kind.BACKWARD: "BW"}


def zero_bubble_json(timetable: Timetable) -> tuple[str, tuple[str, ...]]:
    """The node tables as JSON, which ``examples/zero_bubble_adapter.py`` loads, and what was changed for them.

    A node has the fields of ``ScheduledNode`` that computation needs; times in ns. The costs in ``config``, by which
    the code places the validation of its optimizer, are those of each rank's first chunk.

    Raises
    ------
    ProblemError
        If the code cannot build the placement, or has no word for an operation.
    OrderError
        If the rows are no order of the problem or can never finish.
    """
    timetable, notes = ready_for(TOOL, timetable)
    placement = timetable.problem.placement
    where = chunks_of(placement)
    last = placement.stages - 1

    def peers(op: Op) -> tuple[int | None, int | None]:
        """The ranks that it waits for and that wait for it, where these are others."""
        step = {Kind.FORWARD: 1, Kind.BACKWARD_WEIGHT: 0}.get(op.kind, -1)
        near = (op.stage - step, op.stage + step)
        ranks = [where[stage][0] if 0 <= stage <= last else where[op.stage][0] for stage in near]
        before, after = (rank if rank != where[op.stage][0] else None for rank in ranks)
        return before, after

    def node(op: Op, start_ns: int, end_ns: int) -> dict[str, Any]:
        rank, chunk = where[op.stage]
        before, after = peers(op)
        return {
            "type": _TYPES[op.kind],
            "stage": rank,
            "microbatch": op.microbatch,
            "chunk": chunk,
            "layer_group_idx": op.stage,
            "start_time": start_ns,
            "completion_time": end_ns,
            "recv_peer_stage": before,
            "send_peer_stage": after,
        }

    problem = timetable.problem
    first_chunks = [problem.cost(placement.stages_of(rank)[0], 0) for rank in range(placement.ranks)]
    config: dict[str, Any] = {
        "n_stages": placement.ranks,
        "max_chunks": placement.stages // placement.ranks,
        "n_micro": problem.microbatches,
        "cost_f": [float(cost.forward_ns) for cost in first_chunks],
        "cost_b": [float(cost.backward_input_ns) for cost in first_chunks],
        "cost_w": [float(cost.backward_weight_ns) for cost in first_chunks],
        "cost_comm": float(problem.profile.link.latency_ns),
    }
    about = {
        "format": FORMAT,
        "config": config,
        "layout": layout_of(placement),
        "digest": problem.digest,
    }
    head = "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in about.items())
    rows = (
        ",\n".join(f"   {json.dumps(node(timed.op, timed.start_ns, timed.end_ns))}" for timed in row)
        for row in timetable.rows
    )
    tables = ",\n".join(f"  [\n{row}\n  ]" for row in rows)
    return f'{{\n{head}  "nodes": [\n{tables}\n  ]\n}}\n', notes
