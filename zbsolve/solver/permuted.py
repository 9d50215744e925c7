"""Microbatches that differ may run in any order: which ones a published schedule is tried in.

A published schedule runs microbatches in the order of their numbers. Numbered anew it runs them in
another: the schedule is made for the problem with its microbatches numbered by a sequence, and then
each operation gets the number that its microbatch had. Sequences in slices change places as a whole.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from fractions import Fraction

from zbsolve.ops import Op
from zbsolve.problem import Problem
from zbsolve.timetable import Order

__all__ = ["renumbered", "sequences", "with_own_numbers"]

_RANDOM = 4
"""Sequences of chance beside those by size."""


def sequences(problem: Problem) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Sequences of microbatches worth trying besides that of their numbers, each once and with its name.

    Small ones first fill the pipeline fast, large ones first leave small ones for the drain; the
    mountain does both, the valley neither.
    """
    factors, slices = problem.microbatch_factors, problem.slices
    if factors is None:
        return
    runs = [factors[first : first + slices] for first in range(0, problem.microbatches, slices)]
    if len(set(runs)) == 1:  # slices that differ, in sequences that are alike
        return
    size = [sum(map(Fraction, run), Fraction()) for run in runs]
    rising = sorted(range(len(runs)), key=lambda j: (size[j], j))
    falling = sorted(range(len(runs)), key=lambda j: (-size[j], j))
    found = [
        ("small first", rising),
        ("large first", falling),
        ("large in the middle", rising[::2] + rising[1::2][::-1]),
        ("small in the middle", falling[::2] + falling[1::2][::-1]),
    ]
    rng = random.Random(0)
    found += [("a random sequence", rng.sample(rising, len(rising))) for _ in range(_RANDOM)]
    seen = {tuple(range(len(runs)))}
    for name, sequence in found:
        if tuple(sequence) not in seen:
            seen.add(tuple(sequence))
            yield name, tuple(j * slices + i for j in sequence for i in range(slices))


def renumbered(problem: Problem, sequence: tuple[int, ...]) -> Problem:
    """The problem whose microbatch k is microbatch ``sequence[k]`` of this one."""
    assert problem.route_of is not None
    assert problem.microbatch_factors is not None
    return dataclasses.replace(
        problem,
        route_of=tuple(problem.route_of[j] for j in sequence),
        microbatch_factors=tuple(problem.microbatch_factors[j] for j in sequence),
    )


def with_own_numbers(order: Order, sequence: tuple[int, ...]) -> Order:
    """An order of the renumbered problem as one of the problem itself."""
    return Order(
        tuple(
            tuple(op if op.microbatch is None else Op(op.kind, op.stage, sequence[op.microbatch]) for op in row)
            for row in order.rows
        )
    )
