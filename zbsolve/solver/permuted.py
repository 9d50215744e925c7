"""Microbatches that differ may run in any order: which ones are tried.

Microbatches differ in size or in their route. A published schedule runs them in the order of their
numbers, and a list schedule, where memory is tight, sees the oldest through first. Numbered anew they run in
another order: the schedule is made for the problem with its microbatches numbered by a sequence, and then
each operation gets the number that its microbatch had. Sequences in slices change places as a whole.
"""

from __future__ import annotations

import dataclasses
import random
from collections import deque
from collections.abc import Iterator
from fractions import Fraction
from itertools import zip_longest

from zbsolve.ops import Op
from zbsolve.problem import Problem
from zbsolve.timetable import Order

__all__ = ["renumbered", "sequences", "with_own_numbers"]

_RANDOM = 4
"""Sequences of chance beside those with a name."""

_Run = tuple[int, tuple[Fraction, ...]]
"""Of one sequence, or whole microbatch: its route, and the sizes of its slices."""


def sequences(problem: Problem) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Sequences of microbatches worth trying besides that of their numbers, each once and with its name.

    Small ones first fill the pipeline fast, large ones first leave small ones for the drain; the
    mountain does both, the valley neither. Where there are several routes, one after the other lets memory hold
    what follows each other closely; in turn they share the ranks evenly, and which is first matters.
    Those that are alike stay in the order of their numbers.
    """
    runs = _runs(problem)
    if len(set(runs)) <= 1:
        return
    slices, own = problem.slices, list(range(len(runs)))
    seen = {tuple(own)}
    for name, sequence in [*_by_size(runs), *_by_route(runs), *_by_chance(runs)]:
        kept = tuple(_alike_in_turn(runs, sequence))
        if kept not in seen:
            seen.add(kept)
            yield name, tuple(j * slices + i for j in kept for i in range(slices))


def _runs(problem: Problem) -> list[_Run]:
    assert problem.route_of is not None
    factors = problem.microbatch_factors or (1,) * problem.microbatches
    return [
        (problem.route_of[first], tuple(Fraction(factor) for factor in factors[first : first + problem.slices]))
        for first in range(0, problem.microbatches, problem.slices)
    ]


def _by_size(runs: list[_Run]) -> list[tuple[str, list[int]]]:
    size = [sum(sizes, Fraction()) for _, sizes in runs]
    if len({sizes for _, sizes in runs}) == 1:
        return []
    rising = sorted(range(len(runs)), key=lambda j: (size[j], j))
    falling = sorted(range(len(runs)), key=lambda j: (-size[j], j))
    return [
        ("small first", rising),
        ("large first", falling),
        ("large in the middle", rising[::2] + rising[1::2][::-1]),
        ("small in the middle", falling[::2] + falling[1::2][::-1]),
    ]


def _by_route(runs: list[_Run]) -> list[tuple[str, list[int]]]:
    routes = sorted({route for route, _ in runs})
    if len(routes) == 1:
        return []
    of = {route: [j for j, run in enumerate(runs) if run[0] == route] for route in routes}

    def in_turn(order: list[int]) -> list[int]:
        laps = zip_longest(*(of[route] for route in order))
        return [j for lap in laps for j in lap if j is not None]

    back = routes[::-1]
    return [
        ("route after route", [j for route in routes for j in of[route]]),
        ("route after route, the last first", [j for route in back for j in of[route]]),
        ("routes in turn", in_turn(routes)),
        ("routes in turn, the last first", in_turn(back)),
    ]


def _by_chance(runs: list[_Run]) -> list[tuple[str, list[int]]]:
    rng = random.Random(0)
    rising = sorted(range(len(runs)), key=lambda j: (sum(runs[j][1], Fraction()), j))
    return [("a random sequence", rng.sample(rising, len(rising))) for _ in range(_RANDOM)]


def _alike_in_turn(runs: list[_Run], sequence: list[int]) -> list[int]:
    """The same sequence with those that are alike in the order of their numbers, in the places that they had."""
    waiting: dict[_Run, deque[int]] = {}
    for j, run in enumerate(runs):
        waiting.setdefault(run, deque()).append(j)
    return [waiting[runs[j]].popleft() for j in sequence]


def renumbered(problem: Problem, sequence: tuple[int, ...]) -> Problem:
    """The problem whose microbatch k is microbatch ``sequence[k]`` of this one."""
    assert problem.route_of is not None
    factors = problem.microbatch_factors
    return dataclasses.replace(
        problem,
        route_of=tuple(problem.route_of[j] for j in sequence),
        microbatch_factors=None if factors is None else tuple(factors[j] for j in sequence),
    )


def with_own_numbers(order: Order, sequence: tuple[int, ...]) -> Order:
    """An order of the renumbered problem as one of the problem itself."""
    return Order(
        tuple(
            tuple(op if op.microbatch is None else Op(op.kind, op.stage, sequence[op.microbatch]) for op in row)
            for row in order.rows
        )
    )
