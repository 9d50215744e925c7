"""A timetable as a plain table for pandas and spreadsheets: an operation a row.

``held_bytes`` is what its rank holds while it runs. An operation of the whole iteration has no microbatch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zbsolve.errors import MissingExtra
from zbsolve.metrics import memory_levels
from zbsolve.opgraph import OpGraph
from zbsolve.timetable import Timetable

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COLUMNS", "data_frame", "tidy_csv", "tidy_rows"]

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


def tidy_rows(timetable: Timetable) -> list[tuple[int | str | None, ...]]:
    """The table without its header: a tuple of `COLUMNS` an operation, rank by rank in row order.

    What runs together has two rows at one position.

    Raises
    ------
    OrderError
        If the rows are no order of the problem.
    """
    problem, order = timetable.problem, timetable.order
    graph = OpGraph.build(problem, order.rows)
    assert problem.route_of is not None
    rows: list[tuple[int | str | None, ...]] = []
    for rank, nodes in enumerate(graph.encode(order)):
        chunk = {stage: number for number, stage in enumerate(problem.placement.stages_of(rank))}
        levels = memory_levels(graph, nodes, rank)[:, 1].tolist()
        for position, (timed, held) in enumerate(zip(timetable.rows[rank], levels, strict=True)):
            for op in timed.op.halves:
                which = (None, None) if op.microbatch is None else (op.microbatch, problem.route_of[op.microbatch])
                cells = (rank, position, op.kind.value, op.stage, chunk[op.stage], *which)
                rows.append((*cells, timed.start_ns, timed.end_ns, timed.end_ns - timed.start_ns, held))
    return rows


def tidy_csv(timetable: Timetable) -> str:
    """The table as CSV, with its header; what there is not is empty.

    Raises
    ------
    OrderError
        If the rows are no order of the problem.
    """
    lines = [",".join("" if cell is None else str(cell) for cell in row) for row in tidy_rows(timetable)]
    return "\n".join([",".join(COLUMNS), *lines]) + "\n"


def data_frame(timetable: Timetable) -> pd.DataFrame:
    """The table as a pandas data frame.

    Raises
    ------
    MissingExtra
        If pandas is not installed.
    OrderError
        If the rows are no order of the problem.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingExtra("pandas", "notebook") from error

    types = dict.fromkeys(COLUMNS, "int64") | dict.fromkeys(("microbatch", "route"), "Int64")
    del types["kind"]
    return pd.DataFrame(tidy_rows(timetable), columns=list(COLUMNS)).astype(types)
