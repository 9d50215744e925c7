"""Tests of what is left out of an answer one by one, and of the walk among single copies and recomputations."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.oracle import objective_of
from tests.strategies import problems, random_order
from zbsolve.check import violations
from zbsolve.errors import Infeasible, NothingFound
from zbsolve.metrics import metrics
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import HostLink, Profile, StageCost
from zbsolve.simulate import simulate
from zbsolve.solver import solve
from zbsolve.solver.away import movable, moved
from zbsolve.solver.budget import Budget
from zbsolve.solver.roaming import roam
from zbsolve.solver.sparing import spared, value_of_fitting, without
from zbsolve.timetable import Order


def in_slices(microbatches: int, slices: int, limit: int) -> Problem:
    cost = StageCost(forward_ns=10, backward_input_ns=10, backward_weight_ns=10, activation_bytes=10)
    return Problem(
        profile=Profile(stages=(cost, cost), host_link=HostLink(latency_ns=20)),
        placement=Placement.linear(2),
        microbatches=microbatches,
        slices=slices,
        memory_limit=limit,
        allow=frozenset({"split", "fused", "offload"}),
    )


def better_without_one(problem: Problem, order: Order) -> list[Op]:
    """What can be left out alone, for a timetable that fits and is better."""
    value = objective_of(problem, order)
    spare = [op for row in order.rows for op in row if op.kind in (Kind.OFFLOAD, Kind.RECOMPUTE)]
    found = []
    for op in spare:
        shorter = without(order, op)
        if not violations(problem, simulate(problem, shorter)) and objective_of(problem, shorter) < value:
            found.append(op)
    return found


@settings(max_examples=8, deadline=None)
@given(problem=problems(offload=True, recompute=True, most_microbatches=3), share=st.sampled_from([0.4, 0.6, 0.8]))
def test_nothing_that_is_moved_or_computed_again_can_go_alone_for_a_better_answer(problem, share):
    assume("offload" in problem.allow or "recompute" in problem.allow)
    problem = replace(problem, memory_limit=f"{share}x")
    try:
        solution = solve(problem, work_limit=400, workers=1)
    except (Infeasible, NothingFound):
        assume(False)
    assert violations(problem, solution.timetable, claimed_ns=solution.value_ns) == ()
    assert better_without_one(problem, solution.timetable.order) == []


@settings(max_examples=15, deadline=None)
@given(problem=problems(offload=True, most_microbatches=3), seed=st.integers(0, 2**32))
def test_what_is_spared_and_where_the_walk_ends_fits_and_is_no_slower(problem, seed):
    away = moved(random_order(problem, seed), movable(problem))
    limited = replace(problem, memory_limit=metrics(simulate(problem, away)).peak_bytes)
    value = value_of_fitting(limited, away)
    assert value == objective_of(limited, away)
    less, shorter = spared(limited, away, value, trials=1_000, over=lambda: False)
    assert less == objective_of(limited, shorter) <= value
    assert violations(limited, simulate(limited, shorter)) == ()
    assert better_without_one(limited, shorter) == []
    end = roam(limited, away, value, target_ns=0, budget=Budget(math.inf, 150), seed=seed)
    assert end == roam(limited, away, value, target_ns=0, budget=Budget(math.inf, 150), seed=seed)
    assert objective_of(limited, end) <= value
    assert violations(limited, simulate(limited, end)) == ()


def test_no_trials_leave_the_order_as_it_is():
    problem = in_slices(2, 2, 1_000)
    order = moved(solve(problem, work_limit=500, workers=1).timetable.order, (0, 1))
    value = objective_of(problem, order)
    assert spared(problem, order, value, trials=0, over=lambda: False) == (value, order)
    assert spared(problem, order, value, trials=9, over=lambda: True) == (value, order)
    shorter = spared(problem, order, value, trials=1_000, over=lambda: False)[1]
    assert not any(op.kind.moves for row in shorter.rows for op in row)


def test_what_the_choices_leave_of_the_limits_finds_what_no_choice_of_stages_does():
    problem = in_slices(4, 2, 15)
    solutions = [solve(problem, work_limit=20_000, workers=1, seed=1) for _ in range(2)]
    assert solutions[0].timetable == solutions[1].timetable
    assert violations(problem, solutions[0].timetable, claimed_ns=solutions[0].value_ns) == ()
    assert solutions[0].value_ns <= 210
