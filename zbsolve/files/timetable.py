"""Timetables as files: `zbsolve.timetable/1` embeds its problem and what the solver claims of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from zbsolve.disk import PathLike, collection_paused, read_regular, write_atomic
from zbsolve.errors import FileFormatError, InvalidInput, UnitError
from zbsolve.files import shapes
from zbsolve.files.parse import located, parse, plain
from zbsolve.files.profile import profile_from_shape, profile_to_plain
from zbsolve.files.text import json_bytes
from zbsolve.metrics import metrics
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Objective, Problem
from zbsolve.solution import Solution, Status
from zbsolve.timetable import TimedOp, Timetable
from zbsolve.units import MAX_AMOUNT, counted

__all__ = [
    "SolverRecord",
    "read_record_bytes",
    "read_solution_record",
    "read_timetable",
    "read_timetable_bytes",
    "solution_of",
    "timetable_bytes",
    "write_timetable",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverRecord:
    """What a solver claimed of a timetable when it was written; the judge believes none of it.

    Parameters
    ----------
    status, objective, value_ns, lower_bound_ns, bound, gap, method, seed, digest, lost, seconds
        As in `Solution`; the gap is infinite where the bound is 0.
    period_ns, makespan_ns, bubble, peak_bytes
        As in `Metrics`.
    """

    status: Status
    objective: Objective
    value_ns: int
    period_ns: int
    makespan_ns: int
    lower_bound_ns: int
    bound: str
    gap: float
    bubble: float
    peak_bytes: tuple[int, ...]
    method: str
    seed: int
    digest: str
    lost: tuple[str, ...] = ()
    seconds: float

    @classmethod
    def of(cls, solution: Solution) -> SolverRecord:
        """The record of a solution; wall time to the millisecond."""
        return cls(
            status=solution.status,
            objective=solution.timetable.problem.objective,
            value_ns=solution.value_ns,
            period_ns=solution.metrics.period_ns,
            makespan_ns=solution.metrics.makespan_ns,
            lower_bound_ns=solution.lower_bound_ns,
            bound=solution.bound,
            gap=solution.gap,
            bubble=solution.metrics.bubble,
            peak_bytes=solution.metrics.peak_bytes,
            method=solution.method,
            seed=solution.seed,
            digest=solution.digest,
            lost=solution.lost,
            seconds=round(solution.seconds, 3),
        )


def read_timetable(path: PathLike) -> Timetable:
    """Read a timetable with its problem.

    Types and structure are checked: every operation names a stage and a microbatch of the problem
    and there is a row for each rank. Whether the rows are right is for `zbsolve.check` to say.

    Raises
    ------
    FileFormatError
        If it is no timetable file, with the JSON path.
    """
    return read_timetable_bytes(read_regular(path), path)


def read_timetable_bytes(data: bytes, name: object) -> Timetable:
    """Read the content of a timetable file; `name` is how messages call it."""
    return _read(data, name)[0]


def read_solution_record(path: PathLike) -> SolverRecord | None:
    """What the solver claimed of the timetable in a file; None if it did not come from the solver."""
    return read_record_bytes(read_regular(path), path)


def read_record_bytes(data: bytes, name: object) -> SolverRecord | None:
    """As `read_solution_record`, from the content of a file."""
    return _read(data, name)[1]


def write_timetable(path: PathLike, timetable: Timetable | Solution) -> None:
    """Write a timetable, or a solution with the solver's record."""
    write_atomic(path, timetable_bytes(timetable))


def solution_of(timetable: Timetable, record: SolverRecord) -> Solution:
    """A solution from what stands in its file: figures are the order's own, the proof is as recorded.

    Raises
    ------
    OrderError
        If the rows are no order of the problem or can never finish.
    """
    return Solution(
        timetable=timetable,
        metrics=metrics(timetable),
        status=record.status,
        value_ns=record.value_ns,
        lower_bound_ns=record.lower_bound_ns,
        bound=record.bound,
        gap=record.gap,
        seconds=record.seconds,
        seed=record.seed,
        method=record.method,
        digest=record.digest,
        lost=record.lost,
    )


def timetable_bytes(timetable: Timetable | Solution) -> bytes:
    """A timetable or a solution as the bytes of its file, the same for the same content.

    Only ``seconds``, last in the solver's record, tells of the run rather than of the answer.
    """
    record = None
    if isinstance(timetable, Solution):
        record, timetable = SolverRecord.of(timetable), timetable.timetable
    plain: dict[str, Any] = {"format": shapes.TIMETABLE, "problem": _problem_to_plain(timetable.problem)}
    if record is not None:
        plain["solver"] = _record_to_plain(record)
    plain["ranks"] = [[_operation(timed) for timed in row] for row in timetable.rows]
    return json_bytes(plain)


def _operation(timed: TimedOp) -> list[Any]:
    op = timed.op
    written: list[Any] = [op.kind.value, op.stage, op.microbatch, timed.start_ns, timed.end_ns]
    if op.beside is not None:
        written.append([op.beside.kind.value, op.beside.stage, op.beside.microbatch])
    return written


def _problem_to_plain(problem: Problem) -> dict[str, Any]:
    routes, limit = problem.placement.routes, problem.memory_limit
    plain: dict[str, Any] = {
        "profile": profile_to_plain(problem.profile),
        "placement": {"name": problem.placement.name, "routes": [list(route) for route in routes]},
        "microbatches": problem.microbatches,
        "memory_limit": list(limit) if isinstance(limit, tuple) else limit,
        "objective": problem.objective,
        "allow": sorted(problem.allow),
    }
    if problem.route_of != tuple(j // problem.slices % len(routes) for j in range(problem.microbatches)):
        plain["route_of"] = list(problem.route_of or ())
    for name in ("rank_factors", "microbatch_factors"):
        if (factors := getattr(problem, name)) is not None:
            plain[name] = [str(factor) for factor in factors]
    if problem.forward_only:
        plain["forward_only"] = True
    if problem.slices > 1:
        plain["slices"] = problem.slices
    if problem.has_ends or not problem.ends:
        plain["ends"] = problem.ends
    return plain


def _record_to_plain(record: SolverRecord) -> dict[str, Any]:
    plain = {field.name: getattr(record, field.name) for field in fields(record)}
    if not record.lost:
        del plain["lost"]
    return plain | {
        "gap": record.gap if math.isfinite(record.gap) else None,
        "peak_bytes": list(record.peak_bytes),
    }


def _read(data: bytes, name: object) -> tuple[Timetable, SolverRecord | None]:
    shape = parse(data, name, shapes.TimetableFile)
    # files from before reductions and optimizers were operations do not say, and have none
    ends = any(Kind(op.kind).of_iteration for row in shape.ranks for op in reversed(row))
    problem = _problem(shape.problem, name, "$.problem", ends=ends)
    if len(shape.ranks) != problem.placement.ranks:
        raise FileFormatError(
            name,
            f"the placement has {counted(problem.placement.ranks, 'rank')}, but there are {len(shape.ranks)} rows",
            "$.ranks",
        )
    record = None if shape.solver is None else _record(shape.solver, problem, name)
    with collection_paused():
        rows = tuple(_row(row, problem, name, f"$.ranks[{rank}]") for rank, row in enumerate(shape.ranks))
    return Timetable(problem=problem, rows=rows), record


def _row(row: list[shapes.OpShape], problem: Problem, name: object, where: str) -> tuple[TimedOp, ...]:
    timed = []
    for i, shape in enumerate(row):
        op = _op(shape.kind, shape.stage, shape.microbatch, problem, name, where, (i,))
        if shape.beside is not None:
            if op.kind is not Kind.FORWARD:
                raise FileFormatError(name, "only beside a forward does something run together", f"{where}[{i}][5]")
            op = Op(op.kind, op.stage, op.microbatch, _op(*shape.beside, problem, name, where, (i, 5)))
        timed.append(TimedOp(op, shape.start_ns, shape.end_ns))
    return tuple(timed)


def _op(
    kind: str, stage: int, microbatch: int | None, problem: Problem, name: object, where: str, at: tuple[int, ...]
) -> Op:
    """An operation of the problem; `at` are the places in the row where it stands, for messages."""
    stages, microbatches = problem.placement.stages, problem.microbatches
    message, field = "", 2
    if stage >= stages:
        message, field = f"the problem has {counted(stages, 'stage')}, numbered from 0; got {stage}", 1
    elif (microbatch is None) != Kind(kind).of_iteration:
        message = "expected a whole number, got null" if microbatch is None else f"{kind} has no microbatch: null"
    elif microbatch is not None and microbatch >= microbatches:
        message = f"the problem has {counted(microbatches, 'microbatch')}, numbered from 0; got {microbatch}"
    if message:
        raise FileFormatError(name, message, where + "".join(f"[{place}]" for place in (*at, field)))
    return Op(Kind(kind), stage, microbatch)


def _problem(shape: shapes.ProblemShape, name: object, where: str, *, ends: bool) -> Problem:
    profile = profile_from_shape(shape.profile, name, f"{where}.profile")
    placement = _placement(shape.placement, name, f"{where}.placement")
    limit = shape.memory_limit
    try:
        return Problem(
            profile=profile,
            placement=placement,
            microbatches=shape.microbatches,
            memory_limit=tuple(limit) if isinstance(limit, list) else limit,
            objective=shape.objective,
            allow=frozenset(shape.allow),
            route_of=None if shape.route_of is None else tuple(shape.route_of),
            rank_factors=None if shape.rank_factors is None else tuple(shape.rank_factors),
            microbatch_factors=None if shape.microbatch_factors is None else tuple(shape.microbatch_factors),
            forward_only=shape.forward_only,
            slices=shape.slices,
            ends=ends if shape.ends is None else shape.ends,
        )
    except UnitError as error:  # a limit is the only amount that a problem reads
        raise FileFormatError(name, plain(str(error)), f"{where}.memory_limit") from None
    except InvalidInput as error:
        raise FileFormatError(name, plain(str(error)), where) from None


def _placement(shape: shapes.PlacementShape, name: object, where: str) -> Placement:
    with located(name, f"{where}.routes"):
        placement = Placement.custom(*shape.routes)
    if shape.name not in (None, "custom", placement.name):
        raise FileFormatError(
            name, f"these routes are called {placement.name!r}; say so, or leave the name out", f"{where}.name"
        )
    return placement


def _record(shape: shapes.SolverShape, problem: Problem, name: object) -> SolverRecord:
    values: dict[str, Any] = {field: getattr(shape, field) for field in shape.__struct_fields__}
    for field in ("gap", "bubble", "seconds"):
        if values[field] is not None and not math.isfinite(values[field]):
            raise FileFormatError(name, "must be a finite number", f"$.solver.{field}")
    if abs(shape.seed) > MAX_AMOUNT:
        raise FileFormatError(name, "must lie within -2^62..2^62", "$.solver.seed")
    if len(shape.peak_bytes) != problem.placement.ranks:
        raise FileFormatError(
            name,
            f"needs one entry a rank, {problem.placement.ranks} in all, got {len(shape.peak_bytes)}",
            "$.solver.peak_bytes",
        )
    values["gap"] = math.inf if shape.gap is None else shape.gap
    values["peak_bytes"] = tuple(shape.peak_bytes)
    values["lost"] = () if shape.lost is None else tuple(shape.lost)
    return SolverRecord(**values)
