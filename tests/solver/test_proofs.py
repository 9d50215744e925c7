"""What CP-SAT proves must hold for the true problem: fractions of a unit, and twins in any order to begin with."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import problems, random_order
from zbsolve.catalog import baseline
from zbsolve.metrics import metrics
from zbsolve.opgraph import OpGraph
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Link, LinkOverride, Profile, StageCost
from zbsolve.simulate import simulate
from zbsolve.solution import Bound
from zbsolve.solver import solve
from zbsolve.solver.cpsat import Limits, improve
from zbsolve.solver.incumbent import Incumbent
from zbsolve.solver.kernels import Arrays, sequence_of
from zbsolve.solver.twins import in_turn
from zbsolve.timetable import Order

F, B, W = Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT
LIMITS = Limits(seconds=60, deterministic=2.0, workers=1, seed=0)


def proven(problem, rows, value_ns):
    graph = OpGraph.build(problem, rows)
    arrays = Arrays.of(graph)
    sequence = sequence_of(arrays, [row.tolist() for row in graph.encode(Order(rows))])
    return improve(
        arrays,
        sequence,
        objective=problem.objective,
        value_ns=value_ns,
        bound_ns=0,
        limits=LIMITS,
        on_sequence=lambda _: None,
    ).bound_ns


def two_ways(scale):
    """Two routes whose best period is 9.5 units: the mean of a cycle over both ranks."""
    stage = StageCost(forward_ns=scale, backward_input_ns=scale, backward_weight_ns=2 * scale)
    link = Link(overrides=(LinkOverride(sender=1, receiver=0, latency_ns=3 * scale),))
    return Problem(
        profile=Profile(stages=(stage, stage), link=link), placement=Placement.bidirectional(2), microbatches=2
    )


@pytest.mark.parametrize(("scale", "best"), [(1, 10), (1000, 9500), (2, 19)])
def test_a_period_may_be_a_fraction_of_the_unit(scale, best):
    solution = solve(two_ways(scale), work_limit=40_000, workers=1)
    assert solution.value_ns == best
    assert solution.lower_bound_ns <= best


def test_twins_may_come_in_any_order():
    """From F 0 1 2, B 2 1 0, W 0 1 2 the best of all orders is bounded, not the best that keeps these twists."""
    stage = StageCost(forward_ns=1, backward_input_ns=1, backward_weight_ns=1)
    problem = Problem(profile=Profile(stages=(stage, stage)), placement=Placement.linear(2), microbatches=3)
    sequence = ((F, (0, 1, 2)), (B, (2, 1, 0)), (W, (0, 1, 2)))
    rows = tuple(tuple(Op(kind, rank, j) for kind, js in sequence for j in js) for rank in range(2))
    assert proven(problem, rows, 12) == 9


@settings(max_examples=100)
@given(problem=problems(), seed=st.integers(0, 10**6))
def test_putting_twins_in_turn_loses_nothing(problem, seed):
    order = random_order(problem, seed)
    graph = OpGraph.build(problem, order.rows)
    arrays = Arrays.of(graph)
    sequence = sequence_of(arrays, [row.tolist() for row in graph.encode(order)])
    turned = in_turn(arrays.twin, graph.microbatch.tolist(), sequence)
    place = {node: at for at, node in enumerate(turned)}
    assert sorted(turned) == sorted(sequence)
    assert all(place[tail] < place[node] for node in turned for tail in arrays.preds[node])
    rows = [[n for n in turned if arrays.rank[n] == r] for r in range(arrays.ranks)]
    before, after = (metrics_of(problem, o) for o in (order, graph.decode(rows)))
    assert after.period_ns <= before.period_ns
    assert after.makespan_ns <= before.makespan_ns
    assert after.peak_bytes == before.peak_bytes


def metrics_of(problem, order):
    return metrics(simulate(problem, order))


def test_a_bound_above_an_attained_value_is_never_shown():
    incumbent = Incumbent(Bound(5, "load"), 0.0, 0.0, None)
    incumbent.offer(8, lambda: Order(()), "a method")
    incumbent.prove(Bound(9, "wrong"))
    assert incumbent.bound == Bound(5, "load")
    incumbent.prove(Bound(8, "right"))
    assert incumbent.done


def test_operations_that_take_no_time_can_be_solved():
    stage = StageCost(forward_ns=0, backward_input_ns=1, backward_weight_ns=1, backward_ns=0, activation_bytes=1)
    problem = Problem(
        profile=Profile(stages=(stage, stage), link=Link(latency_ns=1)),
        placement=Placement.bidirectional(2),
        microbatches=2,
        memory_limit=1,
        objective="makespan",
    )
    for seed in range(10):
        assert solve(problem, seed=seed, work_limit=300, workers=1).value_ns > 0


def test_published_schedules_are_tried_however_short_the_time():
    stage = StageCost(
        forward_ns=18522,
        backward_input_ns=18086,
        backward_weight_ns=9337,
        activation_bytes=201,
        backward_weight_bytes=73,
    )
    problem = Problem(
        profile=Profile(stages=(stage,) * 8, link=Link(latency_ns=6)),
        placement=Placement.linear(8),
        microbatches=64,
        memory_limit="1x",
    )
    best = metrics_of(problem, baseline("zb-h1", problem)).period_ns
    assert solve(problem, time_limit_s=0.01, workers=1).value_ns <= best
    assert solve(problem, work_limit=1, workers=1).value_ns <= best
