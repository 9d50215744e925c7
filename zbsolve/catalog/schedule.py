"""What a published schedule is, and what the members share in making rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.timetable import Order

__all__ = ["Member", "Schedule", "backward", "ordered"]


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


def ordered(problem: Problem, rows: Mapping[int, Iterable[Op]]) -> Order:
    """The order with these rows, given by rank."""
    return Order(tuple(tuple(rows[rank]) for rank in range(problem.placement.ranks)))
