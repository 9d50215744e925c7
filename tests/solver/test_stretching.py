from hypothesis import given, settings
from hypothesis import strategies as st

from tests.solver.instances import instance, one_chunk
from tests.strategies import problems
from zbsolve.bounds import lower_bound
from zbsolve.catalog import baseline
from zbsolve.check import violations
from zbsolve.simulate import simulate
from zbsolve.solver import solve
from zbsolve.solver.stretching import stretch


def test_one_f_one_b_stretched_is_one_f_one_b():
    short, long = instance("unit-p4-m12"), instance("unit-p4-m12", microbatches=31)
    assert stretch(baseline("1f1b", short), 31) == baseline("1f1b", long)
    assert stretch(baseline("1f1b", long), 12) is not None


def test_zb_h1_stretched_is_zb_h1():
    short, long = instance("unit-p4-m12"), instance("unit-p4-m12", microbatches=20)
    stretched = simulate(long, stretch(baseline("zb-h1", short), 20))
    assert stretched.period_ns == simulate(long, baseline("zb-h1", long)).period_ns


def test_without_a_steady_part_there_is_nothing_to_repeat():
    short = instance("unit-p4-m12", microbatches=3)
    assert stretch(baseline("gpipe", short), 12) is None


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_leaving_microbatches_out_keeps_an_order_valid(data):
    problem = data.draw(problems(placement=one_chunk(), most_microbatches=6))
    solution = solve(problem, work_limit=20, workers=1)
    fewer = data.draw(st.integers(1, problem.microbatches))
    shorter = type(problem)(profile=problem.profile, placement=problem.placement, microbatches=fewer)
    order = stretch(solution.timetable.order, fewer)
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
