import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.solver.instances import instance, one_chunk
from tests.strategies import placements, problems
from zbsolve.bounds import smallest_limits
from zbsolve.check import violations
from zbsolve.problem import Problem
from zbsolve.simulate import simulate
from zbsolve.solver.budget import Budget
from zbsolve.solver.case import Case
from zbsolve.solver.compiled import plain
from zbsolve.solver.listing import NEVER, new_rule
from zbsolve.solver.network import order_of
from zbsolve.solver.portfolio import classes_of, draft, plain_rules, random_drafts, random_rule


def endless() -> Budget:
    return Budget(float("inf"), None)


def tight(problem: Problem, above: int, allow) -> Problem:
    """The problem with as little memory as any timetable needs, and a little more."""
    free = Problem(profile=problem.profile, placement=problem.placement, microbatches=problem.microbatches, allow=allow)
    limits = tuple(limit + above for limit in smallest_limits(free))
    return Problem(
        profile=problem.profile,
        placement=problem.placement,
        microbatches=problem.microbatches,
        allow=allow,
        memory_limit=limits,
    )


def judged(problem, found):
    """The value that simulate gives what was found, if the judge lets it pass."""
    timetable = simulate(problem, order_of(problem, found.sequence.tolist(), found.fused.tolist()))
    assert not violations(problem, timetable)
    return timetable.period_ns if problem.objective == "period" else timetable.makespan_ns


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_never_stands_still_with_one_chunk_a_rank_however_tight(data):
    allow = data.draw(st.sampled_from([{"split"}, {"fused"}, {"split", "fused"}]))
    problem = tight(data.draw(problems(placement=one_chunk())), data.draw(st.integers(0, 6)), frozenset(allow))
    case = Case(problem, plain())
    flags = case.forms.flags(lambda s, j: False)
    rng = random.Random(data.draw(st.integers(0, 999)))
    classes = classes_of(case)
    for rule in (*plain_rules(case), *(random_rule(case, classes, rng) for _ in range(5))):
        found = draft(case, flags, rule, 0, endless())
        assert found is not None
        assert judged(problem, found) == found.value_ns


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_never_stands_still_on_any_placement_with_room_for_two(data):
    problem = data.draw(problems(placement=placements()))
    problem = tight(problem, 2 * max(smallest_limits(problem)), frozenset({"split"}))
    case = Case(problem, plain())
    for rule in plain_rules(case):
        found = draft(case, case.forms.flags(lambda s, j: False), rule, 0, endless())
        assert found is not None
        assert judged(problem, found) == found.value_ns


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_any_mixture_of_fused_and_split_is_scheduled_right(data):
    problem = data.draw(problems(placement=placements(), limits=True))
    case = Case(problem, plain())
    rng = random.Random(data.draw(st.integers(0, 999)))
    for _, found in zip(range(6), random_drafts(case, Budget(float("inf"), 2000), rng), strict=False):
        assert judged(problem, found) == found.value_ns


def test_the_forty_line_scheduler_of_the_field():
    for limit, reached in ((7440, 3623744000), (6200, 3798692000), (4960, 4253102000)):
        case = Case(instance("profiled-8stage", limit), plain())
        classes = len(classes_of(case))
        free = new_rule(case.network, [0.0] * classes, [NEVER] * classes, 0.0, urgent=True)
        assert draft(case, [0] * case.nodes, free, 0, endless()).value_ns == reached


def test_in_flight_limits_are_kept():
    case = Case(instance("paper-1.5B-p4-m12"), plain())
    classes = len(classes_of(case))
    rule = new_rule(case.network, [0.0] * classes, [2] * classes, 0.0, urgent=True)
    flying = [0] * 4
    thirds = case.nodes // 3
    for node in draft(case, [0] * case.nodes, rule, 0, endless()).sequence.tolist():
        flying[case.rank[node]] += (1, -1, 0)[node // thirds]
        assert flying[case.rank[node]] <= 2
