"""The end of an iteration: reductions of gradients and optimizers, put behind what a schedule runs.

Published schedules say nothing of them. Here each stage's reduction starts as soon as its last weight
gradient on the rank is done, beside what the rank still computes, and the optimizers come last, in
the sequence in which the stages were complete::

    compute   ... W7 of stage 5   W6 of stage 1   W7 of stage 1   O of stage 5   O of stage 1
    network                       R of stage 5 ..................                R of stage 1
"""

from __future__ import annotations

from dataclasses import replace

from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.timetable import Order

__all__ = ["closed", "open_ended"]


def open_ended(problem: Problem) -> Problem:
    """The problem without reductions and optimizers."""
    return replace(problem, ends=False) if problem.has_ends else problem


def closed(problem: Problem, order: Order) -> Order:
    """The order with the problem's reductions and optimizers; what it has of them is put anew."""
    if not problem.has_ends and all(op.microbatch is not None for row in order.rows for op in row):
        return order
    rows = [_closed_row(problem, rank, row) for rank, row in enumerate(order.rows)]
    return Order(tuple(rows))


def _closed_row(problem: Problem, rank: int, row: tuple[Op, ...]) -> tuple[Op, ...]:
    left = {stage for stage in problem.placement.stages_of(rank) if problem.has(Kind.OPTIMIZER, stage)}
    kept = [op for op in row if op.microbatch is not None]
    last = {op.stage: at for at, op in enumerate(kept)}
    # a stage that no microbatch visits here is complete once other ranks are
    complete = sorted(left, key=lambda stage: (last.get(stage, -1), stage))
    by_place: dict[int, list[int]] = {}
    for stage in complete:
        by_place.setdefault(last.get(stage, -1), []).append(stage)
    made: list[Op] = []
    for at in range(-1, len(kept)):
        if at >= 0:
            made.append(kept[at])
        reduced = [stage for stage in by_place.get(at, ()) if problem.has(Kind.REDUCE_GRADIENT, stage)]
        made += [Op(Kind.REDUCE_GRADIENT, stage, None) for stage in reduced]
    return (*made, *(Op(Kind.OPTIMIZER, stage, None) for stage in complete))
