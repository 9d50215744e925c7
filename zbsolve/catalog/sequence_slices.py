"""Sequence-sliced 1F1B: 1F1B whose units are slices of sequences, each attending to the slices before it.

A rank runs k - 1 forwards more ahead than 1F1B would, so that the last slice of the first sequence is there when
the loss is; backwards come from a queue that gives a sequence's slices last in, first out, and sequences first
in, first out. With p = 2 stages, sequences of k = 2 slices:

    F0 F1 F2    BW1   F3 BW0   F4 BW3 ...       stage s of p runs p - s + k - 1 forwards ahead of its
    .. F0 F1 BW1   F2 BW0   F3 BW3   F4 ...     first backward, and never holds more slices than that

A slice is a k-th of a sequence, so ramp and memory shrink towards a k-th of those of 1F1B on whole sequences.

The same ramp up and the same turns with B and W apart, as in ZB-H1: the r-th rank runs the W of r backwards ago.
"""

from __future__ import annotations

from collections.abc import Callable

from zbsolve.catalog.conditions import require_one_stage_a_rank, require_slices, require_split
from zbsolve.catalog.schedule import Member, Schedule, backward, backward_turns, ordered
from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.timetable import Order

__all__ = ["MEMBERS"]


Turn = Callable[[int, int], tuple[Op, ...]]
"""What a rank does at its n-th backward: given the stage and n, from 0."""


def _in_turn(problem: Problem, name: str, turn: Turn) -> dict[int, list[Op]]:
    """The rows: the forwards ahead; then a turn and, while there are any, a forward."""
    route = require_one_stage_a_rank(problem, name)
    require_slices(problem, name)
    stages, microbatches = len(route), problem.microbatches
    rows: dict[int, list[Op]] = {}
    for stage, rank in enumerate(route):
        warm_up = min(stages - stage + problem.slices - 1, microbatches)
        row = [Op(Kind.FORWARD, stage, microbatch) for microbatch in range(warm_up)]
        for number in range(microbatches):
            row += turn(stage, number)
            if number + warm_up < microbatches:
                row.append(Op(Kind.FORWARD, stage, number + warm_up))
        rows[rank] = row
    return rows


def seq_1f1b(problem: Problem) -> Order:
    """The Seq1F1B order (non-interleaved, backwards whole).

    Bubble time (p-1)(F+B+W) of one slice at equal stages and slices and no latency; rank r holds up to
    p - r + k - 1 slices.

    Raises
    ------
    ScheduleConditionError
        If a rank holds more than one stage, or sequences are whole.
    """
    turns = tuple(backward_turns(problem))
    return ordered(problem, _in_turn(problem, "seq-1f1b", lambda stage, n: backward(problem, stage, turns[n])))


def seq_zb_h1(problem: Problem) -> Order:
    """ZB-H1 on slices: the ramp up and the memory of `seq_1f1b`, with weight passes in the ramp down.

    Bubble time (p-1)(F+B-W) of one slice at equal stages and slices and no latency, where W <= F and there are at
    least p slices; rank r holds up to p - r + k - 1 slices, and r that wait for W.

    Raises
    ------
    ScheduleConditionError
        If a rank holds more than one stage, sequences are whole, or B and W may not stand apart.
    """
    require_split(problem, "seq-zb-h1")
    turns = tuple(backward_turns(problem))

    def turn(stage: int, number: int) -> tuple[Op, ...]:
        gradient = Op(Kind.BACKWARD_INPUT, stage, turns[number])
        return (gradient,) if number < stage else (gradient, Op(Kind.BACKWARD_WEIGHT, stage, turns[number - stage]))

    rows = _in_turn(problem, "seq-zb-h1", turn)
    for stage, rank in enumerate(problem.placement.routes[0]):
        late = turns[max(len(turns) - stage, 0) :]
        rows[rank] += [Op(Kind.BACKWARD_WEIGHT, stage, microbatch) for microbatch in late]
    return ordered(problem, rows)


MEMBERS = (
    Member(
        Schedule(
            name="seq-1f1b",
            family="sequence-slices",
            placement="linear",
            source="Seq1F1B, arXiv 2406.03488",
            needs="one stage a rank; sequences in k > 1 slices; memory of p + k - 1 slices",
        ),
        seq_1f1b,
        slices=True,
    ),
    Member(
        Schedule(
            name="seq-zb-h1",
            family="sequence-slices",
            placement="linear",
            source="Seq1F1B with ZB-H1, arXiv 2406.03488",
            needs="one stage a rank; sequences in k > 1 slices; B and W apart; memory of p + k - 1 slices",
        ),
        seq_zb_h1,
        slices=True,
    ),
)
