"""Schedules say what they need where they are asked for something else."""

import pytest

from tests.catalog.helpers import uniform, uniform_for
from zbsolve.catalog import baseline, schedules
from zbsolve.errors import ScheduleConditionError
from zbsolve.placement import Placement

LOOPED = ("looped-bfs", "torch-looped-bfs", "interleaved-1f1b", "interleaved-1f1b-grouped", "interleaved-zb")
V = ("zb-v", "torch-zb-v", "1f1b-v", "v-half", "v-block", "v-min", "dualpipe-v")
BIDIRECTIONAL = ("chimera", "dualpipe")
SPLIT = ("interleaved-zb", "zb-v", "torch-zb-v", "v-half", "v-block", "v-min", "dualpipe", "dualpipe-v")
PLACEMENTS = {
    "linear": Placement.linear(4),
    "looped": Placement.looped(4, 2),
    "v": Placement.v(4),
    "wave": Placement.wave(4, 4),
    "bidirectional": Placement.bidirectional(4),
}


def test_the_placement_that_a_schedule_names_is_one_it_takes():
    for schedule in schedules():
        placement = PLACEMENTS["linear" if schedule.placement == "any" else schedule.placement]
        assert baseline(schedule.name, uniform_for(schedule.name, placement, 8)).rows


@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
@pytest.mark.parametrize("name", [*LOOPED, *V, *BIDIRECTIONAL, "hanayo"])
def test_another_placement_is_refused_with_what_is_needed(name, placement):
    wanted = next(schedule.placement for schedule in schedules() if schedule.name == name)
    if placement.name == wanted or (wanted == "wave" and placement.name == "v"):
        assert baseline(name, uniform(placement, 8)).rows
        return
    with pytest.raises(ScheduleConditionError, match=rf"^{name} (is for|sends).*; (use|split)"):
        baseline(name, uniform(placement, 8))


@pytest.mark.parametrize("name", SPLIT)
def test_fused_backwards_alone_are_refused_where_b_and_w_are_apart(name):
    placement = next(PLACEMENTS[schedule.placement] for schedule in schedules() if schedule.name == name)
    with pytest.raises(ScheduleConditionError, match=f"{name} .*fused.*allow 'split'"):
        baseline(name, uniform(placement, 8, allow={"fused"}))


def test_one_stage_a_rank_is_told_to_be_split_into_chunks():
    with pytest.raises(ScheduleConditionError, match=r"interleaved-1f1b .*stages a rank.*split them into chunks"):
        baseline("interleaved-1f1b", uniform(Placement.linear(4), 8))


def test_unequal_laps_suit_breadth_first_only():
    problem = uniform(Placement.custom([0, 1, 2, 0, 1]), 4)
    assert baseline("looped-bfs", problem).rows
    with pytest.raises(ScheduleConditionError, match=r"same number of stages on every rank.*use looped-bfs"):
        baseline("interleaved-1f1b", problem)


@pytest.mark.parametrize("name", BIDIRECTIONAL)
def test_two_directions_need_an_even_number_of_ranks(name):
    with pytest.raises(ScheduleConditionError, match=r"even number of ranks.*there are 3"):
        baseline(name, uniform(Placement.bidirectional(3), 12))


def test_dualpipe_needs_enough_microbatches_and_as_many_each_way():
    with pytest.raises(ScheduleConditionError, match="at least 2 x ranks = 8 in all, but they take 3 and 3"):
        baseline("dualpipe", uniform(Placement.bidirectional(4), 6))
    with pytest.raises(ScheduleConditionError, match=r"as many microbatches in each direction.*take 5 and 4"):
        baseline("dualpipe", uniform(Placement.bidirectional(4), 9))
    with pytest.raises(ScheduleConditionError, match="at least 2 x ranks = 8 microbatches, got 7"):
        baseline("dualpipe-v", uniform(Placement.v(4), 7))
