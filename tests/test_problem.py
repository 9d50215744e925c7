from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given

from tests.strategies import problems
from zbsolve.errors import InvalidInput, ProblemError, ProfileError
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Link, LinkOverride, Profile, ProfileSource, StageCost, StageSpread


def profile(stages=4, **kwargs):
    given_costs = {"forward_ns": 3, "backward_input_ns": 2, "backward_weight_ns": 1, "activation_bytes": 10} | kwargs
    return Profile.uniform(stages, **given_costs)


def problem(**kwargs):
    return Problem(**({"profile": profile(), "placement": Placement.linear(4), "microbatches": 8} | kwargs))


def test_a_fused_backward_costs_the_sum_unless_told_otherwise():
    assert profile().stages[0].backward_ns == 3
    assert profile(backward_ns=2).stages[0].backward_ns == 2


def test_kx_is_static_bytes_plus_k_times_ranks_times_a_microbatch():
    assert problem(memory_limit="1x").limit_bytes == (40,) * 4
    assert problem(memory_limit="0.33x", profile=profile(static_bytes=7)).limit_bytes == (7 + 13,) * 4
    two_chunks = problem(profile=profile(8), placement=Placement.v(4), memory_limit="1x")
    assert two_chunks.limit_bytes == (80,) * 4


def test_kx_averages_over_the_microbatches_of_two_routes():
    stages = tuple(
        StageCost(forward_ns=1, backward_input_ns=1, backward_weight_ns=1, activation_bytes=a) for a in (2, 4)
    )
    both = Problem(
        profile=Profile(stages=stages), placement=Placement.bidirectional(2), microbatches=3, memory_limit="1x"
    )
    assert both.route_of == (0, 1, 0)
    assert both.limit_bytes == (2 * (2 + 4 + 2) // 3, 2 * (4 + 2 + 4) // 3)


def test_limits_are_bytes_text_or_one_a_rank():
    assert problem(memory_limit=None).limit_bytes == (None,) * 4
    assert problem(memory_limit="2KiB").limit_bytes == (2048,) * 4
    assert problem(memory_limit=(None, 5, "1x", "1kB")).limit_bytes == (None, 5, 40, 1000)
    assert problem(memory_limit=[1, 2, 3, 4]).limit_bytes == (1, 2, 3, 4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"microbatches": 0},
        {"microbatches": 10**9},
        {"microbatches": True},
        {"placement": Placement.linear(3)},
        {"memory_limit": (1, 2)},
        {"memory_limit": "much"},
        {"memory_limit": 1.5},
        {"memory_limit": -1},
        {"memory_limit": "-1x"},
        {"memory_limit": "nanx"},
        {"objective": "speed"},
        {"allow": set()},
        {"allow": {"magic"}},
        {"route_of": (0,)},
        {"route_of": (1,) * 8},
        {"profile": Profile(stages=profile().stages, link=Link(overrides=(LinkOverride(sender=0, receiver=4),)))},
    ],
)
def test_what_does_not_fit_together_is_refused(wrong):
    with pytest.raises(InvalidInput):
        problem(**wrong)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Profile(stages=()),
        lambda: profile(forward_ns=-1),
        lambda: profile(forward_ns=1.0),
        lambda: profile(forward_ns=2**62 + 1),
        lambda: profile(backward_ns=-2),
        lambda: profile(forward_ns=0, backward_input_ns=0, backward_weight_ns=0),
        lambda: profile(5000),
        lambda: Link(bytes_per_second=0),
        lambda: LinkOverride(sender=1, receiver=1),
        lambda: Link(overrides=(LinkOverride(sender=0, receiver=1),) * 2),
        lambda: Profile(stages=profile().stages, source=ProfileSource(spread=(StageSpread(),))),
    ],
)
def test_impossible_costs_are_refused(make):
    with pytest.raises(ProfileError):
        make()


def test_everything_is_frozen():
    with pytest.raises(FrozenInstanceError):
        problem().microbatches = 3


@given(problems())
def test_the_default_operations_do_every_part_once_on_its_rank(any_problem):
    rows = any_problem.operations()
    parts = [part for row in rows for op in row for part in op.parts]
    assert len(parts) == len(set(parts)) == 3 * any_problem.placement.stages * any_problem.microbatches
    assert all(any_problem.rank_of(op) == rank for rank, row in enumerate(rows) for op in row)


def test_the_digest_follows_what_decides_the_answer():
    base = problem()
    assert base.digest == problem().digest == problem(profile=replace(profile(), name="another name")).digest
    others = [{"microbatches": 9}, {"memory_limit": "1x"}, {"objective": "makespan"}, {"allow": {"split"}}]
    assert len({base.digest, *(problem(**o).digest for o in others)}) == 5
    assert problem(memory_limit="1x").digest == problem(memory_limit=40).digest


def test_parts_of_a_fused_backward():
    assert Op(Kind.BACKWARD, 1, 2).parts == (Op(Kind.BACKWARD_INPUT, 1, 2), Op(Kind.BACKWARD_WEIGHT, 1, 2))
    assert Op(Kind.FORWARD, 1, 2).parts == (Op(Kind.FORWARD, 1, 2),)
    assert str(Op(Kind.FORWARD, 0, 3)) == "F3 of stage 0"
    assert problem().cost(0, 0).forward_ns == 3


def test_problem_error_is_an_input_error():
    assert issubclass(ProblemError, InvalidInput)
    assert ProblemError.exit_code == 2


# Ranks and microbatches that differ


def test_factors_multiply_exactly_and_round_half_up():
    asked = problem(
        profile=profile(static_bytes=7, backward_weight_bytes=3, workspace_bytes=1, output_bytes=5),
        rank_factors=(1, "1.5", 2, 0.1),
        microbatch_factors=(1, "0.5", "1.25", 3, 1, 1, 1, 1),
    )
    plain, slow, small = asked.cost(0, 0), asked.cost(1, 0), asked.cost(0, 1)
    assert plain == asked.profile.stages[0]
    assert (slow.forward_ns, slow.backward_input_ns, slow.backward_weight_ns) == (5, 3, 2)  # 4.5, 3, 1.5
    assert (slow.activation_bytes, slow.output_bytes, slow.static_bytes) == (10, 5, 7)
    assert (small.forward_ns, small.activation_bytes, small.backward_weight_bytes) == (2, 5, 2)
    assert (small.workspace_bytes, small.output_bytes, small.static_bytes) == (1, 3, 7)
    assert asked.cost(3, 3).forward_ns == 1  # 3 x 0.1 x 3 = 0.9
    assert asked.cost(2, 2).forward_ns == 8  # 3 x 2 x 1.25 = 7.5


def test_the_speed_of_a_rank_is_that_of_the_rank_on_the_route():
    both = problem(
        placement=Placement.bidirectional(4), microbatches=2, rank_factors=(10, 1, 1, 1), profile=profile(forward_ns=3)
    )
    assert [both.cost(0, j).forward_ns for j in range(2)] == [30, 3]
    assert [both.cost(3, j).forward_ns for j in range(2)] == [3, 30]


def test_the_sum_of_both_backwards_stays_their_sum():
    halves = problem(profile=profile(backward_input_ns=1, backward_weight_ns=1), rank_factors=("0.5", 1, 1, 1))
    assert halves.cost(0, 0).backward_ns == 2
    cheaper = problem(profile=profile(backward_ns=1), rank_factors=(3, 1, 1, 1))
    assert cheaper.cost(0, 0).backward_ns == 3


def test_factors_of_one_are_no_factors():
    plain, ones = problem(), problem(rank_factors=(1, "1.0", 1.0, "1"), microbatch_factors=[1] * 8)
    assert ones == plain
    assert ones.rank_factors is None
    assert ones.digest == plain.digest
    assert problem(rank_factors=(1, "1.50", 1, 1)).digest == problem(rank_factors=(1, 1.5, 1, 1)).digest != plain.digest


def test_the_digest_of_a_problem_without_new_parts_is_that_of_the_first_release():
    assert problem(memory_limit="1x").digest == "3e8a4fc329f1d8b7"


def test_kx_averages_over_microbatches_that_differ():
    assert problem(memory_limit="1x", microbatch_factors=(2, 1, 1, 1, 1, 1, 1, 2)).limit_bytes == (50,) * 4


@pytest.mark.parametrize(
    "factors", [(1, 1, 1), "1,1,1,1", (1, 1, 1, 0), (1, 1, 1, -1), (1, 1, 1, "a"), (1, 1, 1, 1e7), (1, 1, 1, True), 5]
)
def test_factors_that_make_no_sense_are_refused(factors):
    with pytest.raises(ProblemError, match="factor"):
        problem(rank_factors=factors)
    with pytest.raises(ProblemError, match="factor"):
        problem(microbatches=4, microbatch_factors=factors)


def test_scaled_beyond_the_largest_is_refused():
    with pytest.raises(ProblemError, match=r"stage 0, scaled by its factors: .* at most 2\^62"):
        problem(profile=profile(forward_ns=2**62), rank_factors=(2, 1, 1, 1)).cost(0, 0)
