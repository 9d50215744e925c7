"""Slack and critical paths, against timing the order again with one operation made longer."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drawn import one_f_one_b, problem, timed
from tests.strategies import orders, problems
from zbsolve.analysis.critical import critical_path, greatest_cycle
from zbsolve.analysis.network import Network
from zbsolve.analysis.slack import slacks
from zbsolve.analysis.words import path_in_words
from zbsolve.simulate import Timer, simulate
from zbsolve.timetable import TimedOp, Timetable


def value_with(network, node, more_ns):
    """The value of the order with one operation that much longer."""
    duration = network.graph.duration_ns.copy()
    duration[node] += more_ns
    timer = Timer(replace(network.graph, duration_ns=duration), network.rows)
    return (timer.period() if network.by_period else timer.makespan()).value_ns


@settings(max_examples=60)
@given(st.data())
def test_an_operation_may_be_delayed_by_its_slack_and_not_by_one_more(data):
    asked = data.draw(problems(most_microbatches=3, variants=True))
    network = Network.of(simulate(asked, data.draw(orders(asked))))
    for node, slack in enumerate(slacks(network)):
        assert slack >= 0
        assert value_with(network, node, slack) == network.value_ns
        assert value_with(network, node, slack + 1) == network.value_ns + 1


@given(st.data())
def test_the_critical_path_is_as_long_as_the_value(data):
    asked = data.draw(problems(most_microbatches=4, variants=True))
    network = Network.of(simulate(asked, data.draw(orders(asked))))
    path = critical_path(network)
    slack = slacks(network)
    duration = network.graph.duration_ns.tolist()
    assert path.value_ns == network.value_ns
    assert sum(duration[s.node] + s.lag_ns for s in path.steps) == path.length_ns
    assert sum(s.via == "iteration" for s in path.steps) == (path.iterations if network.by_period else 0)
    assert all(slack[s.node] < path.iterations for s in path.steps)
    around = [*path.steps, path.steps[0]] if network.by_period else path.steps
    for before, step in pairwise(around):
        if step.via == "iteration":
            assert network.rank(before.node) == network.rank(step.node)
            continue
        ties = [(e.tail, e.lag_ns, e.in_row) for e in network.edges[step.node]]
        assert (before.node, step.lag_ns, step.via == "row") in ties
    assert len(path_in_words(network, path)) >= 1


@given(st.lists(st.lists(st.integers(0, 30), min_size=4, max_size=4), min_size=4, max_size=4), st.integers(1, 4))
def test_the_greatest_cycle_is_the_greatest_of_all(matrix, size):
    span = np.asarray(matrix, dtype=np.int64)[:size, :size]

    def cycles(path):
        yield path
        for following in range(size):
            if following not in path:
                yield from cycles([*path, following])

    def mean(cycle):
        return Fraction(sum(int(span[a, b]) for a, b in zip(cycle, cycle[1:] + cycle[:1], strict=True)), len(cycle))

    best = max(mean(c) for start in range(size) for c in cycles([start]))
    assert mean(greatest_cycle(span)) == best


def test_a_path_that_goes_down_and_back():
    table = one_f_one_b(problem(2, 1, objective="makespan"))
    network = Network.of(table)
    path = critical_path(network)
    assert [str(network.op(s.node)) for s in path.steps] == [
        "F0 of stage 0",
        "F0 of stage 1",
        "BW0 of stage 1",
        "BW0 of stage 0",
    ]
    assert path_in_words(network, path) == (
        "rank 0: F0, 1 us",
        "hands over to rank 1: F0 to BW0, 2 operations, 3 us",
        "hands over to rank 0: BW0, 2 us",
    )
    assert slacks(network) == (0, 0, 0, 0)


def test_a_busy_rank_is_a_cycle_by_itself():
    table = one_f_one_b(problem(1, 4))
    path = critical_path(Network.of(table))
    assert (path.iterations, len(path.steps), path.steps[0].via) == (1, 8, "iteration")


def test_slack_counts_from_the_planned_value():
    table = timed(problem(1, 1, objective="makespan"), "F0 X0")
    forward, backward = table.rows[0]
    late = Timetable(problem=table.problem, rows=((forward, TimedOp(backward.op, 1700, 3700)),))
    assert slacks(Network.of(late)) == (700, 700)


def test_amounts_near_the_limit_do_not_wrap_around():
    huge = 2**58
    costs = {"forward_ns": huge, "backward_input_ns": huge, "backward_weight_ns": huge}
    network = Network.of(one_f_one_b(problem(2, 2, costs=costs)))
    slack = slacks(network)
    assert min(slack) == 0
    assert max(slack) < 2**62
    assert critical_path(network).value_ns == network.value_ns
