"""The judge and the graph say the same: over random problems of every placement.

Whatever the simulator times, the judge accepts, and whatever it is given, it gives an answer.
"""

import dataclasses
import inspect
import random
import re
import sys

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties.mutations import OF_THE_ORDER, SEEDS, codes, some_order, timed
from tests.strategies import problems
from zbsolve.check import peaks, violations
from zbsolve.errors import OrderError
from zbsolve.metrics import metrics, peak_bytes
from zbsolve.opgraph import Int32, OpGraph
from zbsolve.ops import Kind, Op
from zbsolve.simulate import Timer, simulate
from zbsolve.timetable import Order, TimedOp, Timetable

# What is right is accepted


@settings(max_examples=1000, deadline=None)
@given(problem=problems(variants=True), seed=SEEDS)
def test_every_simulated_order_is_accepted_and_its_peaks_and_value_are_the_same(problem, seed):
    order = some_order(problem, random.Random(seed))
    timetable = simulate(problem, order)
    figures = metrics(timetable)
    value = figures.period_ns if problem.objective == "period" else figures.makespan_ns
    assert peaks(problem, order) == peaks(problem, timetable) == figures.peak_bytes
    exact = dataclasses.replace(problem, memory_limit=figures.peak_bytes)
    assert violations(exact, order) == ()
    assert violations(exact, timetable, claimed_ns=value) == ()


@settings(max_examples=200, deadline=None)
@given(problem=problems(variants=True), seed=SEEDS)
def test_one_byte_less_than_a_peak_is_too_little(problem, seed):
    order = some_order(problem, random.Random(seed))
    graph = OpGraph.build(problem, order.rows)
    exact = peak_bytes(graph, graph.encode(order))
    for rank, peak in enumerate(exact):
        if peak:
            less = dataclasses.replace(problem, memory_limit=(*exact[:rank], peak - 1, *exact[rank + 1 :]))
            (found,) = violations(less, order)
            assert found.code == "memory"
            assert found.message.startswith(f"rank {rank} exceeds its limit of {peak - 1} bytes")


# What the graph refuses, the judge refuses, and nothing else


@settings(max_examples=400, deadline=None)
@given(problem=problems(variants=True), seed=SEEDS)
def test_an_order_deadlocks_for_the_timer_iff_it_does_for_the_judge(problem, seed):
    rng = random.Random(seed)
    rows = [list(row) for row in some_order(problem, rng).rows]
    for shuffles in range(4):
        for row in rows:
            for _ in range(shuffles if len(row) > 1 else 0):
                a = rng.randrange(len(row))
                row.insert(a + rng.choice([-1, 1, 1, 2]), row.pop(a))
        order = Order(tuple(tuple(row) for row in rows))
        graph = OpGraph.build(problem, order.rows)
        try:
            Timer(graph, graph.encode(order))
            runs = True
        except OrderError:
            runs = False
        assert runs == (codes(problem, order) == set())
        assert codes(problem, order) <= {"precedence", "deadlock"}


def fits_the_graph(graph: OpGraph, rows: tuple[Int32, ...], timetable: Timetable) -> bool:
    """Whether times keep every duration, row and arc of the graph, and begin at 0."""
    start, end = np.zeros(len(graph), dtype=np.int64), np.zeros(len(graph), dtype=np.int64)
    in_row = True
    for nodes, row in zip(rows, timetable.rows, strict=True):
        start[nodes], end[nodes] = [t.start_ns for t in row], [t.end_ns for t in row]
        network = graph.lane[nodes] != graph.rank[nodes]
        for lane in (nodes[graph.lane[nodes] == which] for which in np.unique(graph.lane[nodes])):
            in_row = in_row and bool(np.all(start[lane[1:]] >= end[lane[:-1]]))
        for at in np.flatnonzero(network).tolist():  # not before the last computation ahead of it
            in_row = in_row and bool(np.all(end[nodes[:at]][~network[:at]] <= start[nodes[at]]))
    return (
        in_row
        and start.min() == 0
        and bool(np.all(end - start == graph.duration_ns))
        and bool(np.all(start[graph.arc_head] >= end[graph.arc_tail] + graph.arc_lag_ns))
    )


@settings(max_examples=300, deadline=None)
@given(problem=problems(most_microbatches=3, variants=True), seed=SEEDS)
def test_shaken_times_are_accepted_iff_they_fit_the_graph(problem, seed):
    rng = random.Random(seed)
    timetable = simulate(problem, some_order(problem, rng))
    slack = simulate_with_room(timetable, rng)
    graph = OpGraph.build(problem, timetable.order.rows)
    nodes = graph.encode(timetable.order)
    for base in (timetable, slack):
        for _ in range(4):
            rows = [list(row) for row in base.rows]
            for _ in range(rng.randint(1, 2)):
                row = rng.choice([row for row in rows if row])
                at = rng.randrange(len(row))
                by = rng.choice([-3, -2, -1, 1, 2, 3])
                row[at] = TimedOp(row[at].op, row[at].start_ns + by, row[at].end_ns + by + rng.choice([0, 0, 0, 1]))
            shaken = timed(problem, rows)
            if min(t.start_ns for row in rows for t in row) < 0:
                assert "time" in codes(problem, shaken)
            else:
                assert (codes(problem, shaken) == set()) == fits_the_graph(graph, nodes, shaken)


def simulate_with_room(timetable: Timetable, rng: random.Random) -> Timetable:
    """Valid times of the same order that leave room: those on links up to 3 ns slower, and durations kept."""
    problem = timetable.problem
    link = dataclasses.replace(problem.profile.link, latency_ns=problem.profile.link.latency_ns + rng.randint(1, 3))
    profile = dataclasses.replace(problem.profile, link=link)
    slower = simulate(dataclasses.replace(problem, profile=profile), timetable.order)
    return dataclasses.replace(slower, problem=problem)


# Whatever it is given, it gives an answer

ANY_INT = st.one_of(st.integers(-1, 6), st.integers())
ANY_OP = st.builds(Op, st.sampled_from(Kind), ANY_INT, st.one_of(st.none(), ANY_INT))
ANY_ROWS = st.lists(st.lists(st.builds(TimedOp, ANY_OP, ANY_INT, ANY_INT), max_size=12), max_size=5)
DOCUMENTED = re.findall(r"^`(\w+)`", inspect.getdoc(sys.modules["zbsolve.check"]), flags=re.MULTILINE)


@settings(max_examples=300, deadline=None)
@given(problem=problems(most_microbatches=2, limits=True, variants=True), rows=ANY_ROWS, claimed=ANY_INT)
def test_any_rows_are_judged_in_the_order_of_the_rules(problem, rows, claimed):
    junk = timed(problem, rows)
    for x, claim in ((junk, claimed), (junk.order, None)):
        found = violations(problem, x, claimed_ns=claim)
        order_of_rules = [DOCUMENTED.index(v.code) for v in found if v.code != "precedence"]
        assert order_of_rules == sorted(order_of_rules)
        assert all(len(v.message) < 2000 for v in found)
        peaks(problem, x)


def test_the_table_names_every_code():
    assert len(DOCUMENTED) == len(set(DOCUMENTED)) == 17
    mutations = {"overlap", *OF_THE_ORDER, "time", "first_start", "duration", "row_order", "transfer", "claim"}
    assert set(DOCUMENTED) == mutations
