"""The building blocks between V-Min and V-Half."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.catalog.helpers import bubble_ns, figures, uniform
from tests.strategies import problems
from zbsolve.catalog import baseline
from zbsolve.catalog.building_block import INTERVAL, reordered
from zbsolve.catalog.controllable_memory import family
from zbsolve.catalog.v_shape import VShape
from zbsolve.check import violations
from zbsolve.errors import ScheduleConditionError
from zbsolve.opgraph import OpGraph
from zbsolve.placement import Placement

RANKS = range(1, 13)


@pytest.mark.parametrize("ranks", RANKS)
def test_no_two_operations_of_a_rank_ever_meet_and_each_comes_after_what_it_needs(ranks):
    for block in family(ranks):
        assert len(block.legs) == ranks
        for place, (legs, weights) in enumerate(zip(block.legs, block.weights, strict=True)):
            assert len({unit % INTERVAL for unit in (*legs, *weights)}) == INTERVAL
            f0, f1, b1, b0 = legs
            assert f0 < f1 < b1 < b0
            assert weights[0] > b1
            assert weights[1] > b0
            if place:
                above = block.legs[place - 1]
                assert above[0] < f0
                assert f1 < above[1]
                assert above[2] < b1
                assert b0 < above[3]


@pytest.mark.parametrize("ranks", RANKS)
def test_memory_lies_between_that_of_v_min_and_a_little_above_v_half(ranks):
    peaks = sorted({block.peak for block in family(ranks)})
    least, half = 2 * ((ranks + 4) // 3), 2 * ((ranks + 2) // 2)
    assert peaks[0] <= least
    assert peaks[-1] >= half
    # every number of chunks between, so that no limit between goes to waste
    assert peaks == list(range(peaks[0], peaks[-1] + 1))


@pytest.mark.parametrize("ranks", [3, 4, 7, 8])
def test_a_rank_never_holds_more_chunks_than_its_limit_has_room_for(ranks):
    least, half = 2 * ((ranks + 4) // 3), 2 * ((ranks + 2) // 2)
    before = None
    for chunks in range(least, half + 3):
        problem = uniform(Placement.v(ranks), 3 * ranks, memory_limit=2 * chunks)
        found = figures("v-block", problem)
        assert max(found.peak_bytes) <= 2 * chunks
        assert violations(problem, baseline("v-block", problem)) == ()
        if chunks >= half:
            assert found.period_ns <= figures("v-half", problem).period_ns
        assert found.period_ns <= figures("v-min", problem).period_ns
        before = found.period_ns if before is None else before
    assert found.period_ns < before


def test_without_a_limit_it_holds_what_v_half_does():
    problem = uniform(Placement.v(8), 24, 3, 3, 2)
    assert max(figures("v-block", problem).peak_bytes) <= max(figures("v-half", problem).peak_bytes)
    assert figures("v-block", problem).period_ns <= figures("v-half", problem).period_ns


@pytest.mark.parametrize("ranks", [4, 8])
def test_the_steady_part_has_no_bubble_at_equal_times(ranks):
    for memory in ("0.5x", "0.625x", "0.75x"):
        some, more = (uniform(Placement.v(ranks), m, memory_limit=memory) for m in (6 * ranks, 7 * ranks))
        assert bubble_ns("v-block", some) == bubble_ns("v-block", more)


def test_a_limit_that_not_even_the_least_block_fits_is_refused_with_what_it_needs():
    problem = uniform(Placement.v(8), 16, memory_limit="0.4x")
    with pytest.raises(ScheduleConditionError, match=r"v-block needs the memory of 4 microbatches.*room for 6 chunks"):
        baseline("v-block", problem)


@settings(max_examples=40, deadline=None)
@given(
    problems(placement=st.integers(1, 4).map(Placement.v), most_microbatches=9),
    st.sampled_from([None, "0.6x", "1x", "3x"]),
)
def test_on_any_costs_it_passes_the_check_or_is_refused(problem, limit):
    problem = replace(problem, memory_limit=limit)
    try:
        order = baseline("v-block", problem)
    except ScheduleConditionError:
        return
    assert violations(problem, order) == ()


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_steps_are_the_nodes_of_their_operations(ranks):
    problem = replace(uniform(Placement.v(ranks), 3), allow=frozenset({"split"}))
    graph, shape = OpGraph.build(problem), VShape(tuple(range(ranks)))
    nodes = shape.nodes(graph)
    rows = reordered(family(ranks)[0], 3, family(ranks)[0].peak)
    numbered = [[of[step] for step in row] for of, row in zip(nodes, rows, strict=True)]
    assert graph.decode(numbered) == shape.order(problem, rows)
    assert sorted(node for of in nodes for node in of.values()) == list(range(len(graph)))
