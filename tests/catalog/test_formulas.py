"""Published formulas of bubble and memory, on equal stages without latency."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.catalog.helpers import bubble_ns, figures, uniform, work_ns
from zbsolve.catalog import baseline
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Profile
from zbsolve.simulate import simulate

STAGE_NS = st.integers(1, 40)
RANKS = st.integers(1, 6)
SETTINGS = settings(max_examples=40, deadline=None)


@SETTINGS
@given(RANKS, st.integers(1, 14), STAGE_NS, STAGE_NS, STAGE_NS)
def test_eager_1f1b_waits_as_long_as_1f1b_and_holds_up_to_2p_less_1(ranks, microbatches, forward, backward, weight):
    problem = uniform(Placement.linear(ranks), microbatches, forward, backward, weight)
    assert bubble_ns("eager-1f1b", problem) == (ranks - 1) * (forward + backward + weight)
    peaks = figures("eager-1f1b", problem).peak_bytes
    assert peaks == tuple(2 * min(2 * (ranks - r) - 1, microbatches) for r in range(ranks))


def test_eager_1f1b_hides_a_latency_up_to_a_forward():
    """1F1B pays for transfers in every microbatch, the eager order in the ramps only."""
    for latency in (1, 2, 3):
        problem = uniform(Placement.linear(4), 24, 3, 2, 1, latency=latency)
        assert bubble_ns("eager-1f1b", problem) == 3 * 6 + 6 * latency < bubble_ns("1f1b", problem)


@SETTINGS
@given(RANKS, st.integers(2, 3), st.integers(1, 3), STAGE_NS, STAGE_NS, STAGE_NS)
def test_interleaving_divides_the_ramp(ranks, chunks, rounds, forward, backward, weight):
    problem = uniform(Placement.looped(ranks, chunks), rounds * ranks, forward, backward, weight)
    ramp = (ranks - 1) * (forward + backward + weight)
    for name in ("looped-bfs", "torch-looped-bfs", "interleaved-1f1b", "interleaved-1f1b-grouped"):
        assert bubble_ns(name, problem) == ramp, name
    everything = 2 * chunks * rounds * ranks
    assert figures("looped-bfs", problem).peak_bytes == (everything,) * ranks
    held = min((chunks + 1) * ranks - 1, chunks * rounds * ranks)
    assert max(figures("interleaved-1f1b", problem).peak_bytes) == 2 * held


@SETTINGS
@given(RANKS, st.integers(2, 3), st.integers(1, 3), STAGE_NS, STAGE_NS, STAGE_NS)
def test_interleaved_zero_bubble(ranks, chunks, rounds, forward, backward, weight):
    weight = min(weight, forward)
    problem = uniform(Placement.looped(ranks, chunks), rounds * ranks, forward, backward, weight)
    assert bubble_ns("interleaved-zb", problem) == (ranks - 1) * (forward + backward - weight)
    assert max(figures("interleaved-zb", problem).peak_bytes) <= 2 * chunks * ranks


@pytest.mark.parametrize("name", ["zb-v", "torch-zb-v"])
@pytest.mark.parametrize("ranks", range(1, 9))
def test_zb_v_has_no_bubble_with_the_memory_of_1f1b(name, ranks):
    for microbatches in (2 * ranks, 3 * ranks + 1):
        problem = uniform(Placement.v(ranks), microbatches)
        assert bubble_ns(name, problem) == 0
        assert max(figures(name, problem).peak_bytes) == 2 * 2 * ranks


@pytest.mark.parametrize(
    ("microbatches", "costs_us", "bubble"),
    [
        (48, (14407, 14380, 9676, 1610), 0.0697),
        (64, (14412, 14393, 9688, 1621), 0.0533),
        (128, (14316, 14306, 9639, 1619), 0.0274),
    ],
)
def test_bubbles_of_zb_v_as_published(microbatches, costs_us, bubble):
    forward, backward, weight, latency = (1000 * us for us in costs_us)
    problem = uniform(Placement.v(16), microbatches, forward, backward, weight, latency)
    found = figures("zb-v", problem)
    assert round(found.bubble, 4) == bubble
    assert max(found.peak_bytes) == 2 * 2 * 16


@pytest.mark.parametrize("ranks", range(1, 13))
def test_controllable_memory(ranks):
    for name, microbatches_held in (("v-half", (ranks + 2) // 2), ("v-min", (ranks + 4) // 3)):
        problem = uniform(Placement.v(ranks), 3 * ranks)
        assert max(figures(name, problem).peak_bytes) <= 2 * 2 * microbatches_held
        # the steady part has no bubble: it does not grow with the microbatches
        assert bubble_ns(name, problem) == bubble_ns(name, uniform(Placement.v(ranks), 4 * ranks))


@pytest.mark.parametrize(("forward", "backward", "weight"), [(3, 3, 2), (4, 5, 3), (2, 2, 1), (3, 2, 2)])
def test_the_steady_part_of_v_half_stays_free_of_bubbles_on_other_costs(forward, backward, weight):
    assert weight + 2 * backward >= 2 * forward
    assert weight + 2 * forward >= 2 * backward
    for ranks in (3, 4, 8):
        bubbles = [bubble_ns("v-half", uniform(Placement.v(ranks), m, forward, backward, weight)) for m in (32, 40, 48)]
        assert max(bubbles) == min(bubbles)


@pytest.mark.parametrize(("forward", "backward", "weight"), [(1, 1, 1), (2, 3, 2), (1, 3, 3), (3, 4, 3)])
def test_the_steady_part_of_1f1b_v_is_free_of_bubbles_where_backwards_are_long(forward, backward, weight):
    assert backward + weight >= 2 * forward
    for ranks in (3, 4, 5, 8):
        short, long = (uniform(Placement.v(ranks), rounds * ranks, forward, backward, weight) for rounds in (3, 5))
        assert bubble_ns("1f1b-v", short) == bubble_ns("1f1b-v", long)
        assert max(figures("1f1b-v", long).peak_bytes) == 2 * 2 * (2 * ranks // 3 + 1)


@pytest.mark.parametrize("ranks", [2, 4, 6, 8])
def test_chimera(ranks):
    """With slots of equal length p - 2 of them are lost; a rank holds p/2 + 1 to p microbatches of one stage each."""
    for units in (1, 2, 3):
        problem = uniform(Placement.bidirectional(ranks), units * ranks, forward=2)
        found = figures("chimera", problem)
        work = units * ranks * 4
        assert found.period_ns - work == found.makespan_ns - work == 2 * (ranks - 2)
        assert max(found.peak_bytes) == 2 * ranks
        assert min(found.peak_bytes) == 2 * (ranks // 2 + 1)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(0, 5), STAGE_NS, STAGE_NS, STAGE_NS)
def test_dualpipe_without_pairs_keeps_within_its_formula(half, more, forward, backward, weight):
    """Two operations one after the other send the gradient on as early as a pair would, or earlier."""
    forward = min(forward, backward)
    weight = min(weight, forward)
    both = forward + backward + weight
    formula = (half - 1) * (both + (backward + weight) - 3 * weight)
    ranks = 2 * half
    problem = uniform(Placement.bidirectional(ranks), 2 * ranks + 2 * more, forward, backward, weight)
    found = figures("dualpipe", problem)
    assert found.period_ns - problem.microbatches * both <= max(formula, 0)
    assert max(found.peak_bytes) == 2 * (ranks + 1)
    cut = uniform(Placement.v(half), 2 * half + more, forward, backward, weight)
    found = figures("dualpipe-v", cut)
    assert found.period_ns - work_ns(cut) <= max(formula, 0)
    assert max(found.peak_bytes) == 2 * (2 * half + 1)


@pytest.mark.parametrize(("unit", "both"), [(1, 3), (1, 2), (2, 5), (10, 21), (10, 29)])
@pytest.mark.parametrize("half", [1, 2, 3, 4, 6])
def test_dualpipe_with_pairs(half, unit, both):
    """At F = B = W the middle ranks, which run most apart, idle for what the formula says, with F&B as given."""
    forward = backward = weight = unit
    formula = (half - 1) * (both + (backward + weight) - 3 * weight)
    for name, where, microbatches in (
        ("dualpipe", Placement.bidirectional(2 * half), 4 * half + 6),
        ("dualpipe-v", Placement.v(half), 2 * half + 3),
    ):
        profile = Profile.uniform(
            where.stages,
            forward_ns=forward,
            backward_input_ns=backward,
            backward_weight_ns=weight,
            overlap_ns=both,
        )
        allow = frozenset({"split", "fused", "paired"})
        problem = Problem(profile=profile, placement=where, microbatches=microbatches, allow=allow)
        made = simulate(problem, baseline(name, problem))
        assert sum(timed.op.beside is not None for row in made.rows for timed in row) > 0
        apart = replace(problem, allow=frozenset({"split", "fused"}))
        assert made.order.apart() == baseline(name, apart)
        idle = [made.period_ns - sum(timed.end_ns - timed.start_ns for timed in row) for row in made.rows]
        assert max(idle) == idle[half - 1] == formula


def test_dualpipe_v_is_dualpipe_cut_in_half():
    """The first half of DualPipe's ranks does what the V does, microbatches renumbered."""
    both = uniform(Placement.bidirectional(8), 24)
    whole = baseline("dualpipe", both).rows[:4]
    half = baseline("dualpipe-v", uniform(Placement.v(4), 12)).rows
    for rank, (long, short) in enumerate(zip(whole, half, strict=True)):
        far = 7 - rank
        assert [(op.kind, op.stage, op.microbatch) for op in short] == [
            (op.kind, rank if op.microbatch % 2 == 0 else far, op.microbatch // 2) for op in long
        ]


@pytest.mark.parametrize("waves", [1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_more_waves_divide_the_ramp(ranks, waves):
    for rounds in (1, 2):
        problem = uniform(Placement.wave(ranks, 2 * waves), rounds * ranks, forward=2)
        assert bubble_ns("hanayo", problem) == (ranks - 1) * 4
        assert max(figures("hanayo", problem).peak_bytes) <= 2 * 2 * waves * ranks


def test_hanayo_is_made_for_the_costs():
    """Slow transfers and a slow stage move its order; it is never worse than the one made for equal stages."""
    profile = Profile.uniform(8, forward_ns=10, backward_input_ns=9, backward_weight_ns=4, latency_ns=4)
    problem = Problem(profile=profile, placement=Placement.wave(2, 4), microbatches=6)
    plain = baseline("hanayo", uniform(Placement.wave(2, 4), 6))
    assert figures("hanayo", problem).period_ns <= simulate(problem, plain).period_ns
