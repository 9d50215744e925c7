from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given

from tests.strategies import problems, random_order
from zbsolve.errors import OrderError
from zbsolve.metrics import memory_curve, metrics
from zbsolve.opgraph import OpGraph
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Link, LinkOverride, Profile, StageCost
from zbsolve.simulate import Timer, simulate
from zbsolve.timetable import Order


def longest_paths(graph, rows):
    """Longest path from the start of each rank's first operation to the end of each rank's last, by networkx."""
    net = nx.DiGraph()
    for node in range(len(graph)):
        net.add_edge(("start", node), ("end", node), length=int(graph.duration_ns[node]))
    for tail, head, lag in zip(
        graph.arc_tail.tolist(), graph.arc_head.tolist(), graph.arc_lag_ns.tolist(), strict=True
    ):
        net.add_edge(("end", tail), ("start", head), length=lag)
    for row in rows:
        for ahead, node in pairwise(row.tolist()):
            edge = ("end", ahead), ("start", node)
            net.add_edge(*edge, length=max(0, net.get_edge_data(*edge, {"length": 0})["length"]))
    order = list(nx.topological_sort(net))
    table = {}
    for r, first_row in enumerate(rows):
        distance = {("start", int(first_row[0])): 0}
        for node in order:
            if node in distance:
                for _, head, data in net.out_edges(node, data=True):
                    distance[head] = max(distance.get(head, 0), distance[node] + data["length"])
        for q, last_row in enumerate(rows):
            if ("end", int(last_row[-1])) in distance:
                table[r, q] = distance["end", int(last_row[-1])]
    return table


def max_cycle_mean(paths):
    net = nx.DiGraph()
    net.add_weighted_edges_from((r, q, length) for (r, q), length in paths.items())
    return max(
        Fraction(sum(net[a][b]["weight"] for a, b in pairwise([*cycle, cycle[0]])), len(cycle))
        for cycle in nx.simple_cycles(net)
    )


@given(problems())
def test_the_period_is_the_maximum_cycle_mean_rounded_up(problem):
    order = random_order(problem, 11)
    graph = OpGraph.build(problem, order.rows)
    rows = graph.encode(order)
    mean = max_cycle_mean(longest_paths(graph, rows))
    assert Timer(graph, rows).period().value_ns == -(-mean.numerator // mean.denominator)


@given(problems())
def test_the_makespan_is_the_longest_path(problem):
    order = random_order(problem, 12)
    graph = OpGraph.build(problem, order.rows)
    rows = graph.encode(order)
    assert Timer(graph, rows).makespan().value_ns == max(longest_paths(graph, rows).values())


@given(problems())
def test_the_written_times_attain_the_claim(problem):
    timetable = simulate(problem, random_order(problem, 13))
    figures = metrics(timetable)
    if problem.objective == "period":
        assert timetable.period_ns == figures.period_ns <= figures.makespan_ns
    else:
        assert timetable.makespan_ns == figures.makespan_ns
    assert min(timed.start_ns for row in timetable.rows for timed in row) == 0


@given(problems(objective="period"))
def test_the_period_lies_between_the_load_and_the_span(problem):
    order = random_order(problem, 14)
    graph = OpGraph.build(problem, order.rows)
    timer = Timer(graph, graph.encode(order))
    load = max(int(graph.duration_ns[row].sum()) for row in graph.encode(order))
    soon = timer.makespan()
    span = max(soon.end_ns[row[-1]] - soon.start_ns[row[0]] for row in timer.rows)
    assert load <= timer.period().value_ns <= span


@given(problems(objective="period"))
def test_a_period_can_really_be_repeated(problem):
    """Three iterations one behind the other, with no barrier, keep every rank on one operation at a time."""
    timetable = simulate(problem, random_order(problem, 15))
    for row in timetable.rows:
        runs = [
            (t.start_ns + k * timetable.period_ns, t.end_ns + k * timetable.period_ns) for k in range(3) for t in row
        ]
        assert all(ahead[1] <= behind[0] for ahead, behind in pairwise(runs))


def test_a_circle_of_waiting_ranks_is_refused():
    profile = Profile.uniform(2, forward_ns=1, backward_input_ns=1, backward_weight_ns=1)
    problem = Problem(profile=profile, placement=Placement.linear(2), microbatches=2)
    f, b = Kind.FORWARD, Kind.BACKWARD
    rows = (
        (Op(f, 0, 0), Op(b, 0, 0), Op(f, 0, 1), Op(b, 0, 1)),
        (Op(f, 1, 1), Op(f, 1, 0), Op(b, 1, 0), Op(b, 1, 1)),
    )
    with pytest.raises(OrderError, match="never finish"):
        simulate(problem, Order(rows))


@given(problems())
def test_memory_curves_peak_where_metrics_say(problem):
    timetable = simulate(problem, random_order(problem, 16))
    peaks = metrics(timetable).peak_bytes
    for curve, peak, row in zip(memory_curve(timetable), peaks, timetable.rows, strict=True):
        times = [time for time, _ in curve]
        assert times == sorted(set(times))
        assert max(level for _, level in curve) <= peak
        if all(t.end_ns > t.start_ns for t in row):
            assert max(level for _, level in curve) == peak
        assert curve[-1][1] == curve_floor(timetable, row)


def curve_floor(timetable, row):
    problem = timetable.problem
    return problem.static_bytes(problem.rank_of(row[0].op))


def test_large_problems_stay_large_only_in_number():
    profile = Profile.uniform(
        32,
        forward_ns=1000,
        backward_input_ns=1000,
        backward_weight_ns=1000,
        activation_bytes=2,
        backward_weight_bytes=1,
    )
    problem = Problem(profile=profile, placement=Placement.linear(32), microbatches=256)
    graph = OpGraph.build(problem)
    assert len(graph) == 24_576
    assert graph.arc_tail.dtype == np.int32


def pushing_in_turn():
    """An order in which in every pass one of two ranks hangs on itself: no pass alone shows their cycle."""
    first = StageCost(forward_ns=9, backward_input_ns=12, backward_weight_ns=20, backward_ns=34)
    second = StageCost(forward_ns=3, backward_input_ns=5, backward_weight_ns=20, backward_ns=23)
    overrides = (LinkOverride(sender=0, receiver=1, latency_ns=3), LinkOverride(sender=1, receiver=0, latency_ns=6))
    problem = Problem(
        profile=Profile(stages=(first, second), link=Link(overrides=overrides)),
        placement=Placement.bidirectional(2),
        microbatches=4,
    )
    here = {0: [(0, 0), (0, 2), (1, 1), (1, 3)], 1: [(0, 1), (0, 3), (1, 0), (1, 2)]}
    order = Order(
        tuple(
            tuple(
                [Op(Kind.FORWARD, *at) for at in here[rank]]
                + [Op(Kind.BACKWARD, *at) for at in here[rank][2:] + here[rank][:2]]
            )
            for rank in here
        )
    )
    graph = OpGraph.build(problem, order.rows)
    return graph, graph.encode(order)


def test_ranks_that_push_each_other_on_in_turn_do_not_do_so_for_ever():
    graph, rows = pushing_in_turn()
    mean = max_cycle_mean(longest_paths(graph, rows))
    assert Timer(graph, rows).period().value_ns == -(-mean.numerator // mean.denominator)
