"""Pairs in the executor: the same gradients bit for bit, one operation in the trace, sends after both."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from tests.executor import pipes
from tests.executor.test_recompute import assert_same
from tests.strategies import random_order
from zbsolve.catalog import baseline
from zbsolve.check import check
from zbsolve.executor.runtime import Pipeline
from zbsolve.lowering import Do, lower
from zbsolve.placement import Placement
from zbsolve.profile import Overlap
from zbsolve.simulate import simulate

torch.set_num_threads(1)

MICROBATCHES = 8


def asked(placement: Placement, microbatches: int = MICROBATCHES):
    problem = pipes.problem(placement, microbatches)
    stages = range(placement.stages)
    overlaps = tuple(
        Overlap(forward_stage=f, backward_stage=b, forward_backward_overlap_ns=2) for f in stages for b in stages
    )
    profile = replace(problem.profile, overlaps=overlaps)
    return replace(problem, profile=profile, allow=frozenset({"split", "fused", "paired"}))


def gradients_of(timetable, microbatches: int):
    mine = pipes.model(timetable.problem.placement.stages)
    pipe = Pipeline(timetable, mine, pipes.square_loss)
    pipe.step(*pipes.batch(microbatches))
    return pipe, pipes.gradients(pipe)


def assert_as_apart(timetable, microbatches: int) -> Pipeline:
    """Bit for bit what the same operations one after the other find."""
    pipe, found = gradients_of(timetable, microbatches)
    _, expected = gradients_of(simulate(timetable.problem, timetable.order.apart()), microbatches)
    assert found.keys() == expected.keys()
    for name, gradients in found.items():
        assert all(torch.equal(a, b) for a, b in zip(gradients, expected[name], strict=True)), name
    return pipe


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("dualpipe-v", Placement.v(2)),
        ("dualpipe-v", Placement.v(1)),
        ("dualpipe", Placement.bidirectional(2)),
        ("dualpipe", Placement.bidirectional(4)),
    ],
    ids=str,
)
def test_published_pairs_find_what_one_after_the_other_finds(name, where):
    problem = asked(where)
    timetable = simulate(problem, baseline(name, problem))
    assert any(op.beside is not None for row in timetable.order.rows for op in row)
    trace = assert_as_apart(timetable, MICROBATCHES).trace()
    assert trace.order == timetable.order
    check(problem, trace)
    taken = {(o.forward_stage, o.backward_stage): o.forward_backward_overlap_ns for o in trace.profile().overlaps}
    pairs = {(op.stage, op.beside.stage) for row in timetable.order.rows for op in row if op.beside is not None}
    assert all(taken[pair] > 2 for pair in pairs), "measured"
    assert all(ns == 2 for pair, ns in taken.items() if pair not in pairs), "as they were"


def test_dualpipe_v_has_the_gradients_of_the_plain_model():
    problem = asked(Placement.v(2))
    stages = pipes.model(4)
    mine = copy.deepcopy(stages)
    data, target = pipes.batch(MICROBATCHES)
    for x, y in zip(data.chunk(MICROBATCHES), target.chunk(MICROBATCHES), strict=True):
        (pipes.square_loss(torch.nn.Sequential(*stages)(x), y) / MICROBATCHES).backward()
    pipe = Pipeline(simulate(problem, baseline("dualpipe-v", problem)), mine, pipes.square_loss)
    pipe.step(data, target)
    assert_same(stages, mine)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("where", [Placement.linear(2), Placement.v(2), Placement.looped(1, 2)], ids=str)
def test_any_pairs_find_what_one_after_the_other_finds(where, seed):
    problem = asked(where, 4)
    timetable = simulate(problem, random_order(problem, seed))
    check(problem, assert_as_apart(timetable, 4).trace())


def test_what_a_pair_hands_on_is_sent_after_both():
    problem = asked(Placement.v(2))
    timetable = simulate(problem, baseline("dualpipe-v", problem))
    for row in lower(timetable).rows:
        for at, action in enumerate(row):
            if action.do is Do.COMPUTE and action.op.beside is not None:
                before = [a for a in row[:at] if a.do is Do.SEND and a.op in action.op.halves]
                waits = [a for a in row[at:] if a.do is Do.WAIT and a.op in action.op.halves]
                assert before == waits == []
