import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.solver.instances import instance, one_chunk, unequal
from tests.strategies import problems
from zbsolve.bounds import lower_bound
from zbsolve.catalog import baseline
from zbsolve.check import violations
from zbsolve.simulate import simulate
from zbsolve.solver import solve
from zbsolve.solver.case import Case
from zbsolve.solver.compiled import plain
from zbsolve.solver.network import nodes_of
from zbsolve.solver.running import run as run_task
from zbsolve.solver.smaller import carried_over, shorter, small_sizes, smaller_case, turn_over
from zbsolve.solver.stretching import Plan, leave_out, loops, plans, run_loops
from zbsolve.solver.tasks import Length, Tune, Tuned
from zbsolve.solver.tuning import changed


def rows_of(problem, order):
    rows, fused = nodes_of(problem, order)
    return [np.asarray(row, dtype=np.int64) for row in rows], fused


def test_one_f_one_b_carried_over_is_one_f_one_b():
    short, long = instance("unit-p4-m12"), instance("unit-p4-m12", microbatches=31)
    assert carried_over(long, baseline("1f1b", short)) == baseline("1f1b", long)


def test_zb_h1_carried_over_is_as_good_as_zb_h1():
    short, long = instance("unit-p4-m12"), instance("unit-p4-m12", microbatches=20)
    carried = simulate(long, carried_over(long, baseline("zb-h1", short)))
    assert carried.period_ns <= simulate(long, baseline("zb-h1", long)).period_ns


def test_what_does_not_fit_is_not_carried_over():
    order = baseline("gpipe", instance("unit-p4-m12", microbatches=3))
    assert carried_over(instance("unit-p4-m12", "0.5x"), order) is None
    # the whole is a loop as well
    assert not violations(instance("unit-p4-m12"), carried_over(instance("unit-p4-m12"), order))


def test_whole_flocks_are_loops():
    """Three microbatches go all the way and come back before the next three start."""
    flock, flocks, problem = 3, 5, instance("unit-p4-m12", microbatches=15)
    one = baseline("gpipe", instance("unit-p4-m12", microbatches=flock))
    rows, fused = rows_of(instance("unit-p4-m12", microbatches=flock), one)
    wide = [
        np.concatenate([row // flock * (flock * flocks) + row % flock + k * flock for k in range(flocks)])
        for row in rows
    ]
    forms = np.repeat(np.asarray(fused)[::flock], flock * flocks)
    found = loops(wide, problem.microbatches, range(1, 7))
    assert {loop.size for loop in found} >= {3, 6}
    for loop in found:
        new, _, microbatches = run_loops(wide, forms, problem.microbatches, Plan(((loop, 2),)))
        assert microbatches == 15 + 2 * loop.size
        longer = instance("unit-p4-m12", microbatches=microbatches)
        assert Case(longer, plain()).read_rows(new, [0] * (12 * microbatches)) is not None


def test_a_loop_and_what_is_left_over_make_any_number():
    short, long = instance("unit-p4-m12"), instance("unit-p4-m12", microbatches=25)
    rows, fused = rows_of(short, baseline("zb-h1", short))
    for plan in plans(loops(rows, 12, [4, 1]), 13):
        made = run_loops(rows, fused, 12, plan)
        assert made[2] == 25
        assert Case(long, plain()).read_rows(made[0], made[1]) is not None


@pytest.mark.parametrize("missing", [1, 4])
def test_leaving_a_loop_out_and_running_it_again_gives_the_order_back(missing):
    problem = instance("unit-p4-m12", microbatches=20)
    rows, fused = rows_of(problem, baseline("1f1b", problem))
    (first, *_) = plans(loops(rows, 20, [missing]), -missing)
    fewer, forms, microbatches = run_loops(rows, fused, 20, first)
    assert microbatches == 20 - missing
    assert (fewer, forms) == nodes_of(
        instance("unit-p4-m12", microbatches=microbatches),
        baseline("1f1b", instance("unit-p4-m12", microbatches=microbatches)),
    )


def test_a_case_is_made_smaller_by_a_loop():
    case = Case(instance("unit-p4-m12", microbatches=32), plain())
    found = case.read(baseline("zb-h1", case.problem))
    few = smaller_case(case, small_sizes(case)[0])
    assert shorter(case, few, found.sequence, found.fused) is not None


def test_as_many_turn_over_as_the_tightest_rank_holds():
    for memory, most in (("0.5x", 2), ("0.75x", 3), ("1x", 4), (None, 4)):
        case = Case(instance("unit-p4-m12", memory), plain())
        assert turn_over(case) == most


def test_tuning_is_the_same_for_a_seed_and_hands_out_orders_of_the_whole():
    case = Case(unequal(microbatches=24, memory_limit="0.6x"), plain())
    heard = []
    for _ in range(2):
        finds = []
        task = Tune(microbatches=12, rules=(), target_ns=0, length=Length(steps=6_000), seed=3)
        run_task(task, case, 1e18, finds.append)
        heard.append([find for find in finds if not isinstance(find, Tuned)])
        rules = finds[-1]
        assert rules.microbatches == 12
        assert [rule.value_ns for rule in rules.rules] == sorted({rule.value_ns for rule in rules.rules})
    assert [found.value_ns for found in heard[0]] == [found.value_ns for found in heard[1]]
    for found in heard[0]:
        assert len(found.sequence) == case.nodes
        assert sorted(found.sequence.tolist()) == list(range(case.nodes))


def test_rules_that_are_given_are_never_lost_for_worse_ones():
    case = Case(unequal(microbatches=8, memory_limit="0.6x"), plain())
    finds = []
    for rules in ((), "found"):
        given = () if rules == () else finds[-1].rules
        task = Tune(microbatches=8, rules=given, target_ns=0, length=Length(steps=4_000), seed=5)
        run_task(task, case, 1e18, finds.append)
        if given:
            assert finds[-1].rules[0].value_ns <= given[0].value_ns


def test_a_changed_rule_keeps_the_old_one():
    from zbsolve.solver.portfolio import classes_of, random_rule
    from zbsolve.solver.tasks import Rule

    case, rng = Case(unequal(microbatches=8, memory_limit="0.6x"), plain()), random.Random(0)
    classes = classes_of(case)
    rule = Rule(1, 0, np.asarray(random_rule(case, classes, rng)), 7)
    before = rule.table.copy()
    assert any((changed(rule, classes, rng).table != before).any() for _ in range(20))
    assert (rule.table == before).all()


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_leaving_microbatches_out_keeps_an_order_valid(data):
    problem = data.draw(problems(placement=one_chunk(), most_microbatches=6))
    solution = solve(problem, work_limit=20, workers=1)
    fewer = data.draw(st.integers(1, problem.microbatches))
    shorter = type(problem)(profile=problem.profile, placement=problem.placement, microbatches=fewer)
    order = leave_out(solution.timetable.order, fewer)
    assert not violations(shorter, order)


def test_a_start_with_other_microbatches_is_used():
    short = instance("paper-1.5B-p4-m12", "1x")
    long = instance("paper-1.5B-p4-m12", "1x", microbatches=40)
    answer = solve(long, start=simulate(short, baseline("zb-h1", short)), work_limit=1, workers=1)
    assert answer.method == "the given start"
    assert answer.value_ns == lower_bound(long).value_ns
    assert not violations(long, answer.timetable)


def test_long_iterations_profit_from_a_smaller_problem():
    problem = instance("paper-1.5B-p8-m64", "0.75x")
    answer = solve(problem, work_limit=2000, workers=1)
    assert not violations(problem, answer.timetable)
