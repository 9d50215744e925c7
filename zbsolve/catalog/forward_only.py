"""Forwards alone, for evaluation and serving, on any placement.

F0 F1 F2 F3 ..          with one stage a rank there is one sequence worth running, and it has
.. F0 F1 F2 F3 ..       no bubble; with several, three are tried on the costs: stage by stage,
.. .. F0 F1 F2 F3       microbatch by microbatch, and groups of p microbatches stage by stage
"""

from __future__ import annotations

from collections.abc import Iterator

from zbsolve.catalog.schedule import Member, Schedule
from zbsolve.errors import ScheduleConditionError
from zbsolve.opgraph import OpGraph
from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.simulate import Timer
from zbsolve.timetable import Order

__all__ = ["FAMILY", "MEMBERS"]

FAMILY = "forward-only"


def _sequence(problem: Problem, group: int) -> Iterator[Op]:
    """Groups of microbatches one after the other, each stage by stage."""
    for first in range(0, problem.microbatches, group):
        for stage in range(problem.placement.stages):
            for microbatch in range(first, min(first + group, problem.microbatches)):
                yield Op(Kind.FORWARD, stage, microbatch)


def forward_only(problem: Problem) -> Order:
    """Forwards alone; the best of three sequences on the costs.

    No bubble with one stage a rank, whatever the costs: a rank is done m F after it began, since it
    may begin as late as its inputs come without a pause.

    Raises
    ------
    ScheduleConditionError
        If the problem has backwards.
    """
    if not problem.forward_only:
        raise ScheduleConditionError(
            "forward-only leaves backwards out, but the problem trains; ask a problem with forward_only=True "
            "(on the command line --forward-only)"
        )
    best: tuple[int, Order] | None = None
    for group in sorted({1, min(problem.placement.ranks, problem.microbatches), problem.microbatches}, reverse=True):
        rows: list[list[Op]] = [[] for _ in range(problem.placement.ranks)]
        for op in _sequence(problem, group):
            rows[problem.rank_of(op)].append(op)
        order = Order(tuple(tuple(row) for row in rows))
        graph = OpGraph.build(problem, order.rows)
        timer = Timer(graph, graph.encode(order))
        value = (timer.period() if problem.objective == "period" else timer.makespan()).value_ns
        if best is None or value < best[0]:
            best = value, order
    assert best is not None
    return best[1]


MEMBERS = (
    Member(
        Schedule(
            name="forward-only",
            family=FAMILY,
            placement="any",
            source="the forwards of GPipe, arXiv 1811.06965",
            needs="a problem of forwards only",
        ),
        forward_only,
        slices=True,
    ),
)
