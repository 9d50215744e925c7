"""What a published schedule is, and the conditions that several of them share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from zbsolve.errors import ScheduleConditionError
from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.timetable import Order

__all__ = ["Member", "Schedule", "backward", "require_one_stage_a_rank", "require_split"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A published schedule.

    Parameters
    ----------
    name
        What `baseline` calls it.
    family
        Schedules of one family come from one idea.
    placement
        Name of the placement it is made for, ``"any"`` if it works on every one.
    source
        The paper that states it.
    needs
        Its conditions, for people.
    """

    name: str
    family: str
    placement: str
    source: str
    needs: str


@dataclass(frozen=True, slots=True)
class Member:
    """A schedule of the catalog with the function that makes its order."""

    schedule: Schedule
    build: Callable[[Problem], Order]


def backward(problem: Problem, stage: int, microbatch: int) -> tuple[Op, ...]:
    """Both gradients together: fused where that is allowed, else B and W one after the other."""
    if "fused" in problem.allow:
        return (Op(Kind.BACKWARD, stage, microbatch),)
    return (Op(Kind.BACKWARD_INPUT, stage, microbatch), Op(Kind.BACKWARD_WEIGHT, stage, microbatch))


def require_one_stage_a_rank(problem: Problem, name: str) -> tuple[int, ...]:
    """Return the rank of every stage if each rank holds exactly one, for all microbatches.

    Raises
    ------
    ScheduleConditionError
        If a rank holds several stages, or microbatches take different routes.
    """
    placement = problem.placement
    route = placement.routes[0]
    for rank in range(placement.ranks):
        held = placement.stages_of(rank)
        if len(held) > 1:
            raise ScheduleConditionError(
                f"{name} is for one stage a rank, but rank {rank} holds stages {', '.join(map(str, held))} "
                f"(placement {placement.name}); use one stage a rank, or a schedule for any placement: naive, gpipe"
            )
    if any(other != route for other in placement.routes):
        raise ScheduleConditionError(
            f"{name} sends all microbatches one way, but the placement has {len(placement.routes)} routes; "
            "use a placement with one, or a schedule for any placement: naive, gpipe"
        )
    return route


def require_split(problem: Problem, name: str) -> None:
    """Check that B and W may stand apart.

    Raises
    ------
    ScheduleConditionError
        If the problem allows the fused backward only.
    """
    if "split" not in problem.allow:
        raise ScheduleConditionError(
            f"{name} lives on B and W being apart, but the problem allows fused backwards only; "
            "allow 'split', or use a schedule with whole backwards: gpipe, 1f1b, naive"
        )
