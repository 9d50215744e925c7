"""What another tool has no word for is refused with the reason, never mistranslated."""

from __future__ import annotations

from collections.abc import Container

from zbsolve.errors import ProblemError
from zbsolve.ops import Kind
from zbsolve.problem import Problem
from zbsolve.timetable import Timetable

__all__ = ["COMPUTE", "refuse_other_operations", "refuse_replicas", "refuse_slices"]

COMPUTE = frozenset({Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT, Kind.BACKWARD})
"""The operations of one microbatch that every tool knows."""


def refuse_other_operations(timetable: Timetable, known: Container[Kind], tool: str) -> None:
    """Refuse a timetable with an operation that a tool has no word for.

    Parameters
    ----------
    timetable
        What is to be translated.
    known
        The kinds that the tool can say, each for one microbatch.
    tool
        How messages call it.

    Raises
    ------
    ProblemError
        With the operation, its rank, and the kinds that could be said.
    """
    for rank, row in enumerate(timetable.rows):
        for timed in row:
            op = timed.op
            if op.kind not in known or op.microbatch is None:
                raise ProblemError(f"{tool} has no word for {op.kind.value} ({op}, rank {rank}); solve without it")
            if getattr(op, "beside", None) is not None:
                raise ProblemError(
                    f"{tool} runs one operation at a time, but rank {rank} runs {op} together with {op.beside}; "  # type: ignore[attr-defined]
                    "solve without pairs"
                )


def refuse_slices(problem: Problem, tool: str) -> None:
    """Refuse microbatches that are slices of sequences.

    Raises
    ------
    ProblemError
        With how many slices a sequence has.
    """
    if problem.slices > 1:
        raise ProblemError(
            f"{tool} runs microbatches that have nothing to do with each other, but here every {problem.slices} are "
            "slices of one sequence and share keys and values; solve with slices=1, or run it with zbsolve's executor"
        )


def refuse_replicas(problem: Problem, tool: str) -> None:
    """Refuse a placement with a stage on more than one rank.

    Raises
    ------
    ProblemError
        With the stage and its ranks.
    """
    for stage in range(problem.placement.stages):
        ranks = problem.placement.holders(stage)
        if len(ranks) > 1:
            raise ProblemError(
                f"{tool} holds each stage on one rank, but stage {stage} lies on ranks "
                f"{', '.join(map(str, ranks))} ({problem.placement.name} placement); choose a placement with one route"
            )
