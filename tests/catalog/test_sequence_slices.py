"""Sequence-sliced 1F1B: its order, its formulas, and what it needs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.catalog.helpers import bubble_ns, figures, picture, uniform
from tests.strategies import problems
from zbsolve.bounds import smallest_limits
from zbsolve.catalog import baseline, schedules
from zbsolve.check import violations
from zbsolve.errors import ScheduleConditionError
from zbsolve.placement import Placement
from zbsolve.profile import Profile
from zbsolve.simulate import simulate

NS = st.integers(1, 40)
RANKS, SLICES, SEQUENCES = st.integers(1, 6), st.integers(2, 5), st.integers(1, 6)


@pytest.mark.parametrize(
    ("ranks", "sequences", "slices", "lines"),
    [
        (
            2,
            2,
            2,
            [
                "F0 F1 F2       BW1   F3 BW0      BW3   BW2",
                "   F0 F1 BW1   F2 BW0   F3 BW3   BW2",
            ],
        ),
        (
            3,
            1,
            3,
            [
                "F0 F1 F2                   BW2   BW1   BW0",
                "   F0 F1 F2          BW2   BW1   BW0",
                "      F0 F1 F2 BW2   BW1   BW0",
            ],
        ),
    ],
)
def test_pictures(ranks, sequences, slices, lines):
    problem = uniform(Placement.linear(ranks), sequences * slices, slices=slices)
    assert picture("seq-1f1b", problem) == lines


@settings(max_examples=60, deadline=None)
@given(RANKS, SEQUENCES, SLICES, NS, NS, NS)
def test_published_bubble_and_memory(ranks, sequences, slices, forward, backward, weight):
    """The ramp of 1F1B in slices, and on rank r no more slices than r ranks fewer and k - 1 more."""
    problem = uniform(Placement.linear(ranks), sequences * slices, forward, backward, weight, slices=slices)
    assert bubble_ns("seq-1f1b", problem) == (ranks - 1) * (forward + backward + weight)
    peaks = figures("seq-1f1b", problem).peak_bytes
    assert peaks == tuple(2 * min(ranks - r + slices - 1, sequences * slices) for r in range(ranks))


@settings(max_examples=60, deadline=None)
@given(RANKS, st.integers(2, 6), SLICES, NS, NS, NS)
def test_zero_bubble_on_slices(ranks, sequences, slices, forward, backward, weight):
    weight = min(weight, forward)
    sequences = max(sequences, ranks)
    problem = uniform(Placement.linear(ranks), sequences * slices, forward, backward, weight, slices=slices)
    assert bubble_ns("seq-zb-h1", problem) == (ranks - 1) * (forward + backward - weight)
    for rank, peak in enumerate(figures("seq-zb-h1", problem).peak_bytes):
        assert peak <= 2 * min(ranks - rank + slices - 1, sequences * slices) + rank


@settings(max_examples=30, deadline=None)
@given(RANKS, SEQUENCES, SLICES)
def test_warm_up_and_turns_of_slices(ranks, sequences, slices):
    """From the paper's queue: first sequence first, last slice first; p - r - 1 + k forwards ahead of it."""
    problem = uniform(Placement.linear(ranks), sequences * slices, slices=slices)
    for rank, row in enumerate(baseline("seq-1f1b", problem).rows):
        back = [op.microbatch for op in row if op.kind.letter == "BW"]
        assert back == [q * slices + i for q in range(sequences) for i in reversed(range(slices))]
        ahead = next(at for at, op in enumerate(row) if op.kind.letter == "BW")
        assert ahead == min(ranks - rank - 1 + slices, sequences * slices)


def test_beside_1f1b_on_whole_sequences():
    """Cut into four, the same sequences have a quarter of the ramp, in (p + 3) / 4p of the memory."""
    whole = uniform(Placement.linear(8), 8, 400, 400, 400)
    whole = replace(
        whole, profile=replace(whole.profile, stages=(replace(whole.profile.stages[0], activation_bytes=8),) * 8)
    )
    cut = uniform(Placement.linear(8), 32, 100, 100, 100, slices=4)
    assert bubble_ns("1f1b", whole) == 4 * bubble_ns("seq-1f1b", cut)
    assert max(figures("1f1b", whole).peak_bytes) == 64
    assert max(figures("seq-1f1b", cut).peak_bytes) == 22


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_on_any_costs_it_is_complete_and_keeps_its_memory(data):
    slices, ranks = data.draw(SLICES), data.draw(st.integers(1, 5))
    placement = st.just(Placement.linear(ranks))
    problem = data.draw(problems(placement=placement))
    problem = replace(
        problem,
        microbatches=problem.microbatches * slices,
        slices=slices,
        route_of=None,
        microbatch_factors=tuple(data.draw(st.sampled_from(["1", "1.5", "2"])) for _ in range(slices))
        * problem.microbatches,
    )
    for name in ("seq-1f1b", "seq-zb-h1"):
        assert violations(problem, simulate(problem, baseline(name, problem))) == (), name


def test_conditions():
    with pytest.raises(ScheduleConditionError, match="sequences in slices, but each microbatch is whole"):
        baseline("seq-1f1b", uniform(Placement.linear(2), 4))
    with pytest.raises(ScheduleConditionError, match="one stage a rank"):
        baseline("seq-1f1b", uniform(Placement.v(2), 4, slices=2))
    with pytest.raises(ScheduleConditionError, match="lives on B and W being apart"):
        baseline("seq-zb-h1", uniform(Placement.linear(2), 4, slices=2, allow={"fused"}))
    with pytest.raises(ScheduleConditionError, match="runs forwards only"):
        baseline("seq-1f1b", uniform(Placement.linear(2), 4, slices=2, forward_only=True))


@settings(max_examples=30, deadline=None)
@given(problems(variants=True, recompute=True, most_microbatches=8))
def test_schedules_that_take_slices_pass_on_any_placement(problem):
    names = ["forward-only"] if problem.forward_only else ["naive", "gpipe", "gpipe-recompute"]
    if problem.placement.name == "looped" and not problem.forward_only:
        names += ["looped-bfs", "torch-looped-bfs"]
    for name in names:
        assert violations(problem, simulate(problem, baseline(name, problem))) == (), name


def test_naive_needs_the_least_memory_that_any_order_of_slices_needs():
    profile = Profile.uniform(
        3, forward_ns=1, backward_input_ns=1, backward_weight_ns=1, activation_bytes=3, backward_weight_bytes=4
    )
    for allow in ({"split"}, {"fused"}):
        problem = uniform(Placement.linear(3), 6, slices=3, allow=allow, microbatch_factors=(1, 2, 3) * 2)
        problem = replace(problem, profile=profile)
        assert figures("naive", problem).peak_bytes == smallest_limits(problem)


def test_the_list_says_what_it_is():
    (found,) = (s for s in schedules() if s.name == "seq-1f1b")
    assert (found.family, found.placement) == ("sequence-slices", "linear")
    assert "2406.03488" in found.source
    assert "p + k - 1 slices" in found.needs
