from __future__ import annotations

import pytest
from hypothesis import given

from tests.strategies import placements
from zbsolve.errors import PlacementError
from zbsolve.placement import Placement


def test_the_constructors_place_stages_as_their_papers_do():
    assert Placement.linear(3).routes == ((0, 1, 2),)
    assert Placement.looped(2, 3).routes == ((0, 1, 0, 1, 0, 1),)
    assert Placement.v(3).routes == ((0, 1, 2, 2, 1, 0),)
    assert Placement.wave(2, 4).routes == ((0, 1, 1, 0, 0, 1, 1, 0),)
    assert Placement.bidirectional(3).routes == ((0, 1, 2), (2, 1, 0))


def test_replicas_are_held_by_every_route():
    both = Placement.bidirectional(3)
    assert [both.holders(s) for s in range(3)] == [(0, 2), (1,), (2, 0)]
    assert both.stages_of(0) == (0, 2)
    assert Placement.v(2).stages_of(1) == (1, 2)


@pytest.mark.parametrize(
    "routes",
    [(), ((),), ((0, 1), (0,)), ((0, 2),), ((-1, 0),), ((0, 1.0),), ((True, 0),), ((0, 10**9),)],
)
def test_what_is_no_pipeline_is_refused(routes):
    with pytest.raises(PlacementError):
        Placement(routes=routes)


@pytest.mark.parametrize(
    "make", [lambda: Placement.linear(0), lambda: Placement.wave(2, 3), lambda: Placement.looped(2, 0)]
)
def test_constructors_refuse_impossible_counts(make):
    with pytest.raises(PlacementError):
        make()


@given(placements())
def test_every_rank_holds_something_and_every_stage_lies_somewhere(placement):
    for rank in range(placement.ranks):
        assert all(rank in placement.holders(stage) for stage in placement.stages_of(rank))
        assert placement.stages_of(rank)
    rebuilt = {
        "linear": lambda: Placement.linear(placement.ranks),
        "looped": lambda: Placement.looped(placement.ranks, placement.stages // placement.ranks),
        "v": lambda: Placement.v(placement.ranks),
        "wave": lambda: Placement.wave(placement.ranks, placement.stages // placement.ranks),
        "bidirectional": lambda: Placement.bidirectional(placement.ranks),
        "custom": lambda: Placement.custom(*placement.routes),
    }
    assert rebuilt[placement.name]() == placement
