"""1F1B: a rank fills the pipeline below it, then runs one backward for one forward.

F0 F1 F2 .. .. .. .. BW0 F3 ..          stage s of p runs p - s forwards ahead of its first
.. F0 F1 .. .. BW0 F2 .. BW1            backward and so never holds more than p - s
.. .. F0 BW0 F1 BW1 ..                  microbatches, however many there are

The eager variant runs 2(p - s) - 1 of them ahead, so that a forward is there well before it is
needed and transfers hide behind compute; it pays with nearly twice the memory.
"""

from __future__ import annotations

from collections.abc import Callable

from zbsolve.catalog.conditions import require_one_stage_a_rank
from zbsolve.catalog.schedule import Member, Schedule, backward, ordered
from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.timetable import Order

__all__ = ["MEMBERS"]


def _after(problem: Problem, name: str, ahead: Callable[[int], int]) -> Order:
    """`ahead` forwards, told by the number of stages from this one on; then backward, forward in turn."""
    route = require_one_stage_a_rank(problem, name)
    stages, microbatches = len(route), problem.microbatches
    rows: dict[int, list[Op]] = {}
    for stage, rank in enumerate(route):
        warm_up = min(ahead(stages - stage), microbatches)
        row = [Op(Kind.FORWARD, stage, microbatch) for microbatch in range(warm_up)]
        for microbatch in range(microbatches):
            row += backward(problem, stage, microbatch)
            if microbatch + warm_up < microbatches:
                row.append(Op(Kind.FORWARD, stage, microbatch + warm_up))
        rows[rank] = row
    return ordered(problem, rows)


def one_f_one_b(problem: Problem) -> Order:
    """The 1F1B order (non-interleaved).

    Bubble time (p-1)(F+B+W) at equal stages and no latency, as GPipe, with at most p microbatches
    held instead of all.

    Raises
    ------
    ScheduleConditionError
        If a rank holds more than one stage.
    """
    return _after(problem, "1f1b", lambda below: below)


def eager_1f1b(problem: Problem) -> Order:
    """The eager 1F1B order: up to 2p-1 microbatches held, transfers up to a forward long are hidden.

    Bubble time (p-1)(F+B+W) at equal stages and no latency, as 1F1B.

    Raises
    ------
    ScheduleConditionError
        If a rank holds more than one stage.
    """
    return _after(problem, "eager-1f1b", lambda below: 2 * below - 1)


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
    Member(
        Schedule(
            name="eager-1f1b",
            family="1f1b",
            placement="linear",
            source="arXiv 2211.05322, as in Alpa; DAPPLE's policy B, arXiv 2007.01045",
            needs="one stage a rank; memory of 2p-1 microbatches",
        ),
        eager_1f1b,
    ),
)
