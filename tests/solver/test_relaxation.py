"""Bounds by relaxation against exact optima, and their certificates."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.oracle import optimum, tiny_problem
from tests.solver.instances import instance, unequal
from zbsolve.bounds import lower_bound, lower_bounds, smallest_limits
from zbsolve.placement import Placement
from zbsolve.profile import Profile
from zbsolve.problem import Problem
from zbsolve.solution import Bound
from zbsolve.solver.certificate import verify_bound
from zbsolve.solver.line import exact_unit, good_unit, read_line
from zbsolve.solver.line_model import Limits, Question, ask
from zbsolve.solver.relaxation import improve_bound, parse_name
from zbsolve.solver.windows import Windows, climb

SIZES = ((1, 1), (1, 3), (2, 1), (2, 2), (2, 2), (3, 1), (3, 2))
SOON = Limits(seconds=20.0, deterministic=0.5)


def tight(rng: random.Random, sizes) -> Problem:
    """A tiny problem whose limits leave little or nothing above the least."""
    problem = tiny_problem(rng, None, sizes=sizes)
    if rng.random() < 0.15:
        return problem
    above = rng.choice((0, 0, 2, 5))
    return replace(problem, memory_limit=tuple(x + rng.randint(0, above) for x in smallest_limits(problem)))


def least_of(problem: Problem, unit: int, kept, value: int) -> int:
    """What the whole line proves, in ns."""
    line = read_line(problem, unit)
    question = Question(kind="whole", microbatches=problem.microbatches, kept=kept, most=4 * value // unit + 9)
    answer = ask(line, question, SOON)
    return answer.least * unit


def windows_of(problem: Problem, unit: int, value: int) -> int:
    """What windows prove, in ns."""
    line = read_line(problem, unit)
    windows = Windows(line, 4 * value // unit + 9, tuple(range(len(line.ranks))))
    for _ in climb(windows, longest=problem.microbatches, limits=lambda patience: SOON):
        pass
    return windows.best()[0] * unit


@pytest.mark.parametrize("block", range(8))
def test_never_above_the_optimum(block):
    rng = random.Random(f"relaxation {block}")
    exact = tried = 0
    for _ in range(25):
        problem = tight(rng, SIZES if block % 2 else ((2, 2), (2, 3), (3, 2)))
        if "fused" in problem.allow and "split" in problem.allow and problem.microbatches > 2:
            problem = replace(problem, allow=frozenset({"split"}))
            problem = replace(problem, memory_limit=smallest_limits(problem))
        found = optimum(problem)
        assert found is not None
        value = found[0]
        if not value:
            continue
        stages = problem.placement.stages
        unit = rng.choice((1, exact_unit(problem), 2, 3, 5))
        kept = rng.sample(range(stages), rng.randint(1, stages))
        whole = least_of(problem, unit, kept, value)
        assert whole <= value, (problem, unit, kept)
        assert windows_of(problem, unit, value) <= value, (problem, unit)
        everything = least_of(problem, 1, range(stages), value)
        assert everything <= value, problem
        tried += 1
        exact += max(everything, lower_bound(problem).value_ns) == value
    assert exact >= 0.85 * tried
