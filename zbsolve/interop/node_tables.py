"""What node tables of Megatron's relatives share: chunks, placements that can be built, backwards of one kind."""

from __future__ import annotations

from zbsolve.errors import ProblemError
from zbsolve.interop.refuse import COMPUTE, refuse_other_operations, refuse_replicas, refuse_slices
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.simulate import simulate
from zbsolve.timetable import Order, Timetable

__all__ = ["chunks_of", "layout_of", "ready_for"]


def layout_of(placement: Placement) -> str:
    """``"looped"`` (one chunk a rank too), ``"v"``, or ``"other"``."""
    ranks, stages = placement.ranks, placement.stages
    if stages % ranks == 0 and placement == Placement.looped(ranks, stages // ranks):
        return "looped"
    return "v" if placement == Placement.v(ranks) else "other"


def chunks_of(placement: Placement) -> dict[int, tuple[int, int]]:
    """The rank of every stage, and which chunk of that rank it is."""
    return {
        stage: (rank, chunk) for rank in range(placement.ranks) for chunk, stage in enumerate(placement.stages_of(rank))
    }


def ready_for(tool: str, timetable: Timetable) -> tuple[Timetable, tuple[str, ...]]:
    """A timetable as such a tool can run it, and what was changed.

    In these tools a backward waits for one of its own kind in the stage behind, so an order with both
    kinds, split and fused, is split throughout. They read inputs on the first stage and labels on the last, each in the
    order of its forwards, so these have to be the same.

    Raises
    ------
    ProblemError
        If the placement cannot be built there, the tool has no word for an operation, or first and last stage
        take the microbatches in different orders.
    """
    problem = timetable.problem
    refuse_slices(problem, tool)
    refuse_replicas(problem, tool)
    if problem.forward_only:
        raise ProblemError(f"{tool} trains: it takes no schedule without backwards; emit that of the training")
    refuse_other_operations(timetable, COMPUTE, tool)
    if layout_of(problem.placement) == "other":
        raise ProblemError(
            f"{tool} builds its stages looped or in a V with two chunks, not on ranks "
            f"{_listed(problem.placement)} ({problem.placement.name} placement); choose linear, looped or v"
        )
    _refuse_other_data(tool, timetable)
    kinds = {timed.op.kind for row in timetable.rows for timed in row}
    if not {Kind.BACKWARD, Kind.BACKWARD_INPUT} <= kinds:
        return timetable, ()
    fused = sum(timed.op.kind is Kind.BACKWARD for row in timetable.rows for timed in row)
    note = f"{tool} knows one kind of backward in a schedule: {fused} that were fused are split"
    return _split(problem, timetable), (note,)


def _refuse_other_data(tool: str, timetable: Timetable) -> None:
    last = timetable.problem.placement.stages - 1
    ends: dict[int, list[Op]] = {0: [], last: []}
    for row in timetable.rows:
        for timed in row:
            if timed.op.kind is Kind.FORWARD and timed.op.stage in ends:
                ends[timed.op.stage].append(timed.op)
    for first, other in zip(ends[0], ends[last], strict=False):
        if first.microbatch != other.microbatch:
            raise ProblemError(
                f"{tool} reads inputs and labels in the order of forwards on the first and the last stage, but where "
                f"{first} stands in the one, {other} stands in the other; use an order that is first in, first out"
            )


def _split(problem: Problem, timetable: Timetable) -> Timetable:
    rows: list[tuple[Op, ...]] = [tuple(part for timed in row for part in timed.op.parts) for row in timetable.rows]
    return simulate(problem, Order(tuple(rows)))


def _listed(placement: Placement) -> str:
    route = placement.routes[0]
    return ", ".join(map(str, route[:12])) + (", ..." if len(route) > 12 else "")
