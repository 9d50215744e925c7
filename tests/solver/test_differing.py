"""Microbatches that differ: the solver may choose their sequence."""

from __future__ import annotations

import random

import pytest

from tests.oracle import every_order
from tests.solver.instances import unequal
from zbsolve.bounds import lower_bounds
from zbsolve.catalog import baseline
from zbsolve.check import violations
from zbsolve.metrics import metrics
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Link, Profile, StageCost
from zbsolve.simulate import simulate
from zbsolve.solver import solve
from zbsolve.solver.permuted import renumbered, sequences, with_own_numbers

FACTORS = ("0.5", 1, "1.5", 2, 3)


def tiny(rng: random.Random, ranks: int, microbatches: int) -> Problem:
    stages = tuple(
        StageCost(
            forward_ns=rng.randint(1, 6),
            backward_input_ns=rng.randint(1, 6),
            backward_weight_ns=rng.randint(0, 6),
            activation_bytes=rng.randint(1, 4),
            backward_weight_bytes=rng.randint(0, 3),
        )
        for _ in range(ranks)
    )
    return Problem(
        profile=Profile(stages=stages, link=Link(latency_ns=rng.randint(0, 3))),
        placement=Placement.linear(ranks),
        microbatches=microbatches,
        memory_limit=rng.choice((None, "1x", "1.5x")),
        objective=rng.choice(("period", "makespan")),
        allow=frozenset({rng.choice(("split", "fused"))}),
        rank_factors=tuple(rng.choice(FACTORS) for _ in range(ranks)),
        microbatch_factors=tuple(rng.choice(FACTORS) for _ in range(microbatches)),
    )


def test_the_optimum_over_all_sequences_is_found_and_no_bound_is_above_it():
    rng = random.Random(3)
    found = 0
    for _ in range(14):
        problem = tiny(rng, 2, 2)
        best = every_order(problem)
        if best is None:
            continue
        found += 1
        assert max(bound.value_ns for bound in lower_bounds(problem)) <= best
        solution = solve(problem, work_limit=20_000, workers=1)
        assert violations(problem, solution.timetable, claimed_ns=solution.value_ns) == ()
        assert solution.lower_bound_ns <= best
        assert solution.value_ns == best
    assert found >= 10


def test_every_sequence_is_one_of_all_microbatches_and_none_comes_twice():
    assert list(sequences(unequal())) == []
    problem = unequal(microbatch_factors=(3, 1, 2, 1, 5, 1))
    found = [sequence for _, sequence in sequences(problem)]
    assert len(set(found)) == len(found) >= 6
    assert all(sorted(sequence) == list(range(6)) for sequence in found)
    assert (1, 3, 5, 2, 0, 4) in found


def test_a_schedule_in_another_sequence_is_an_order_of_the_problem():
    problem = unequal(microbatch_factors=(3, 1, 2, 1, 5, 1), memory_limit=None)
    for _, sequence in sequences(problem):
        other = renumbered(problem, sequence)
        order = with_own_numbers(baseline("1f1b", other), sequence)
        assert violations(problem, order) == ()
        assert simulate(problem, order).period_ns == simulate(other, baseline("1f1b", other)).period_ns


@pytest.mark.parametrize("placement", [Placement.linear(3), Placement.bidirectional(3)])
def test_never_worse_than_a_published_schedule_in_any_of_the_sequences(placement):
    problem = unequal(microbatch_factors=(4, 1, 2, 1, 5, 1), placement=placement, memory_limit="1.5x")
    solution = solve(problem, work_limit=30_000, workers=1)
    assert violations(problem, solution.timetable) == ()
    for name in ("1f1b", "gpipe") if placement.name == "linear" else ("gpipe", "naive"):
        for _, sequence in sequences(problem):
            order = with_own_numbers(baseline(name, renumbered(problem, sequence)), sequence)
            reached = metrics(simulate(problem, order))
            if all(peak <= limit for peak, limit in zip(reached.peak_bytes, problem.limit_bytes, strict=True)):
                assert solution.value_ns <= reached.period_ns
