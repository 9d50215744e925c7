"""On any costs, sizes and limits: complete, free of circles, and within the memory that is promised."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.catalog.helpers import uniform, uniform_for
from tests.strategies import problems
from zbsolve.catalog import baseline, schedules
from zbsolve.check import violations
from zbsolve.errors import ScheduleConditionError
from zbsolve.metrics import metrics
from zbsolve.placement import Placement
from zbsolve.simulate import simulate

NAMES = tuple(schedule.name for schedule in schedules())
LIMITS = st.sampled_from([None, "0.5x", "1x", "1.3x", "2x"])
ALLOW = st.sampled_from([frozenset({"split"}), frozenset({"fused"}), frozenset({"split", "fused"})])


@st.composite
def any_numbering(draw, make, ranks):
    """A placement with its ranks renumbered."""
    placement = make(ranks)
    number = draw(st.permutations(range(ranks)))
    return Placement.custom(*([number[rank] for rank in route] for route in placement.routes))


def shaped(make, ranks):
    return ranks.flatmap(lambda count: any_numbering(make, count))


SHAPES = {
    "linear": shaped(Placement.linear, st.integers(1, 5)),
    "looped": st.integers(2, 3).flatmap(
        lambda chunks: shaped(lambda ranks: Placement.looped(ranks, chunks), st.integers(1, 5))
    ),
    "v": shaped(Placement.v, st.integers(1, 5)),
    "wave": st.sampled_from([2, 4]).flatmap(
        lambda chunks: shaped(lambda ranks: Placement.wave(ranks, chunks), st.integers(1, 3))
    ),
    "bidirectional": shaped(Placement.bidirectional, st.sampled_from([2, 4, 6])),
}


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_schedule_is_complete_wherever_its_conditions_hold(shape, data):
    problem = data.draw(problems(placement=SHAPES[shape], most_microbatches=13))
    problem = replace(problem, memory_limit=data.draw(LIMITS), allow=data.draw(ALLOW))
    unlimited = replace(problem, memory_limit=None)
    for schedule in schedules():
        if schedule.placement not in (shape, "any", "wave"):
            continue
        try:
            order = baseline(schedule.name, problem)
        except ScheduleConditionError:
            continue
        assert violations(unlimited, order) == (), schedule.name
        assert violations(unlimited, simulate(problem, order)) == (), schedule.name


@pytest.mark.parametrize("name", NAMES)
def test_from_few_microbatches_to_many(name):
    """For p in 1..8 and any m: an order that passes, or the condition that does not hold."""
    (wanted,) = (schedule.placement for schedule in schedules() if schedule.name == name)
    make = {
        "any": Placement.linear,
        "linear": Placement.linear,
        "looped": lambda ranks: Placement.looped(ranks, 2 + ranks % 2),
        "v": Placement.v,
        "wave": lambda ranks: Placement.wave(ranks, 4),
        "bidirectional": Placement.bidirectional,
    }[wanted]
    passed = 0
    for ranks in range(1, 9):
        for microbatches in sorted({1, 2, ranks - 1, ranks, ranks + 1, 2 * ranks - 1, 2 * ranks, 3 * ranks + 2, 32}):
            if not microbatches:
                continue
            problem = uniform_for(name, make(ranks), microbatches, 3, 2, 1, latency=1)
            try:
                order = baseline(name, problem)
            except ScheduleConditionError:
                continue
            assert violations(problem, order) == (), (ranks, microbatches)
            passed += 1
    assert passed >= 10


def costs_on(problem, rank):
    stages, microbatches = problem.placement.stages_of(rank), range(problem.microbatches)
    return [problem.cost(s, j) for s in stages for j in microbatches]


def largest_chunk(problem, rank):
    return max(cost.activation_bytes for cost in costs_on(problem, rank))


def always(problem, rank):
    return problem.static_bytes(rank) + max(cost.workspace_bytes for cost in costs_on(problem, rank))


@settings(max_examples=60, deadline=None)
@given(problems(placement=SHAPES["v"], most_microbatches=13), st.sampled_from(["1f1b-v", "v-half", "v-min"]))
def test_controllable_memory_holds_on_any_costs_where_w_keeps_no_more_than_f_held(problem, name):
    stages = tuple(
        replace(cost, backward_weight_bytes=min(cost.backward_weight_bytes, cost.activation_bytes))
        for cost in problem.profile.stages
    )
    problem = replace(problem, profile=replace(problem.profile, stages=stages))
    ranks = problem.placement.ranks
    held = {"1f1b-v": 2 * ranks // 3 + 1, "v-half": (ranks + 2) // 2, "v-min": (ranks + 4) // 3}[name]
    for rank, peak in enumerate(metrics(simulate(problem, baseline(name, problem))).peak_bytes):
        assert peak <= always(problem, rank) + 2 * held * largest_chunk(problem, rank)


@settings(max_examples=60, deadline=None)
@given(problems(placement=SHAPES["v"], most_microbatches=13), st.sampled_from([None, "1x", "1.4x", "2x"]))
def test_zb_v_keeps_the_limit_from_1x_on_where_the_chunks_of_a_rank_are_equal(problem, limit):
    stages = list(problem.profile.stages)
    for rank in range(problem.placement.ranks):
        first, second = problem.placement.stages_of(rank)
        held = stages[first].activation_bytes
        stages[first], stages[second] = (
            replace(
                stages[s],
                activation_bytes=held,
                backward_weight_bytes=min(stages[s].backward_weight_bytes, held),
                workspace_bytes=0,
            )
            for s in (first, second)
        )
    profile = replace(problem.profile, stages=tuple(stages))
    problem = replace(problem, profile=profile, memory_limit=limit, microbatch_factors=None)
    own = replace(problem, memory_limit=limit or "1x").limit_bytes
    peaks = metrics(simulate(problem, baseline("zb-v", problem))).peak_bytes
    assert all(peak <= most for peak, most in zip(peaks, own, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_ranks_may_be_numbered_in_any_way(name):
    (wanted,) = (schedule.placement for schedule in schedules() if schedule.name == name)
    plain = {
        "any": Placement.linear(4),
        "linear": Placement.linear(4),
        "looped": Placement.looped(4, 2),
        "v": Placement.v(4),
        "wave": Placement.wave(4, 4),
        "bidirectional": Placement.bidirectional(4),
    }[wanted]
    number = (2, 0, 3, 1)
    turned = Placement.custom(*([number[rank] for rank in route] for route in plain.routes))
    mine = baseline(name, uniform_for(name, plain, 8, 3, 2, 1))
    other = baseline(name, uniform_for(name, turned, 8, 3, 2, 1))
    assert tuple(other.rows[rank] for rank in number) == mine.rows


def test_whole_backwards_are_fused_where_allowed_and_else_adjacent():
    placements = {"looped": Placement.looped(3, 2), "v": Placement.v(3), "bidirectional": Placement.bidirectional(4)}
    for name in ("looped-bfs", "interleaved-1f1b", "1f1b-v", "chimera"):
        (wanted,) = (schedule.placement for schedule in schedules() if schedule.name == name)
        both = baseline(name, uniform(placements[wanted], 7))
        split = baseline(name, uniform(placements[wanted], 7, allow={"split"}))
        assert split.rows == tuple(tuple(part for op in row for part in op.parts) for row in both.rows)


@pytest.mark.parametrize("ranks", [4, 6, 8])
def test_a_short_last_group_makes_no_circle(ranks):
    """Counts of warm-up forwards alone would make ranks wait for each other where m mod p is below p - 2."""
    eased = set()
    for microbatches in range(1, 4 * ranks):
        problem = uniform(Placement.looped(ranks, 3), microbatches)
        order = baseline("interleaved-1f1b", problem)
        assert violations(problem, order) == ()
        group = min(ranks, microbatches)
        for rank, row in enumerate(order.rows):
            ahead = 2 * group + 2 * (ranks - 1 - rank) + 1
            balance = 0
            for op in row:
                balance += 1 if op.kind.letter == "F" else -1
                if balance > ahead:
                    eased.add(microbatches % ranks)
    assert eased == set(range(1, ranks - 2))
