"""Node tables of AMD's Primus: what each rank of its pipeline runs, with sends and receives.

A node is ``(func_type, mini_batch, chunk, args)``; sends and receives name both ranks and the chunk at the other end.
Where a V turns, Primus hands over to itself by a send and a receive as well. Messages stand in one order for all
ranks, as in `zbsolve.interop.torch.comms`: Primus waits for its sends.

Source: https://github.com/AMD-AGI/Primus, in ``primus/core/pipeline_parallel/scheduler``: ``SchedulerNode`` and
``FuncType`` in ``scheduler_node.py``, ``add_communication_nodes`` in ``algorithms/base.py``.
"""

from __future__ import annotations

import json
from typing import Any

from zbsolve.interop.node_tables import chunks_of, layout_of, ready_for
from zbsolve.interop.torch.comms import in_one_sequence
from zbsolve.ops import Kind
from zbsolve.timetable import Timetable

__all__ = ["FORMAT", "primus_json"]

FORMAT = "zbsolve.primus/1"

TOOL = "Primus"

_COMPUTES = {Kind.FORWARD: "F", Kind.BACKWARD_INPUT: "B", Kind.BACKWARD_WEIGHT: "W", Kind.BACKWARD: "BW"}
_MESSAGES = {"SEND_F": "SF", "RECV_F": "RF", "SEND_B": "SB", "RECV_B": "RB"}


def primus_json(timetable: Timetable) -> tuple[str, tuple[str, ...]]:
    """The tables as JSON, which ``examples/primus_adapter.py`` loads, and what was changed for them.

    Raises
    ------
    ProblemError
        If Primus cannot build the placement, or has no word for an operation.
    OrderError
        If the rows are no order of the problem or can never finish.
    """
    timetable, notes = ready_for(TOOL, timetable)
    placement = timetable.problem.placement
    where = chunks_of(placement)
    tables = []
    for row in in_one_sequence(timetable, hand_over=True):
        table: list[list[Any]] = []
        for cell in row:
            rank, chunk = where[cell.stage]
            if cell.kind is not None:
                table.append([_COMPUTES[cell.kind], cell.microbatch, chunk, None])
                continue
            sends = cell.action.startswith("SEND")
            step = 1 if cell.action.endswith("F") else -1
            other, other_chunk = where[cell.stage + (step if sends else -step)]
            ends = (rank, other) if sends else (other, rank)
            args = {
                "from_pp_rank": ends[0],
                "to_pp_rank": ends[1],
                "send_to_chunk" if sends else "recv_from_chunk": other_chunk,
            }
            table.append([_MESSAGES[cell.action], cell.microbatch, chunk, args])
        tables.append(table)
    about = {
        "format": FORMAT,
        "pp_size": placement.ranks,
        "vpp_size": placement.stages // placement.ranks,
        "micro_batches": timetable.problem.microbatches,
        "layout": layout_of(placement),
        "last_pp_stage_rank": placement.routes[0][-1],
        "digest": timetable.problem.digest,
    }
    return _written(about, tables), notes


def _written(about: dict[str, Any], tables: list[list[list[Any]]]) -> str:
    """A node a line."""
    head = "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in about.items())
    rows = ",\n".join("  [\n" + ",\n".join(f"   {json.dumps(node)}" for node in table) + "\n  ]" for table in tables)
    return f'{{\n{head}  "tables": [\n{rows}\n  ]\n}}\n'
