"""Choosing the most robust of the timetables that a search met."""

from __future__ import annotations

import pytest

from zbsolve.analysis.jitter import under_jitter
from zbsolve.analysis.robust import _spread_out, solve_robust
from zbsolve.check import violations
from zbsolve.errors import InvalidInput
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Profile, StageCost
from zbsolve.solver import solve


def problem(**changes) -> Problem:
    stages = tuple(
        StageCost(
            forward_ns=1000 + 90 * (s % 3),
            backward_input_ns=1100,
            backward_weight_ns=900 + 40 * s,
            activation_bytes=2,
            backward_weight_bytes=1,
        )
        for s in range(4)
    )
    asked = {"profile": Profile(stages=stages), "placement": Placement.linear(4), "microbatches": 8}
    return Problem(**{**asked, "memory_limit": "1x", **changes})


def test_the_choice_is_valid_within_reach_and_no_less_robust_than_the_fastest():
    asked = problem()
    found = solve_robust(asked, 0.1, work_limit=2000, workers=1, trials=100)
    assert violations(asked, found.solution.timetable, claimed_ns=found.solution.value_ns) == ()
    assert found.candidates > 1
    assert found.jittered.p95_ns <= found.fastest_jittered.p95_ns
    assert found.fastest.value_ns <= found.solution.value_ns <= 1.01 * found.fastest.value_ns
    assert found.solution.gap == pytest.approx(found.solution.value_ns / found.solution.lower_bound_ns - 1)
    assert found.jittered.values_ns == under_jitter(found.solution.timetable, 0.1, trials=100).values_ns


def test_the_same_seed_chooses_the_same():
    first, second = (solve_robust(problem(), work_limit=2000, workers=1, trials=64, seed=3) for _ in range(2))
    assert first.solution.timetable == second.solution.timetable
    assert first.jittered == second.jittered


def test_without_jitter_the_fastest_stays():
    found = solve_robust(problem(), 0.0, within=0.05, work_limit=2000, workers=1, trials=3)
    assert found.solution.value_ns == found.fastest.value_ns


def test_the_fastest_is_no_worse_than_what_solve_returns():
    asked = problem(objective="makespan")
    found = solve_robust(asked, work_limit=2000, workers=1, trials=10)
    assert found.fastest.value_ns <= solve(asked, work_limit=2000, workers=1).value_ns
    assert found.jittered.iterations == 1


def test_candidates_are_spread_evenly_where_there_are_too_many():
    assert _spread_out(5, 100) == [0, 1, 2, 3, 4]
    chosen = _spread_out(300, 600)
    assert len(chosen) == 100
    assert (chosen[0], chosen[-1]) == (0, 299)
    assert len(_spread_out(300, 10**6)) == 8


def test_what_makes_no_sense_is_refused_before_the_search():
    with pytest.raises(InvalidInput, match="worse than the best"):
        solve_robust(problem(), within=-0.1)
    with pytest.raises(InvalidInput, match="no measured spread"):
        solve_robust(problem(), None)


def test_an_interrupt_while_choosing_keeps_the_fastest():
    def interrupt(done: int, of: int) -> None:
        raise KeyboardInterrupt

    found = solve_robust(problem(), work_limit=2000, workers=1, trials=20, on_choice=interrupt)
    assert found.solution is found.fastest
    assert found.jittered is found.fastest_jittered
