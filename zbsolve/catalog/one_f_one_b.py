"""1F1B: a rank fills the pipeline below it, then runs one backward for one forward.

F0 F1 F2 .. .. .. .. BW0 F3 ..          stage s of p runs p - s forwards ahead of its first
.. F0 F1 .. .. BW0 F2 .. BW1            backward and so never holds more than p - s
.. .. F0 BW0 F1 BW1 ..                  microbatches, however many there are
"""

from __future__ import annotations

from zbsolve.catalog.schedule import Member, Schedule, backward, require_one_stage_a_rank
from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.timetable import Order

__all__ = ["MEMBERS"]


def one_f_one_b(problem: Problem) -> Order:
    """The 1F1B order (non-interleaved).

    Bubble time (p-1)(F+B+W) at equal stages and no latency, as GPipe, with at most p microbatches
    held instead of all.

    Raises
    ------
    ScheduleConditionError
        If a rank holds more than one stage.
    """
    route = require_one_stage_a_rank(problem, "1f1b")
    stages, microbatches = len(route), problem.microbatches
    rows: list[tuple[Op, ...]] = [()] * stages
    for stage, rank in enumerate(route):
        ahead = min(stages - stage, microbatches)
        row = [Op(Kind.FORWARD, stage, microbatch) for microbatch in range(ahead)]
        for microbatch in range(microbatches):
            row += backward(problem, stage, microbatch)
            if microbatch + ahead < microbatches:
                row.append(Op(Kind.FORWARD, stage, microbatch + ahead))
        rows[rank] = tuple(row)
    return Order(tuple(rows))


MEMBERS = (
    Member(
        Schedule(
            name="1f1b",
            family="1f1b",
            placement="linear",
            source="PipeDream-Flush, arXiv 2006.09503; as in Megatron-LM, arXiv 2104.04473",
            needs="one stage a rank",
        ),
        one_f_one_b,
    ),
)
