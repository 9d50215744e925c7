"""Naive model parallelism and GPipe: schedules that follow one global sequence, on any placement.

Each sorts all operations by one key under which everything comes after what it needs, and gives
each rank its share. Rows cut from one such sequence can never wait for each other in a circle.

    naive   F0 ...... BW0 F1 ...... BW1        gpipe   F0 F1 .. .. BW0 BW1
            .. F0 BW0 .. .. F1 BW1 ..                  .. F0 F1 BW0 BW1 ..

Of sequences in slices, naive takes one sequence at a time, and both turn back at its last slice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from zbsolve.catalog.schedule import Member, Schedule, backward, backward_turns
from zbsolve.errors import ScheduleConditionError
from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.timetable import Order

__all__ = ["MEMBERS"]


def _one_at_a_time(problem: Problem) -> Iterator[Op]:
    stages = range(problem.placement.stages)
    turns = backward_turns(problem)
    for first in range(0, problem.microbatches, problem.slices):
        for microbatch in range(first, first + problem.slices):
            for stage in stages:
                yield Op(Kind.FORWARD, stage, microbatch)
        for microbatch in itertools.islice(turns, problem.slices):
            for stage in reversed(stages):
                yield from backward(problem, stage, microbatch)


def _all_forwards_first(problem: Problem) -> Iterator[Op]:
    """Stage by stage: with several chunks a rank this is the breadth-first order."""
    stages, microbatches = range(problem.placement.stages), range(problem.microbatches)
    for stage in stages:
        for microbatch in microbatches:
            yield Op(Kind.FORWARD, stage, microbatch)
    for stage in reversed(stages):
        for microbatch in backward_turns(problem):
            yield from backward(problem, stage, microbatch)


def _deal(problem: Problem, sequence: Iterator[Op]) -> Order:
    rows: list[list[Op]] = [[] for _ in range(problem.placement.ranks)]
    for op in sequence:
        rows[problem.rank_of(op)].append(op)
    return Order(tuple(tuple(row) for row in rows))


def naive(problem: Problem) -> Order:
    """One microbatch (or sequence in slices) at a time through all stages and back: the least memory any order needs.

    With several chunks a rank and slices whose workspaces differ, another way back may need a little less.
    """
    return _deal(problem, _one_at_a_time(problem))


def gpipe(problem: Problem) -> Order:
    """All forwards, then all backwards; a rank holds every microbatch at once.

    Bubble time (p-1)(F+B+W) at equal stages with one a rank and no latency.
    """
    return _deal(problem, _all_forwards_first(problem))


def gpipe_recompute(problem: Problem) -> Order:
    """GPipe with every forward but the last microbatch's computed again right before its backward.

    The last microbatch's backward follows its forward on the last stage, so that nothing is saved there.
    """
    if "recompute" not in problem.allow:
        raise ScheduleConditionError(
            "gpipe-recompute computes forwards again, but the problem does not allow that; allow 'recompute' "
            "(--recompute), or use gpipe"
        )
    last = problem.microbatches - 1
    rows = []
    for row in gpipe(problem).rows:
        made: list[Op] = []
        for op in row:
            if op.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT) and op.microbatch != last:
                made.append(Op(Kind.RECOMPUTE, op.stage, op.microbatch))
            made.append(op)
        rows.append(tuple(made))
    return Order(tuple(rows))


MEMBERS = (
    Member(
        Schedule(
            name="naive",
            family="sequential",
            placement="any",
            source="plain model parallelism: one microbatch at a time",
            needs="nothing",
        ),
        naive,
        slices=True,
    ),
    Member(
        Schedule(
            name="gpipe",
            family="sequential",
            placement="any",
            source="GPipe, arXiv 1811.06965; several chunks a rank: Breadth-First Pipeline, arXiv 2211.05953",
            needs="memory for all microbatches",
        ),
        gpipe,
        slices=True,
    ),
    Member(
        Schedule(
            name="gpipe-recompute",
            family="sequential",
            placement="any",
            source="torchgpipe, arXiv 2004.09910: checkpointing of all microbatches but the last",
            needs="forwards that may be computed again; memory for the checkpoints of all microbatches",
        ),
        gpipe_recompute,
        slices=True,
    ),
)
