"""A timetable as a plain table for pandas and spreadsheets: an operation a row.

``held_bytes`` is what its rank holds while it runs. An operation of the whole iteration has no microbatch.
"""

from __future__ import annotations

from zbsolve.interop.refuse import refuse_other_operations
from zbsolve.metrics import memory_levels
from zbsolve.opgraph import OpGraph
from zbsolve.ops import Kind
from zbsolve.timetable import Timetable

__all__ = ["COLUMNS", "tidy_csv"]

COLUMNS = (
    "rank",
    "position",
    "kind",
    "stage",
    "chunk",
    "microbatch",
    "route",
    "start_ns",
    "end_ns",
    "duration_ns",
    "held_bytes",
)


def tidy_csv(timetable: Timetable) -> str:
    """The table, with its header; rank by rank in row order.

    Raises
    ------
    OrderError
        If the rows are no order of the problem.
    """
    refuse_other_operations(timetable, frozenset(Kind), "a table of operations")
    problem, order = timetable.problem, timetable.order
    graph = OpGraph.build(problem, order.rows)
    assert problem.route_of is not None
    lines = [",".join(COLUMNS)]
    for rank, nodes in enumerate(graph.encode(order)):
        chunk = {stage: number for number, stage in enumerate(problem.placement.stages_of(rank))}
        levels = memory_levels(graph, nodes, rank)[:, 1].tolist()
        for position, (timed, held) in enumerate(zip(timetable.rows[rank], levels, strict=True)):
            op = timed.op
            which = ("", "") if op.microbatch is None else (op.microbatch, problem.route_of[op.microbatch])
            cells = (rank, position, op.kind.value, op.stage, chunk[op.stage], *which)
            lines.append(
                ",".join(map(str, (*cells, timed.start_ns, timed.end_ns, timed.end_ns - timed.start_ns, held)))
            )
    return "\n".join(lines) + "\n"
