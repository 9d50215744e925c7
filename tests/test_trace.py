"""Traces: measured rows, their period, and the profile they give."""

from __future__ import annotations

import dataclasses

import pytest

from zbsolve.errors import InvalidInput
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Profile, StageCost
from zbsolve.simulate import simulate
from zbsolve.timetable import Order, TimedOp
from zbsolve.trace import Trace

F, B, W, BW = Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT, Kind.BACKWARD


def problem() -> Problem:
    cost = StageCost(forward_ns=10, backward_input_ns=20, backward_weight_ns=10, static_bytes=7)
    return Problem(profile=Profile(stages=(cost, cost), name="two"), placement=Placement.linear(2), microbatches=1)


def rows(first: int, *, fused: bool = False, slower: int = 0):
    """Rank 0: F, then its backward; rank 1: F and a fused backward between them."""
    at = first + slower
    backward = (
        (TimedOp(Op(BW, 0, 0), at + 70, at + 100),)
        if fused
        else (TimedOp(Op(B, 0, 0), at + 70, at + 90), TimedOp(Op(W, 0, 0), at + 90, at + 100))
    )
    return (
        (TimedOp(Op(F, 0, 0), first, first + 12 + slower), *backward),
        (TimedOp(Op(F, 1, 0), first + 20 + slower, first + 33 + slower), TimedOp(Op(BW, 1, 0), first + 35, first + 65)),
    )


def test_the_period_is_what_a_step_takes_once_it_is_warm():
    assert Trace(problem=problem(), steps=(rows(0),)).period_ns == 100
    assert Trace(problem=problem(), steps=(rows(0), rows(130))).period_ns == 130
    warm = Trace(problem=problem(), steps=(rows(0), rows(500), rows(610), rows(720)))
    assert warm.period_ns == 110
    assert warm.step_ns == (100,) * 4


def test_the_profile_has_the_medians_and_keeps_what_was_not_measured():
    trace = Trace(problem=problem(), steps=(rows(0), rows(200, slower=3), rows(400)))
    first, second = trace.profile().stages
    assert (first.forward_ns, first.backward_input_ns, first.backward_weight_ns, first.backward_ns) == (12, 20, 10, 30)
    # only the fused backward ran there: its halves keep the planned proportion
    assert (second.backward_input_ns, second.backward_weight_ns, second.backward_ns) == (20, 10, 30)
    assert first.static_bytes == 7
    assert trace.profile().name == "two"
    assert trace.profile().source.samples == 3


def test_measured_times_are_divided_by_the_factors_of_rank_and_microbatch():
    asked = dataclasses.replace(problem(), rank_factors=(2, 1), microbatch_factors=("0.5",))
    first, second = Trace(problem=asked, steps=(rows(0),)).profile().stages
    assert (first.forward_ns, first.backward_input_ns) == (12, 20)
    assert (second.forward_ns, second.backward_ns) == (26, 60)


def test_planned_and_measured_stand_beside_each_other():
    asked = problem()
    trace = Trace(problem=asked, steps=(rows(50),))
    table = simulate(asked, trace.order)
    pairs = trace.beside(table)
    assert [pair.measured.op for pair in pairs] == [pair.planned.op for pair in pairs]
    assert pairs[0].longer_ns == 2
    assert pairs[0].measured.start_ns == 0
    other = simulate(asked, Order(((Op(F, 0, 0), Op(BW, 0, 0)), (Op(F, 1, 0), Op(BW, 1, 0)))))
    with pytest.raises(InvalidInput, match="another order"):
        trace.beside(other)


def test_a_trace_is_of_one_order():
    with pytest.raises(InvalidInput, match="step 1 of the trace has other operations"):
        Trace(problem=problem(), steps=(rows(0), rows(200, fused=True)))
    with pytest.raises(InvalidInput, match="at least one step"):
        Trace(problem=problem(), steps=())


def test_a_weight_gradient_of_no_length_was_run_with_its_input_gradient():
    joined = (
        (TimedOp(Op(F, 0, 0), 0, 12), TimedOp(Op(B, 0, 0), 70, 100), TimedOp(Op(W, 0, 0), 100, 100)),
        rows(0)[1],
    )
    stage = Trace(problem=problem(), steps=(joined, joined)).profile().stages[0]
    assert (stage.forward_ns, stage.backward_ns) == (12, 30)
    # in the proportion of the problem's own profile
    assert (stage.backward_input_ns, stage.backward_weight_ns) == (20, 10)
