"""Placements with several chunks a rank or two routes, beside the catalog: a part of the benchmark with little work."""

from __future__ import annotations

import pytest

from benchmarks.placements import INSTANCES, MEMORY, V_SCHEDULES, Instance, fitting, problem_of, row_of
from zbsolve.bounds import lower_bound
from zbsolve.check import violations
from zbsolve.solver import solve

SMALL = [
    pytest.param(each, memory, id=f"{each.name} {memory}")
    for each in INSTANCES
    for memory in (MEMORY if each.shape == "v" else ("0.75x",))
    if each.ranks * each.microbatches <= 32
]


@pytest.mark.parametrize(("instance", "memory"), SMALL)
def test_no_schedule_of_the_catalog_that_fits_is_better(instance, memory):
    row = row_of(instance, memory, time_limit_s=60.0, work_limit=600, seed=0)
    assert row.ratio is None or row.ratio <= 1
    assert row.lower_bound_ns <= row.period_ns
    assert all(row.period_ns <= other for other in row.others_ns.values())


@pytest.mark.parametrize("costs", ["unit", "1.5B"])
@pytest.mark.parametrize("ranks", [4, 8])
def test_a_timetable_is_found_where_no_schedule_for_a_v_fits(costs, ranks):
    instance = Instance(costs=costs, shape="v", ranks=ranks, chunks=2, microbatches=ranks)
    problem = problem_of(instance, "0.4x")
    assert not {"v-block", *V_SCHEDULES} & set(fitting(problem))
    solution = solve(problem, time_limit_s=60.0, work_limit=300, workers=1)
    assert not violations(problem, solution.timetable)
    assert solution.lower_bound_ns >= lower_bound(problem).value_ns > 0


def test_the_instances_are_those_that_their_names_say():
    names = [each.name for each in INSTANCES]
    assert len(set(names)) == len(names)
    for each in INSTANCES:
        problem = problem_of(each, "1x")
        assert problem.placement.ranks == each.ranks
        assert problem.microbatches == each.microbatches
        # a rank's work is the same on every placement
        stages = problem.profile.stages
        one = problem_of(Instance(costs=each.costs, shape="v", ranks=each.ranks, chunks=2, microbatches=1), None)
        held = sum(stages[s].forward_ns for s in problem.placement.stages_of(0)) // len(problem.placement.routes)
        assert held == sum(one.profile.stages[s].forward_ns for s in one.placement.stages_of(0))
