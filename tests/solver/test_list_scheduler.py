import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.solver.instances import instance, one_chunk
from tests.strategies import placements, problems
from zbsolve.bounds import smallest_limits
from zbsolve.opgraph import OpGraph
from zbsolve.problem import Problem
from zbsolve.solver.kernels import Arrays, period, sweep
from zbsolve.solver.list_scheduler import NEVER, Rule, list_schedule
from zbsolve.solver.node_sets import NodeSets
from zbsolve.solver.pattern import Pattern
from zbsolve.solver.pool import fits
from zbsolve.solver.portfolio import plain_rules, random_rule


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


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_never_stands_still_with_one_chunk_a_rank_however_tight(data):
    allow = data.draw(st.sampled_from([{"split"}, {"fused"}, {"split", "fused"}]))
    problem = tight(data.draw(problems(placement=one_chunk())), data.draw(st.integers(0, 6)), frozenset(allow))
    node_set = NodeSets(problem).get(frozenset())
    rng = random.Random(data.draw(st.integers(0, 999)))
    rules = [*plain_rules(node_set.pattern), *(random_rule(node_set.pattern, rng) for _ in range(5))]
    for rule in rules:
        draft = list_schedule(node_set.pattern, rule)
        assert draft is not None
        assert sorted(draft.sequence) == list(range(len(node_set.graph)))
        assert fits(node_set.arrays, draft.sequence)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_never_stands_still_on_any_placement_with_room_for_two(data):
    problem = data.draw(problems(placement=placements()))
    least = smallest_limits(problem)
    problem = tight(problem, 2 * max(least), frozenset({"split"}))
    pattern = Pattern.fold(OpGraph.build(problem))
    for rule in plain_rules(pattern):
        draft = list_schedule(pattern, rule)
        assert draft is not None
        assert fits(Arrays.of(pattern.graph), draft.sequence)


def test_times_are_as_soon_as_possible():
    problem = instance("profiled-8stage", 6200)
    graph = OpGraph.build(problem)
    pattern, arrays = Pattern.fold(graph), Arrays.of(graph)
    for rule in plain_rules(pattern):
        draft = list_schedule(pattern, rule)
        _, last = sweep(arrays, draft.sequence, [0] * 8)
        assert draft.makespan_ns == max(last)
        assert period(arrays, draft.sequence)[0] <= draft.span_ns


def test_the_forty_line_scheduler_of_the_field():
    for limit, reached in ((7440, 3623744000), (6200, 3798692000), (4960, 4253102000)):
        graph = OpGraph.build(instance("profiled-8stage", limit))
        pattern = Pattern.fold(graph)
        free = Rule(penalty=[0.0] * pattern.classes, in_flight=[NEVER] * pattern.classes)
        assert period(Arrays.of(graph), list_schedule(pattern, free).sequence)[0] == reached


def test_in_flight_limits_are_kept():
    problem = instance("paper-1.5B-p4-m12")
    graph = OpGraph.build(problem)
    pattern = Pattern.fold(graph)
    rule = Rule(penalty=[0.0] * pattern.classes, in_flight=[2] * pattern.classes)
    flying = [0] * 4
    for node in list_schedule(pattern, rule).sequence:
        flying[graph.rank[node]] += {0: 1, 1: -1}.get(int(graph.kind[node]), 0)
        assert flying[graph.rank[node]] <= 2
