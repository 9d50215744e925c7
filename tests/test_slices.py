"""Runs of microbatches that are slices of one sequence: asked, flattened, judged, timed, written and read."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import sliced
from tests.catalog.helpers import uniform
from tests.strategies import problems, random_order
from zbsolve.bounds import lower_bound, lower_bounds, smallest_limits
from zbsolve.catalog import baseline, schedules
from zbsolve.check import violations
from zbsolve.errors import Infeasible, OrderError, ProblemError, ScheduleConditionError
from zbsolve.files import read_timetable, write_timetable
from zbsolve.interop.megatron import megatron_layout
from zbsolve.interop.primus import primus_json
from zbsolve.interop.torch import write_torch_csv
from zbsolve.interop.zero_bubble import zero_bubble_json
from zbsolve.lowering import lower, verify
from zbsolve.opgraph import OpGraph
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.simulate import simulate
from zbsolve.solver.twins import order_in_turn
from zbsolve.timetable import Order

F, B, W, BW = Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT, Kind.BACKWARD


def asked(ranks=2, sequences=2, slices=2, **changes):
    return uniform(Placement.linear(ranks), sequences * slices, slices=slices, **changes)


# ------------------------------------------------------------------------------------------- the problem


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slices": 3}, "4 microbatches cannot be sequences of 3 slices"),
        ({"slices": 0}, "at least one slice"),
        ({"slices": 1.5}, "the number of slices"),
        ({"slices": True}, "the number of slices"),
    ],
)
def test_what_is_no_number_of_slices(changes, words):
    with pytest.raises(ProblemError, match=words):
        uniform(Placement.linear(2), 4, **changes)


def test_a_sequence_takes_one_route():
    placement = Placement.bidirectional(2)
    assert uniform(placement, 6, slices=3).route_of == (0, 0, 0, 1, 1, 1)
    with pytest.raises(ProblemError, match=r"microbatch 1 takes route 1, but the sequence .* began on route 0"):
        uniform(placement, 4, slices=2, route_of=(0, 1, 1, 1))


def test_one_slice_is_no_slice():
    plain = uniform(Placement.linear(2), 4)
    assert plain.digest == replace(plain, slices=1).digest != replace(plain, slices=2).digest


def test_a_limit_counts_slices_as_microbatches():
    """1x is what p slices hold, whatever number makes a sequence."""
    assert asked(4, 2, 3, memory_limit="1x").limit_bytes == (8,) * 4


# --------------------------------------------------------------------------------------- graph and judge


def test_the_arcs_of_slices():
    graph = OpGraph.build(asked(ranks=1, sequences=2, slices=3))
    arcs = {
        (str(graph.op(t)), str(graph.op(h)))
        for t, h, size in zip(graph.arc_tail, graph.arc_head, graph.arc_bytes, strict=True)
        if graph.kind[t] == graph.kind[h] and size == -1
    }
    forward = {(f"F{a} of stage 0", f"F{a + 1} of stage 0") for a in (0, 1, 3, 4)}
    back = {(f"B{a + 1} of stage 0", f"B{a} of stage 0") for a in (0, 1, 3, 4)}
    assert arcs == forward | back


def test_twins_lie_at_equal_places_of_sequences_that_are_alike_as_a_whole():
    def classes(problem):
        graph = OpGraph.build(problem)
        return [int(graph.twin[graph.index(0, Op(F, 0, j))]) for j in range(problem.microbatches)]

    a, b, c, d = classes(asked())
    assert (a, b) == (c, d)
    assert a != b
    # the second slices differ, so the first ones are no twins either
    a, b, c, d = classes(asked(microbatch_factors=(1, 2, 1, 3)))
    assert len({a, b, c, d}) == 4


def order_of(*rows):
    return Order(tuple(tuple(row) for row in rows))


def test_the_judge_knows_the_turn_of_slices():
    problem = asked(ranks=1, sequences=1, slices=2)
    good = [Op(F, 0, 0), Op(F, 0, 1), Op(BW, 0, 1), Op(BW, 0, 0)]
    assert violations(problem, order_of(good)) == ()
    for places, words in (((1, 0, 2, 3), "F1 .* ahead of F0"), ((0, 1, 3, 2), "BW0 .* ahead of BW1")):
        bad = order_of([good[i] for i in places])
        (found,) = violations(problem, bad)
        assert found.code == "precedence"
        assert re.search(words, found.message)
        assert violations(replace(problem, slices=1), bad) == ()
        with pytest.raises(OrderError, match="can never finish"):
            simulate(problem, bad)


def test_the_judge_sees_slices_in_time():
    """Where one rank runs both, times tell as much as places: the row is right, the clock is not."""
    problem = asked(ranks=1, sequences=1, slices=2)
    table = simulate(problem, order_of([Op(F, 0, 0), Op(F, 0, 1), Op(BW, 0, 1), Op(BW, 0, 0)]))
    row = list(table.rows[0])
    row[1] = replace(row[1], start_ns=0, end_ns=1)
    codes = {v.code for v in violations(problem, replace(table, rows=(tuple(row),)))}
    assert codes == {"precedence", "overlap"}


def test_circles_through_slices_are_told():
    """Each row alone is in order; together rank 0 waits for rank 1 and rank 1 for rank 0."""
    problem = asked(ranks=2, sequences=1, slices=2)
    rows = [
        [Op(F, 0, 0), Op(F, 0, 1), Op(BW, 0, 1), Op(BW, 0, 0)],
        [Op(F, 1, 0), Op(BW, 1, 0), Op(F, 1, 1), Op(BW, 1, 1)],
    ]
    assert "precedence" in {v.code for v in violations(problem, order_of(*rows))}
    # with the second row in order for its own stage, too, but over two stages
    v = uniform(Placement.v(2), 2, slices=2)
    order = baseline("naive", v)
    assert violations(v, order) == ()
    down, back = (list(row) for row in order.rows)
    first, second = Op(F, 1, 1), Op(BW, 2, 1)
    back.remove(second)
    back.insert(back.index(first), second)
    assert {"precedence", "deadlock"} & {found.code for found in violations(v, order_of(down, back))}


@settings(max_examples=60, deadline=None)
@given(problems(variants=True, most_microbatches=6), st.integers(0, 2**32))
def test_graph_and_judge_agree_on_which_orders_can_end(problem, seed):
    """Random exchanges of neighbours in a row: what the simulator times passes, what it refuses does not."""
    order = random_order(problem, seed)
    rng = random.Random(seed)
    rows = [list(row) for row in order.rows]
    for row in rows:
        if len(row) > 1 and all(op.microbatch is not None for op in row):
            at = rng.randrange(len(row) - 1)
            row[at], row[at + 1] = row[at + 1], row[at]
    changed = order_of(*rows)
    try:
        table = simulate(problem, changed)
    except OrderError:
        assert {v.code for v in violations(replace(problem, memory_limit=None), changed)} & {"precedence", "deadlock"}
        return
    value = table.period_ns if problem.objective == "period" else table.makespan_ns
    assert violations(problem, table, claimed_ns=value) == ()
    verify(lower(table))


@settings(max_examples=60, deadline=None)
@given(problems(variants=True, most_microbatches=6), st.integers(0, 2**32))
def test_giving_twins_out_in_turn_loses_nothing(problem, seed):
    order = random_order(problem, seed)
    before = simulate(problem, order)
    after = simulate(problem, order_in_turn(OpGraph.build(problem, order.rows), order))
    if problem.objective == "period":
        assert after.period_ns <= before.period_ns
    else:
        assert after.makespan_ns <= before.makespan_ns


# -------------------------------------------------------------------------------- bounds and limits, by all orders


def test_bounds_and_smallest_limits_against_every_order():
    rng = random.Random(5)
    attained = 0
    for _ in range(12):
        problem = sliced.tiny(rng)
        everything = sliced.every_order(problem)
        ranks = range(problem.placement.ranks)
        least = tuple(min(held[r] for _, _, held in everything) for r in ranks)
        assert smallest_limits(problem) == least
        for limits in ((None,) * len(least), least, tuple(bytes_ + 2 for bytes_ in least)):
            best = sliced.optimum(problem, limits)
            bound = max(b.value_ns for b in lower_bounds(replace(problem, memory_limit=limits)))
            assert best is not None
            assert bound <= best
            attained += bound == best
        if min(least):
            short = tuple(bytes_ - 1 if r == 0 else None for r, bytes_ in enumerate(least))
            with pytest.raises(Infeasible) as told:
                lower_bounds(replace(problem, memory_limit=short))
            assert told.value.smallest_limit_bytes == least
    assert attained > 12


def test_slices_tighten_what_is_proven():
    """What whole microbatches could do, slices cannot: the bound for them is higher, and attained here."""
    problem = asked(8, 6, 4, memory_limit="1x")
    assert lower_bound(problem).value_ns == 90
    assert lower_bound(replace(problem, slices=1)).value_ns == 79


# ------------------------------------------------------------------------------------------ files and other tools


def test_a_file_keeps_slices(tmp_path):
    problem = asked(3, 2, 2)
    table = simulate(problem, baseline("seq-1f1b", problem))
    write_timetable(tmp_path / "t.json", table)
    assert b'"slices": 2' in (tmp_path / "t.json").read_bytes()
    again = read_timetable(tmp_path / "t.json")
    assert again == table
    assert again.problem.digest == problem.digest
    plain = simulate(replace(problem, slices=1), baseline("1f1b", replace(problem, slices=1)))
    write_timetable(tmp_path / "p.json", plain)
    assert b"slices" not in (tmp_path / "p.json").read_bytes()


def test_a_file_keeps_the_routes_of_sequences(tmp_path):
    problem = uniform(Placement.bidirectional(2), 8, slices=2)
    table = simulate(problem, baseline("gpipe", problem))
    write_timetable(tmp_path / "t.json", table)
    assert b"route_of" not in (tmp_path / "t.json").read_bytes()
    assert read_timetable(tmp_path / "t.json").problem.route_of == (0, 0, 1, 1, 0, 0, 1, 1)


def test_tools_that_know_no_slices_refuse_them(tmp_path):
    problem = asked(2, 2, 2)
    table = simulate(problem, baseline("seq-1f1b", problem))
    for write in (lambda t: write_torch_csv(t, tmp_path / "x.csv"), zero_bubble_json, primus_json):
        with pytest.raises(ProblemError, match="every 2 are slices of one sequence"):
            write(table)
    with pytest.raises(ProblemError, match="Megatron-LM runs microbatches"):
        megatron_layout(problem, [1, 1])


def test_schedules_of_whole_sequences_refuse_slices():
    taken = set()
    for schedule in schedules():
        placement = Placement.looped(2, 2) if schedule.placement == "looped" else Placement.linear(2)
        problem = uniform(
            placement, 4, slices=2, forward_only=schedule.name == "forward-only", allow={"split", "fused", "recompute"}
        )
        if schedule.family in ("sequential", "breadth-first", "sequence-slices", "forward-only"):
            assert violations(problem, baseline(schedule.name, problem)) == (), schedule.name
            taken.add(schedule.name)
            continue
        with pytest.raises(ScheduleConditionError, match="slices of one; use slices=1, or seq-1f1b"):
            baseline(schedule.name, problem)
    assert len(taken) == 8
