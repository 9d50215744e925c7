"""Breadth-first pipelining: several stages a rank in laps, each for all microbatches at once.

F0 F1 F2 f0 f1 f2 .. bw0 bw1 bw2 BW0 BW1 BW2      f, bw: the rank's second stage

torch's class runs the backwards of every stage last in, first out, which slices of sequences can do as well; the
published order takes sequences as they are numbered, and of each the last slice first.
"""

from __future__ import annotations

from zbsolve.catalog.conditions import require_looped
from zbsolve.catalog.schedule import Member, Schedule, backward, backward_turns, ordered
from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.timetable import Order

__all__ = ["MEMBERS"]


def _breadth_first(problem: Problem, name: str, *, last_in_first_out: bool) -> Order:
    lap, _ = require_looped(problem, name, whole=False)
    stages, forwards = range(problem.placement.stages), range(problem.microbatches)
    backwards = forwards[::-1] if last_in_first_out else tuple(backward_turns(problem))
    rows: dict[int, list[Op]] = {rank: [] for rank in lap}
    for stage in stages:
        rows[lap[stage % len(lap)]] += [Op(Kind.FORWARD, stage, microbatch) for microbatch in forwards]
    for stage in reversed(stages):
        for microbatch in backwards:
            rows[lap[stage % len(lap)]] += backward(problem, stage, microbatch)
    return ordered(problem, rows)


def looped_bfs(problem: Problem) -> Order:
    """Breadth-first: every rank runs a stage for all microbatches before it turns to the next.

    Bubble time (p-1)(F+B+W) of one chunk at equal stages, m >= p and no latency: 1/v of GPipe's with
    the same layers. A rank holds all microbatches at once.

    Raises
    ------
    ScheduleConditionError
        If the stages do not go round the ranks in laps.
    """
    return _breadth_first(problem, "looped-bfs", last_in_first_out=False)


def torch_looped_bfs(problem: Problem) -> Order:
    """Breadth-first as torch's ``ScheduleLoopedBFS``: backwards last in, first out.

    Raises
    ------
    ScheduleConditionError
        If the stages do not go round the ranks in laps.
    """
    return _breadth_first(problem, "torch-looped-bfs", last_in_first_out=True)


MEMBERS = (
    Member(
        Schedule(
            name="looped-bfs",
            family="breadth-first",
            placement="looped",
            source="Breadth-First Pipeline Parallelism, arXiv 2211.05953",
            needs="several stages a rank, in laps; memory for all microbatches",
        ),
        looped_bfs,
        slices=True,
    ),
    Member(
        Schedule(
            name="torch-looped-bfs",
            family="breadth-first",
            placement="looped",
            source="torch's ScheduleLoopedBFS, after arXiv 2211.05953",
            needs="several stages a rank, in laps; memory for all microbatches",
        ),
        torch_looped_bfs,
        slices=True,
    ),
)
