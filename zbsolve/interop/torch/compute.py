"""Timetables as torch's CSVs: what is merged, how microbatches are numbered, and the file that says the rest.

A *compute_only* CSV has one row a rank with its operations; torch adds sends and receives itself. A
*compute_comms* CSV has those too, see `comms`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

import numpy as np

from zbsolve.disk import ensure_writable, write_atomic
from zbsolve.errors import ProblemError
from zbsolve.interop.refuse import refuse_other_operations, refuse_replicas, refuse_slices
from zbsolve.interop.torch.cells import LETTERS
from zbsolve.interop.torch.comms import comms_rows
from zbsolve.metrics import metrics
from zbsolve.opgraph import Int64, OpGraph
from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.simulate import simulate
from zbsolve.solution import Metrics
from zbsolve.timetable import Order, TimedOp, Timetable
from zbsolve.transfers import queued_transfers

__all__ = [
    "FORMAT",
    "TOOL",
    "CsvFormat",
    "merged",
    "numbered_by_loss",
    "torch_csv_bytes",
    "torch_rows",
    "write_torch_csv",
]

FORMAT = "zbsolve.torch-csv/1"
"""Kind and version of the file written beside a CSV."""

TOOL = "torch.distributed.pipelining"

CsvFormat = Literal["compute_only", "compute_comms"]


def merged(timetable: Timetable) -> Order:
    """The order with B and the W right behind it as one backward, wherever no planned time has to move for that.

    torch pays for every split and its input gradient alone frees nothing, so a split that gains nothing
    should go. But one backward hands its gradient on when it ends: where the stage before it is waiting,
    B and W stay apart. The planned times still fit the result, so it is never slower than the timetable.
    """
    rows = [_merged_row(row) for row in timetable.rows]
    candidates = Order(tuple(tuple(timed.op for timed in row) for row in rows))
    graph = OpGraph.build(timetable.problem, candidates.rows)
    start, latest = np.zeros(len(graph), dtype=np.int64), np.zeros(len(graph), dtype=np.int64)
    for row, nodes in zip(rows, graph.encode(candidates), strict=True):
        start[nodes] = [timed.start_ns for timed in row]
        latest[nodes] = [timed.end_ns for timed in row]
    end = start + graph.duration_ns
    moves = end > latest
    moves[graph.arc_tail[start[graph.arc_head] < end[graph.arc_tail] + graph.arc_lag_ns]] = True
    moves[_before_their_turn(timetable, graph, end)] = True
    apart = {graph.op(node) for node in np.flatnonzero(moves).tolist()}
    return Order(tuple(tuple(_split_again(row, apart)) for row in zip(timetable.rows, rows, strict=True)))


def _before_their_turn(timetable: Timetable, graph: OpGraph, end: Int64) -> list[int]:
    """Nodes that end after what they send has its turn on a queueing link: behind it the others would be late, too."""
    period = timetable.period_ns if timetable.problem.objective == "period" else None
    lines = queued_transfers(timetable.problem, timetable.rows, period_ns=period).values()
    turn = {
        (sent.tail.stage, sent.tail.microbatch, sent.tail.kind is Kind.FORWARD): sent.start_ns
        for line in lines
        for sent in line
    }
    tails = graph.arc_tail[graph.sends].tolist()
    keys = {tail: ((op := graph.op(tail)).stage, op.microbatch, op.kind is Kind.FORWARD) for tail in tails}
    return [tail for tail in tails if end[tail] > turn[keys[tail]]]


def _merged_row(row: tuple[TimedOp, ...]) -> list[TimedOp]:
    """Every B with the W right behind it as one backward, from the start of B to the end of W."""
    made: list[TimedOp] = []
    for timed in row:
        op = timed.op
        if op.kind is Kind.BACKWARD_WEIGHT and made and made[-1].op == Op(Kind.BACKWARD_INPUT, op.stage, op.microbatch):
            made[-1] = TimedOp(Op(Kind.BACKWARD, op.stage, op.microbatch), made[-1].start_ns, timed.end_ns)
        else:
            made.append(timed)
    return made


def _split_again(rows: tuple[tuple[TimedOp, ...], list[TimedOp]], apart: set[Op]) -> list[Op]:
    """The merged row, with the parts of those backwards that were split and have to stay so."""
    given = {timed.op for timed in rows[0]}
    return [
        part
        for timed in rows[1]
        for part in (timed.op.parts if timed.op in apart and timed.op not in given else (timed.op,))
    ]


def numbered_by_loss(problem: Problem, order: Order) -> tuple[Order, tuple[int, ...]]:
    """The order with microbatches numbered as the last stage runs its forwards, and the number each had before.

    torch hands the n-th loss it computes to microbatch n, whatever the CSV says, so any other numbering
    gives wrong gradients. Where microbatches differ, whoever feeds the batch puts them into that sequence:
    `microbatch_in_timetable` beside the CSV tells it.
    """
    last = problem.placement.stages - 1
    forwards = [op for row in order.rows for op in row if op.kind is Kind.FORWARD and op.stage == last]
    before = tuple(op.microbatch for op in forwards if op.microbatch is not None)
    number = {microbatch: position for position, microbatch in enumerate(before)}
    rows = tuple(
        tuple(Op(op.kind, op.stage, None if op.microbatch is None else number[op.microbatch]) for op in row)
        for row in order.rows
    )
    return Order(rows), before


def torch_rows(order: Order) -> list[list[str]]:
    """The cells of the CSV, one row a rank, such as ``["0F0", "0F1", "0I0", "0W0", ...]``."""
    return [[f"{op.stage}{LETTERS[op.kind]}{op.microbatch}" for op in row] for row in order.rows]


def write_torch_csv(
    timetable: Timetable, path: str | os.PathLike[str], *, csv_format: CsvFormat = "compute_only"
) -> tuple[Path, Path]:
    """Write a timetable's order for torch, and beside it what the CSV does not say.

    The CSV is for ``_PipelineScheduleRuntime._load_csv(path, format=csv_format)``. The file
    beside it (``x.csv`` gets ``x.csv.json``) names the stages of every rank, the call that loads the CSV, and
    the figures of the timetable next to those of the order as emitted: see `merged`. Reductions of gradients
    and optimizers come after torch's schedule, so they are left out, and of all figures.

    Parameters
    ----------
    timetable
        Any timetable of a placement with one route.
    path
        Of the CSV.
    csv_format
        ``"compute_only"``, where torch places sends and receives, or ``"compute_comms"``, where they stand
        in the order that the planned times ask for, which is proven not to hang.

    Returns
    -------
    The paths of the CSV and of the file beside it.

    Raises
    ------
    ProblemError
        If torch cannot run it: a stage lies on more than one rank, there are no backwards, or torch has no
        word for an operation.
    OrderError
        If the rows do not do every operation exactly once on its rank, or can never finish.
    FileFormatError
        If a file cannot be written.
    """
    csv = Path(path)
    ensure_writable(csv)
    beside = csv.with_name(csv.name + ".json")
    ensure_writable(beside)
    content, about = torch_csv_bytes(timetable, csv.name, csv_format=csv_format)
    write_atomic(csv, content)
    write_atomic(beside, about)
    return csv, beside


def torch_csv_bytes(timetable: Timetable, name: str, *, csv_format: CsvFormat = "compute_only") -> tuple[bytes, bytes]:
    """The contents of a CSV called `name` and of the file beside it; refuses what `write_torch_csv` does."""
    refuse_slices(timetable.problem, TOOL)
    refuse_replicas(timetable.problem, TOOL)
    if timetable.problem.forward_only:
        raise ProblemError(
            "torch.distributed.pipelining's runtime trains: it takes no schedule without backwards, and for evaluation "
            "runs the forwards of a training schedule; emit that one"
        )
    left_out = {timed.op.kind for row in timetable.rows for timed in row if timed.op.kind.of_iteration}
    timetable = timetable.without_ends()
    refuse_other_operations(timetable, LETTERS, TOOL)
    planned = metrics(timetable)
    emitted = merged(timetable)
    about = _about(timetable, emitted, planned, name, csv_format, sorted(kind.value for kind in left_out))
    order, before = numbered_by_loss(timetable.problem, emitted)
    if csv_format == "compute_comms":
        number = sorted(range(len(before)), key=before.__getitem__)
        cells = comms_rows(simulate(timetable.problem, emitted), number)
        rows = [list(map(str, row)) for row in cells]
    else:
        rows = torch_rows(order)
    return "".join(",".join(row) + "\n" for row in rows).encode(), about


def _about(
    timetable: Timetable, emitted: Order, planned: Metrics, csv: str, csv_format: CsvFormat, left_out: list[str]
) -> bytes:
    problem, order = timetable.problem, timetable.order
    placement = problem.placement
    run = planned if emitted == order else metrics(simulate(problem, emitted))
    _, before = numbered_by_loss(problem, emitted)
    fields: dict[str, Any] = {
        "format": FORMAT,
        "csv": csv,
        "csv_format": csv_format,
        "ranks": placement.ranks,
        "stages": placement.stages,
        "microbatches": problem.microbatches,
        "placement": {"name": placement.name, "routes": [list(placement.routes[0])]},
        "stages_of_rank": [list(placement.stages_of(rank)) for rank in range(placement.ranks)],
        "objective": problem.objective,
        "planned_period_ns": planned.period_ns,
        "planned_makespan_ns": planned.makespan_ns,
        "merged_backwards": sum(map(len, order.rows)) - sum(map(len, emitted.rows)),
        "emitted_period_ns": run.period_ns,
        "emitted_makespan_ns": run.makespan_ns,
        "microbatch_in_timetable": list(before),
        **({"left_out": left_out} if left_out else {}),
        "digest": problem.digest,
        "torch": {
            "class": "torch.distributed.pipelining.schedules._PipelineScheduleRuntime",
            "construct": f"_PipelineScheduleRuntime(stages, n_microbatches={problem.microbatches}, loss_fn=loss_fn)",
            "load": f'schedule._load_csv({json.dumps(csv)}, format="{csv_format}")',
            "stages": "the PipelineStage objects of this rank, ascending by stage_index, see stages_of_rank",
        },
    }
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in fields.items())
    return f"{{\n{lines}\n}}\n".encode()
