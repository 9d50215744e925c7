import dataclasses
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracle import optimum, tiny_problem
from tests.solver.instances import instance, one_chunk, unequal
from tests.strategies import placements, problems
from zbsolve.bounds import lower_bound, smallest_limits
from zbsolve.catalog import baseline, schedules
from zbsolve.check import violations
from zbsolve.errors import Infeasible, InvalidInput, NothingFound, OrderError, ScheduleConditionError
from zbsolve.metrics import metrics
from zbsolve.ops import Kind, Op
from zbsolve.simulate import simulate
from zbsolve.solver import solve
from zbsolve.timetable import Order


def quick(problem, **given):
    """A solve of a fraction of a second that does not look at the clock."""
    return solve(problem, **{"work_limit": 600, "workers": 1, "time_limit_s": 60, **given})


def test_optimal_on_tiny_problems_of_every_kind():
    solved = 0
    for seed in range(60):
        rng = random.Random(seed)
        problem = tiny_problem(rng, rng.choice([None, 0, 1, 2, 4]), sizes=((1, 3), (2, 2), (2, 3), (3, 2)))
        exact = optimum(problem)
        if exact is None:
            with pytest.raises(Infeasible):
                quick(problem)
            continue
        solution = quick(problem, work_limit=1500)
        assert not violations(problem, solution.timetable)
        assert solution.lower_bound_ns <= exact[0] <= solution.value_ns
        assert (solution.status == "optimal") == (solution.value_ns == solution.lower_bound_ns)
        solved += solution.value_ns == exact[0]
    assert solved >= 57, "the search misses the optimum of tiny problems more often than it used to"


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_every_answer_passes_the_judge_and_respects_the_bound(data):
    problem = data.draw(problems(placement=one_chunk(), limits=True))
    try:
        solution = quick(problem, work_limit=300, seed=data.draw(st.integers(0, 9)))
    except Infeasible:
        pairs = zip(problem.limit_bytes, smallest_limits(problem), strict=True)
        assert any(limit is not None and limit < least for limit, least in pairs)
        return
    assert not violations(problem, solution.timetable)
    assert solution.value_ns >= lower_bound(problem).value_ns
    figures = metrics(solution.timetable)
    assert figures == solution.metrics
    assert solution.value_ns == (figures.period_ns if problem.objective == "period" else figures.makespan_ns)
    assert solution.digest == problem.digest


@given(st.data())
@settings(max_examples=15, deadline=None)
def test_other_placements_are_solved_too(data):
    problem = data.draw(problems(placement=placements(), variants=True))
    solution = quick(problem, work_limit=100)
    assert not violations(problem, solution.timetable)
    assert solution.value_ns >= solution.lower_bound_ns


@pytest.mark.parametrize("objective", ["period", "makespan"])
@pytest.mark.parametrize("memory", ["0.75x", "1x", "2x"])
def test_never_worse_than_a_published_schedule_that_fits(objective, memory):
    problem = unequal(memory_limit=memory, objective=objective)
    solution = quick(problem, work_limit=60)
    for schedule in schedules():
        try:
            timetable = simulate(problem, baseline(schedule.name, problem))
        except ScheduleConditionError:
            continue
        if not violations(problem, timetable):
            value = timetable.period_ns if objective == "period" else timetable.makespan_ns
            assert solution.value_ns <= value, schedule.name


def test_the_paper_s_example_is_proven_at_once():
    solution = solve(instance("paper-1.5B-p8-m24", "1x"))
    assert solution.status == "optimal"
    assert solution.value_ns == 1310405000
    assert round(solution.metrics.bubble, 4) == 0.1585


@pytest.mark.parametrize(
    ("name", "memory", "reached"),
    [
        ("paper-1.5B-p8-m24", "2x", 1152599000),
        ("profiled-8stage", 7440, 3623744000),
        ("profiled-8stage", 6200, 3798692000),
        ("profiled-8stage", 4960, 4253102000),
    ],
)
def test_known_values_are_reached(name, memory, reached):
    assert quick(instance(name, memory), work_limit=100).value_ns <= reached


def test_same_seed_and_work_give_the_same_order_whatever_the_time():
    problem = unequal(microbatches=8, memory_limit="0.8x")
    first = quick(problem, work_limit=3000, time_limit_s=50)
    again = quick(problem, work_limit=3000, time_limit_s=500)
    assert first.timetable == again.timetable
    assert (first.method, first.value_ns, first.bound) == (again.method, again.value_ns, again.bound)


def test_worker_processes_find_the_same_each_time():
    problem = unequal(microbatches=10, memory_limit="0.7x")
    first, again = (quick(problem, work_limit=40_000, workers=2) for _ in range(2))
    assert first.timetable == again.timetable
    assert (first.method, first.bound, first.lower_bound_ns) == (again.method, again.bound, again.lower_bound_ns)


def test_a_start_of_neighbouring_costs_helps():
    problem = unequal(microbatches=8, memory_limit="0.8x")
    good = quick(problem, work_limit=20_000)
    slower = unequal(microbatches=8, memory_limit="0.8x", profile=unequal(scale=3).profile)
    assert quick(slower, work_limit=1, start=good.timetable).value_ns <= 3 * good.value_ns


@pytest.mark.parametrize("seed", range(4))
def test_random_small_problems_are_solved_soundly(seed):
    for number in range(30):
        rng = random.Random(1000 * seed + number)
        sizes = ((1, 1), (1, 8), (2, 1), (2, 5), (3, 3), (3, 8), (4, 1), (4, 6))
        problem = tiny_problem(rng, rng.choice([None, -1, 0, 1, 3, 8]), sizes=sizes)
        try:
            solution = quick(problem, work_limit=rng.choice([1, 30, 700]), seed=number)
        except Infeasible:
            pairs = zip(problem.limit_bytes, smallest_limits(problem), strict=True)
            assert any(limit is not None and limit < least for limit, least in pairs)
            continue
        assert not violations(problem, solution.timetable)
        assert solution.lower_bound_ns <= solution.value_ns


def test_more_memory_is_never_worse_where_both_are_proven():
    values = []
    for memory in ("0.5x", "0.75x", "1x", "1.5x", "2x", None):
        solution = quick(instance("unit-p4-m12", memory, microbatches=4), work_limit=4000)
        values.append((solution.value_ns, solution.lower_bound_ns))
    for (_, bound), (value, _) in zip(values[1:], values, strict=False):
        assert bound <= value
    proven = [value for value, bound in values if value == bound]
    assert len(proven) >= 3
    assert proven == sorted(proven, reverse=True)


def test_costs_in_another_unit_scale_the_value():
    one, thousand = (quick(unequal(scale=scale), work_limit=800) for scale in (1, 1000))
    assert thousand.lower_bound_ns == 1000 * one.lower_bound_ns
    assert abs(thousand.value_ns - 1000 * one.value_ns) < 1000


def test_infeasible_names_the_rank_and_the_smallest_limits():
    problem = instance("profiled-8stage", 1000)
    with pytest.raises(Infeasible, match="rank 1") as caught:
        solve(problem)
    assert caught.value.smallest_limit_bytes == smallest_limits(problem)
    enough = dataclasses.replace(problem, memory_limit=caught.value.smallest_limit_bytes)
    assert not violations(enough, quick(enough, work_limit=20).timetable)


def test_an_interrupt_keeps_the_best_so_far():
    heard = []

    def interrupt(progress):
        heard.append(progress)
        raise KeyboardInterrupt

    solution = solve(instance("paper-1.5B-p8-m24", "0.75x"), on_progress=interrupt)
    assert len(heard) == 1
    assert solution.value_ns == heard[0].value_ns
    assert solution.status == "feasible"


def test_progress_only_improves_and_ends_at_the_answer():
    heard = []
    solution = quick(unequal(), on_progress=heard.append)
    values = [p.value_ns for p in heard]
    assert values == sorted(values, reverse=True)
    assert [p.lower_bound_ns for p in heard] == sorted(p.lower_bound_ns for p in heard)
    assert values[-1] == solution.value_ns
    assert heard[-1].gap == pytest.approx(solution.gap)


def test_a_gap_ends_the_search():
    problem = instance("profiled-8stage", 6200)
    solution = solve(problem, gap=0.05, time_limit_s=100)
    assert solution.gap <= 0.05
    assert solution.method.startswith("list scheduler")


def test_a_start_is_never_made_worse():
    problem = instance("paper-1.5B-p4-m12", "0.9x")
    good = quick(problem, work_limit=20_000)
    for start in (good.timetable, good.timetable.order):
        assert quick(problem, work_limit=1, start=start).value_ns <= good.value_ns
    other_costs = instance("unit-p4-m12", "0.9x")
    assert not violations(other_costs, quick(other_costs, work_limit=5, start=good.timetable).timetable)
    with pytest.raises(OrderError):
        quick(unequal(), start=good.timetable)


@pytest.mark.parametrize("microbatches", [6, 9])
def test_a_start_that_can_never_finish_is_refused(microbatches):
    rows = [list(row) for row in baseline("1f1b", unequal()).rows]
    rows[0].sort(key=lambda op: (op.microbatch, op.kind is not Kind.FORWARD))
    rows[1].insert(0, rows[1].pop(next(at for at, op in enumerate(rows[1]) if op == Op(Kind.FORWARD, 1, 1))))
    stuck = Order(tuple(map(tuple, rows)))
    with pytest.raises(OrderError, match=r"given start cannot be used: .* can never finish"):
        quick(unequal(microbatches=microbatches), work_limit=1, start=stuck)


def test_a_start_that_does_not_fit_is_left_out():
    problem = instance("paper-1.5B-p4-m12", "0.5x")
    start = baseline("gpipe", problem)
    assert not violations(problem, quick(problem, work_limit=20, start=start).timetable)


@pytest.mark.parametrize(
    "wrong",
    [
        {"time_limit_s": 0},
        {"time_limit_s": float("nan")},
        {"work_limit": 0},
        {"gap": -0.1},
        {"gap": float("inf")},
        {"workers": 0},
    ],
)
def test_senseless_arguments_are_refused(wrong):
    with pytest.raises(InvalidInput):
        solve(unequal(), **wrong)


def test_nothing_found_says_what_to_do():
    assert NothingFound.exit_code == 4


def test_importing_the_solver_loads_nothing_heavy():
    heavy = ("ortools", "torch", "matplotlib", "numba", "networkx")
    code = f"import sys, zbsolve.solver; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_the_smallest_limits_are_enough_on_any_placement(data):
    problem = data.draw(problems(placement=placements(), most_microbatches=4))
    allow = data.draw(st.sampled_from([{"split"}, {"fused"}, {"split", "fused"}]))
    problem = dataclasses.replace(problem, allow=frozenset(allow))
    problem = dataclasses.replace(problem, memory_limit=smallest_limits(problem))
    assert not violations(problem, quick(problem, work_limit=1).timetable)
