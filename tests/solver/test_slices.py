"""Sequences in slices: the solver finds the best order that slices allow, and proves it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests import sliced
from tests.catalog.helpers import figures, uniform
from zbsolve.bounds import smallest_limits
from zbsolve.catalog import baseline
from zbsolve.check import violations
from zbsolve.errors import OrderError
from zbsolve.placement import Placement
from zbsolve.solver import solve
from zbsolve.solver.budget import Budget
from zbsolve.solver.case import Case
from zbsolve.solver.compiled import plain
from zbsolve.solver.network import order_of
from zbsolve.solver.permuted import renumbered, sequences, with_own_numbers
from zbsolve.solver.portfolio import plain_drafts
from zbsolve.solver.smaller import carried_over, worth_shrinking


def sliced_problem(ranks=3, count=3, slices=3, **changes):
    return uniform(Placement.linear(ranks), count * slices, 30, 20, 10, slices=slices, **changes)


def test_the_best_of_all_orders_is_found_and_no_bound_is_above_it():
    rng = random.Random(11)
    optimal = 0
    for _ in range(10):
        problem = sliced.tiny(rng, equal=rng.random() < 0.3)
        least = smallest_limits(problem)
        extra = rng.choice((None, 0, 2, 5))
        limits = (None,) * len(least) if extra is None else tuple(bytes_ + extra for bytes_ in least)
        best = sliced.optimum(problem, limits)
        problem = replace(problem, memory_limit=limits)
        solution = solve(problem, work_limit=4_000, workers=1)
        assert violations(problem, solution.timetable, claimed_ns=solution.value_ns) == ()
        assert solution.lower_bound_ns <= best == solution.value_ns
        optimal += solution.status == "optimal"
    assert optimal >= 6


def test_never_worse_than_the_published_order_and_better_where_there_is_memory():
    problem = sliced_problem(memory_limit="1.7x")
    published = figures("seq-1f1b", problem)
    assert max(published.peak_bytes) <= problem.limit_bytes[0]
    solution = solve(problem, work_limit=8_000, workers=1)
    assert solution.value_ns < published.period_ns
    assert violations(problem, solution.timetable, claimed_ns=solution.value_ns) == ()


@pytest.mark.parametrize("placement", [Placement.v(2), Placement.looped(2, 2), Placement.bidirectional(2)])
@pytest.mark.parametrize("times", ["1.5x", "3x"])
def test_list_schedules_never_stand_still_where_a_sequence_fits(placement, times):
    problem = uniform(placement, 8, 30, 20, 10, slices=2, memory_limit=times, microbatch_factors=(1, "1.5") * 4)
    case = Case(problem, plain())
    found = list(plain_drafts(case, Budget(float("inf"), None)))
    assert len(found) >= 12
    for each in found:
        order = order_of(problem, each.sequence.tolist(), each.fused.tolist())
        assert violations(problem, order) == ()


def test_several_chunks_and_slices():
    problem = uniform(Placement.v(2), 4, 30, 20, 10, slices=2, memory_limit="2x", objective="makespan")
    solution = solve(problem, work_limit=3_000, workers=1)
    assert violations(problem, solution.timetable, claimed_ns=solution.value_ns) == ()
    assert solution.value_ns >= solution.lower_bound_ns


def test_sequences_change_places_as_a_whole_and_only_if_they_differ():
    alike = sliced_problem(microbatch_factors=(1, 2, 3) * 3)
    assert list(sequences(alike)) == []
    unlike = sliced_problem(microbatch_factors=(1, 2, 3, 3, 3, 3, 1, 1, 1))
    found = dict(sequences(unlike))
    assert found["small first"] == (6, 7, 8, 0, 1, 2, 3, 4, 5)
    for sequence in found.values():
        order = with_own_numbers(baseline("seq-1f1b", renumbered(unlike, sequence)), sequence)
        assert violations(unlike, order) == ()


def test_nothing_is_stretched_over_slices():
    problem = uniform(Placement.linear(2), 64, slices=4)
    assert not worth_shrinking(Case(problem, plain()))
    few = replace(problem, microbatches=8, route_of=None)
    assert carried_over(problem, baseline("seq-1f1b", few)) is None
    # left out, not refused
    assert solve(problem, work_limit=200, workers=1, start=baseline("seq-1f1b", few)).value_ns > 0


def test_a_start_that_runs_slices_out_of_turn_is_refused():
    problem = sliced_problem()
    wrong = baseline("1f1b", replace(problem, slices=1))
    with pytest.raises(OrderError, match="the given start cannot be used"):
        solve(problem, work_limit=200, workers=1, start=wrong)


def test_recomputing_slices():
    stages = tuple(replace(cost, checkpoint_bytes=1) for cost in sliced_problem().profile.stages)
    problem = sliced_problem(allow=frozenset({"split", "fused", "recompute"}))
    problem = replace(problem, profile=replace(problem.profile, stages=stages))
    problem = replace(problem, memory_limit=tuple(bytes_ + 1 for bytes_ in smallest_limits(problem)))
    solution = solve(problem, work_limit=2_000, workers=1)
    assert violations(problem, solution.timetable, claimed_ns=solution.value_ns) == ()
