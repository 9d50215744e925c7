"""What a published schedule is, and what the members share in making rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.timetable import Order

__all__ = ["Member", "Schedule", "backward", "backward_turns", "ordered"]


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
    """A schedule of the catalog with the function that makes its order.

    `slices`: its rule holds for slices of sequences as well; the others turn back in an order that slices cannot.
    """

    schedule: Schedule
    build: Callable[[Problem], Order]
    slices: bool = False


def backward(problem: Problem, stage: int, microbatch: int) -> tuple[Op, ...]:
    """Both gradients together: fused where that is allowed, else B and W one after the other."""
    if "fused" in problem.allow:
        return (Op(Kind.BACKWARD, stage, microbatch),)
    return (Op(Kind.BACKWARD_INPUT, stage, microbatch), Op(Kind.BACKWARD_WEIGHT, stage, microbatch))


def backward_turns(problem: Problem) -> Iterator[int]:
    """Microbatches in the order of their backwards: sequences as they are numbered, the slices of each from the last.

    Without slices that is the order of their numbers.
    """
    for first in range(0, problem.microbatches, problem.slices):
        yield from range(first + problem.slices - 1, first - 1, -1)


def ordered(problem: Problem, rows: Mapping[int, Iterable[Op]]) -> Order:
    """The order with these rows, given by rank."""
    return Order(tuple(tuple(rows[rank]) for rank in range(problem.placement.ranks)))
