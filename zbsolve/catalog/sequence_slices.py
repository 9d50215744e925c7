"""Sequence-sliced 1F1B: 1F1B whose units are slices of sequences, each attending to the slices before it.

A rank runs k - 1 forwards more ahead than 1F1B would, so that the last slice of the first sequence is there when
the loss is; backwards come from a queue that gives a sequence's slices last in, first out, and sequences first
in, first out. With p = 2 stages, sequences of k = 2 slices:

    F0 F1 F2    BW1   F3 BW0   F4 BW3 ...       stage s of p runs p - s + k - 1 forwards ahead of its
    .. F0 F1 BW1   F2 BW0   F3 BW3   F4 ...     first backward, and never holds more slices than that

A slice is a k-th of a sequence, so ramp and memory shrink towards a k-th of those of 1F1B on whole sequences.
"""

from __future__ import annotations

from zbsolve.catalog.conditions import require_one_stage_a_rank, require_slices
from zbsolve.catalog.schedule import Member, Schedule, backward, backward_turns, ordered
from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.timetable import Order

__all__ = ["MEMBERS"]


def seq_1f1b(problem: Problem) -> Order:
    """The Seq1F1B order (non-interleaved, backwards whole).

    Bubble time (p-1)(F+B+W) of one slice at equal stages and slices and no latency; rank r holds up to
    p - r + k - 1 slices.

    Raises
    ------
    ScheduleConditionError
        If a rank holds more than one stage, or sequences are whole.
    """
    route = require_one_stage_a_rank(problem, "seq-1f1b")
    require_slices(problem, "seq-1f1b")
    stages, microbatches = len(route), problem.microbatches
    rows: dict[int, list[Op]] = {}
    for stage, rank in enumerate(route):
        warm_up = min(stages - stage + problem.slices - 1, microbatches)
        row = [Op(Kind.FORWARD, stage, microbatch) for microbatch in range(warm_up)]
        for number, microbatch in enumerate(backward_turns(problem)):
            row += backward(problem, stage, microbatch)
            if number + warm_up < microbatches:
                row.append(Op(Kind.FORWARD, stage, number + warm_up))
        rows[rank] = row
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
)
