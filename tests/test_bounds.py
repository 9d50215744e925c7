"""Bounds against exact optima, published figures, and each other."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracle import every_order, objective_of, optimum, tiny_problem, value_within_limits
from tests.solver.instances import INSTANCES, instance
from tests.strategies import problems, random_order
from zbsolve.bounds import lower_bound, lower_bounds, smallest_limits
from zbsolve.errors import Infeasible
from zbsolve.metrics import peak_bytes
from zbsolve.opgraph import OpGraph
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Link, Profile, StageCost
from zbsolve.timetable import Order

SIZES = ((1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 2), (2, 2), (3, 1), (3, 2))


def equal_stages(
    ranks: int, microbatches: int, f: int, b: int, w: int, memory: int | str | None = None, **costs: int
) -> Problem:
    profile = Profile.uniform(ranks, forward_ns=f, backward_input_ns=b, backward_weight_ns=w, **costs)
    return Problem(profile=profile, placement=Placement.linear(ranks), microbatches=microbatches, memory_limit=memory)


def values(problem: Problem, **given: int) -> dict[str, int]:
    return {bound.name: bound.value_ns for bound in lower_bounds(problem, **given)}


def check_against_optimum(problem: Problem) -> bool | None:
    """Whether the best bound is the optimum; None where nothing fits."""
    found = optimum(problem)
    if found is None:
        with pytest.raises(Infeasible) as caught:
            lower_bounds(problem)
        assert caught.value.smallest_limit_bytes == smallest_limits(problem)
        return None
    bounds = lower_bounds(problem)
    value, order = found
    assert objective_of(problem, order) == value == value_within_limits(problem, order)
    for bound in bounds:
        assert bound.value_ns <= value, (bound, value, problem)
    assert [b.value_ns for b in bounds] == sorted((b.value_ns for b in bounds), reverse=True)
    return bounds[0].value_ns == value


@pytest.mark.parametrize("block", range(14))
@pytest.mark.parametrize("limit_above", [None, 3, 8])
def test_never_above_the_optimum(block, limit_above):
    rng = random.Random(f"{block} {limit_above}")
    verdicts = [check_against_optimum(tiny_problem(rng, limit_above, sizes=SIZES)) for _ in range(50)]
    assert None not in verdicts
    assert sum(verdicts) >= 0.9 * len(verdicts)  # and not toothless


@pytest.mark.parametrize("block", range(4))
@pytest.mark.parametrize("choices", ["split", "split fused", "fused"])
def test_never_above_the_optimum_of_three_microbatches(block, choices):
    rng = random.Random(f"three {block} {choices}")
    sizes = ((2, 3), (3, 3)) if choices == "fused" else ((2, 3),)
    for _ in range(60 if choices == "fused" else 20 if choices == "split" else 4):
        problem = replace(tiny_problem(rng, None, sizes=sizes), allow=frozenset(choices.split()))
        above = rng.choice((0, 0, 1, 3, 6))
        limits = tuple(limit + rng.randint(0, above) for limit in smallest_limits(problem))
        assert check_against_optimum(replace(problem, memory_limit=limits)) is not None


def test_an_infeasible_limit_is_seen_exactly_where_no_order_fits():
    rng = random.Random(7)
    verdicts = [check_against_optimum(tiny_problem(rng, -1, sizes=SIZES)) for _ in range(200)]
    assert 30 < verdicts.count(None) < 170


@pytest.mark.parametrize("seed", range(12))
def test_first_in_first_out_loses_nothing(seed):
    rng = random.Random(seed)
    choices = [("split",), ("fused",), ("split", "fused")][seed % 3]
    sizes = ((2, 2), (1, 3)) if len(choices) == 1 else ((1, 2),)
    problem = replace(tiny_problem(rng, None, sizes=sizes), allow=frozenset(choices))
    problem = replace(problem, memory_limit=tuple(x + rng.randint(0, 5) for x in smallest_limits(problem)))
    found = optimum(problem)
    assert found is not None
    assert found[0] == every_order(problem)


@settings(max_examples=150, deadline=None)
@given(problems(), st.integers(0, 2**32))
def test_no_order_on_any_placement_beats_a_bound(problem, seed):
    order = random_order(problem, seed)
    graph = OpGraph.build(problem, order.rows)
    peaks = peak_bytes(graph, graph.encode(order))
    assert all(peak >= least for peak, least in zip(peaks, smallest_limits(problem), strict=True))
    limited = replace(problem, memory_limit=peaks)
    value = objective_of(limited, order)
    for bound in (*lower_bounds(problem), *lower_bounds(limited)):
        assert bound.value_ns <= value


@settings(max_examples=150, deadline=None)
@given(problems())
def test_one_microbatch_at_a_time_needs_just_the_smallest_limits(problem):
    rows: list[list[Op]] = [[] for _ in range(problem.placement.ranks)]
    for j in range(problem.microbatches):
        ops = [Op(Kind.FORWARD, s, j) for s in range(problem.placement.stages)]
        for s in reversed(range(problem.placement.stages)):
            if "fused" in problem.allow:
                ops.append(Op(Kind.BACKWARD, s, j))
            else:
                ops += [Op(Kind.BACKWARD_INPUT, s, j), Op(Kind.BACKWARD_WEIGHT, s, j)]
        for op in ops:
            rows[problem.rank_of(op)].append(op)
    order = Order(tuple(tuple(row) for row in rows))
    least = smallest_limits(problem)
    graph = OpGraph.build(problem, order.rows)
    assert peak_bytes(graph, graph.encode(order)) == least
    limited = replace(problem, memory_limit=least)
    assert lower_bound(limited).value_ns <= objective_of(limited, order)
    for rank in range(problem.placement.ranks):
        if least[rank]:
            less = tuple(limit - (r == rank) for r, limit in enumerate(least))
            with pytest.raises(Infeasible, match=f"rank {rank} may use {less[rank]} bytes") as caught:
                lower_bounds(replace(problem, memory_limit=less))
            assert caught.value.smallest_limit_bytes == least


def test_smallest_limits_where_splitting_is_the_only_choice_and_costs_memory():
    profile = Profile.uniform(
        2, forward_ns=1, backward_input_ns=1, backward_weight_ns=1,
        activation_bytes=4, backward_weight_bytes=7, workspace_bytes=2, static_bytes=10,
    )  # fmt: skip
    both = Problem(profile=profile, placement=Placement.linear(2), microbatches=3)
    assert smallest_limits(both) == (16, 16)
    assert smallest_limits(replace(both, allow=frozenset({"split"}))) == (19, 19)
    on_one = replace(both, placement=Placement.custom([0, 0]))
    assert smallest_limits(on_one) == (30,)  # two stages: 20 static, 4 + 4 held, workspace of the second
    assert smallest_limits(replace(on_one, allow=frozenset({"split"}))) == (33,)


def assert_no_higher(after: dict[str, int], before: dict[str, int]) -> None:
    """Name by name; a bound that did not apply before is held against the best of then."""
    assert all(value <= before.get(name, max(before.values())) for name, value in after.items())


@pytest.mark.parametrize("block", range(6))
def test_more_memory_never_raises_a_bound(block):
    rng = random.Random(f"monotone {block}")
    for _ in range(25):
        problem = tiny_problem(rng, None, sizes=((2, 3), (3, 4), (4, 5), (3, 7)))
        limits = smallest_limits(problem)
        before = values(replace(problem, memory_limit=limits))
        for _ in range(5):
            limits = tuple(limit + rng.randint(0, 4) for limit in limits)
            after = values(replace(problem, memory_limit=limits))
            assert_no_higher(after, before)
            before = after
        assert_no_higher(values(problem), before)


@pytest.mark.parametrize("block", range(4))
def test_scaling_costs_scales_bounds(block):
    rng = random.Random(f"scale {block}")
    for _ in range(25):
        problem = tiny_problem(rng, 6, sizes=((2, 3), (3, 4), (4, 5)))
        times, sizes = rng.randint(2, 9), rng.randint(2, 9)
        stages = tuple(
            replace(
                s,
                **{name: getattr(s, name) * times for name in FIELDS_NS},
                **{name: getattr(s, name) * sizes for name in FIELDS_BYTES},
            )
            for s in problem.profile.stages
        )
        link = Link(latency_ns=problem.profile.link.latency_ns)
        plain = replace(problem, profile=replace(problem.profile, link=link), rank_factors=None)
        scaled = replace(
            plain,
            profile=Profile(stages=stages, link=Link(latency_ns=times * link.latency_ns)),
            memory_limit=tuple(limit * sizes for limit in problem.limit_bytes),
        )
        before, after = values(plain), values(scaled)
        assert before.keys() == after.keys()
        for name, value in before.items():
            if name == "memory-time":  # rounded up to a whole ns after the scaling
                assert times * (value - 1) < after[name] <= times * value
            else:
                assert after[name] == times * value


FIELDS_NS = ("forward_ns", "backward_input_ns", "backward_weight_ns", "backward_ns")
FIELDS_BYTES = ("activation_bytes", "backward_weight_bytes", "workspace_bytes", "static_bytes")


@pytest.mark.parametrize("block", range(3))
def test_counting_is_at_least_two_phase_and_relay(block):
    rng = random.Random(f"order {block}")
    for _ in range(40):
        found = values(tiny_problem(rng, rng.choice((None, 4, 9)), sizes=((2, 4), (3, 5), (4, 6))))
        assert found["counting"] >= max(found["two-phase"], found["relay"], found["load"])


@pytest.mark.parametrize(("f", "b", "w"), [(1, 1, 1), (5, 6, 4), (10, 10, 3)])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_zb_h1_is_optimal_at_equal_stages(ranks, f, b, w):
    """At K = p and zero latency the bubble is at least (p - 1)(F + B - W), which ZB-H1 attains."""
    problem = equal_stages(ranks, 3 * ranks, f, b, w, "1x", activation_bytes=2, backward_weight_bytes=1)
    assert values(problem)["two-phase"] == 3 * ranks * (f + b + w) + (ranks - 1) * (f + b - w)
    row = []
    for r in range(ranks):
        ops = [Op(Kind.FORWARD, r, j) for j in range(ranks - r)]
        for j in range(3 * ranks):
            ops.append(Op(Kind.BACKWARD_INPUT, r, j))
            ops += [Op(Kind.BACKWARD_WEIGHT, r, j - r)] if j >= r else []
            ops += [Op(Kind.FORWARD, r, j + ranks - r)] if j + ranks - r < 3 * ranks else []
        row.append((*ops, *(Op(Kind.BACKWARD_WEIGHT, r, j) for j in range(3 * ranks - r, 3 * ranks))))
    if f == b == w:
        assert value_within_limits(problem, Order(tuple(row))) == lower_bound(problem).value_ns


def test_fused_backwards_alone_leave_the_bubble_of_1f1b():
    problem = replace(equal_stages(4, 12, 3, 4, 2, "1x", activation_bytes=1), allow=frozenset({"fused"}))
    assert lower_bound(problem).value_ns == 12 * 9 + 3 * 9


@pytest.mark.parametrize("name", sorted(name for name in INSTANCES if name.startswith(("paper-", "unit-"))))
def test_the_published_zb_1p_equals_the_bound(name):
    reference = {row["schedule"]: row["period_ns"] for row in INSTANCES[name]["reference"]}
    bounds = values(instance(name, "1x"))
    assert max(bounds.values()) == bounds["two-phase"] == reference["ZB-1p"]


@pytest.mark.parametrize("name", sorted(name for name, i in INSTANCES.items() if i["ranks"] * i["microbatches"] <= 256))
@pytest.mark.parametrize("objective", ["period", "makespan"])
def test_no_published_schedule_beats_a_bound(name, objective):
    best: dict[str, int] = {}
    for row in INSTANCES[name]["reference"]:
        if row["schedule"].split()[0] in {"ZB-1p", "ZB-2p", "1F1B"}:  # the others use several chunks
            best[row["peak"]] = min(best.get(row["peak"], 2**62), row[f"{objective}_ns"])
    assert best
    for peak, value in best.items():
        problem = replace(instance(name, peak), objective=objective)
        rounded = tuple(limit + 1 + limit // 1000 for limit in problem.limit_bytes)  # the file's peaks have four digits
        assert lower_bound(replace(problem, memory_limit=rounded)).value_ns <= value


@pytest.mark.parametrize(
    ("name", "memory", "least", "best_known"),
    [
        ("profiled-8stage", 7440, 3_623_744_000, 3_623_744_000),
        ("profiled-8stage", 6200, 3_700_193_000, 3_700_193_000),
        ("profiled-8stage", 4960, 3_898_655_000, 4_244_308_000),
        ("profiled-8stage", 3720, 5_267_626_000, 5_864_958_000),
        ("paper-1.5B-p8-m24", "0.5x", 2_001_525_000, 2_099_145_000),
        ("paper-1.5B-p8-m24", "0.75x", 1_472_185_000, 1_527_929_000),
        ("paper-1.5B-p8-m24", "0.9x", 1_355_174_000, 1_377_891_000),
        ("paper-1.5B-p8-m24", "1x", 1_310_405_000, 1_310_405_000),
        ("paper-1.5B-p8-m24", "1.25x", 1_218_515_000, 1_226_676_000),
        ("paper-1.5B-p8-m24", "1.5x", 1_163_608_000, 1_163_608_000),
        ("paper-1.5B-p8-m24", "2x", 1_152_599_000, 1_152_599_000),
        ("unit-p8-m24", "0.5x", 111_000_000, 115_000_000),
        ("unit-p8-m24", "0.75x", 85_000_000, 85_000_000),
        ("unit-p8-m24", "0.9x", 82_000_000, 82_000_000),
        ("random25pct_s0_p8", "1x", 79_036_000, 79_036_000),
        ("random25pct_s1_p8", "1x", 77_510_000, 78_339_000),
        ("random25pct_s2_p8", "1x", 86_152_000, 86_152_000),
        ("mid_slow_p8", "1x", 96_000_000, 96_000_000),
    ],
)
def test_between_known_bounds_and_known_timetables(name, memory, least, best_known):
    assert least <= lower_bound(instance(name, memory)).value_ns <= best_known


def test_two_phase_by_itself_at_twice_the_memory():
    problem = instance("paper-1.5B-p8-m24", "2x")
    assert values(problem)["two-phase"] == 1_102_680_000


def test_one_microbatch_is_a_chain():
    profile = Profile(
        stages=(
            StageCost(forward_ns=3, backward_input_ns=4, backward_weight_ns=5),
            StageCost(forward_ns=6, backward_input_ns=7, backward_weight_ns=80, backward_ns=50),
        ),
        link=Link(latency_ns=2),
    )
    problem = Problem(profile=profile, placement=Placement.linear(2), microbatches=1)
    assert lower_bound(problem).value_ns == 6 + 50
    found = values(replace(problem, profile=replace(profile, link=Link(latency_ns=40))))
    assert max(found.values()) == found["chain"] == 3 + 40 + 6 + 7 + 40 + 9
    makespan = values(replace(problem, objective="makespan"))
    assert max(makespan.values()) == makespan["chain"] == 3 + 2 + 6 + min(7 + 80, 50 + 2 + 9)


def test_weights_that_keep_nothing_may_all_be_left_for_later():
    """No bytes limit them, so they fill the idle time that others could not."""
    kept = equal_stages(4, 12, 1, 1, 1, "1x", activation_bytes=2, backward_weight_bytes=1)
    free = equal_stages(4, 12, 1, 1, 1, "1x", activation_bytes=2, backward_weight_bytes=0)
    assert lower_bound(kept).value_ns == 36 + 3
    assert values(free)["two-phase"] == 36 + 3  # the fill still waits; the drain does not
    assert values(replace(free, memory_limit="2x"))["two-phase"] == 36


def test_a_backward_that_needs_more_than_its_forward_held_keeps_others_out():
    """Three forwards would fit, but then no B could ever start: one microbatch at a time."""
    problem = equal_stages(2, 4, 1, 1, 1, 3, latency_ns=4, activation_bytes=1, backward_weight_bytes=3)
    problem = replace(problem, allow=frozenset({"split"}))
    found = optimum(problem)
    assert found is not None
    assert lower_bound(problem).value_ns == found[0] == 4 * (1 + 4 + 1 + 1 + 4 + 1 + 1)
    assert lower_bound(replace(problem, allow=frozenset({"split", "fused"}))).value_ns < found[0]


def test_static_and_workspace_bytes_are_not_room():
    lean = equal_stages(4, 12, 1, 1, 1, 8, activation_bytes=2, backward_weight_bytes=1)
    fat = equal_stages(
        4, 12, 1, 1, 1, 115, activation_bytes=2, backward_weight_bytes=1, static_bytes=100, workspace_bytes=7
    )
    assert values(lean) == values(fat)


def test_a_split_that_cannot_fit_is_not_counted_on():
    """B would be quick, but what it keeps is larger than the limit: only the slow fused backward remains."""
    problem = equal_stages(1, 4, 1, 1, 1, 5, backward_ns=9, activation_bytes=2, backward_weight_bytes=6)
    assert lower_bound(problem).value_ns == 4 * 10
    assert lower_bound(replace(problem, memory_limit=6)).value_ns == 4 * 3
    with pytest.raises(Infeasible, match="even one microbatch at a time needs 6 bytes"):
        lower_bounds(replace(problem, allow=frozenset({"split"})))


def test_the_makespan_adds_what_comes_before_and_after():
    problem = replace(equal_stages(4, 6, 2, 3, 1, latency_ns=5), objective="makespan")
    period, makespan = values(replace(problem, objective="period")), values(problem)
    assert all(value <= makespan[name] for name, value in period.items())
    head, tail = 3 * (2 + 5), 3 * (5 + 3) + 1
    assert makespan["head-tail"] == head + 6 * (2 + 3) + tail


@pytest.mark.parametrize("block", range(3))
def test_a_bound_of_the_period_bounds_the_makespan(block):
    rng = random.Random(f"objectives {block}")
    for _ in range(40):
        problem = tiny_problem(rng, rng.choice((None, 4, 9)), sizes=((2, 4), (3, 5), (4, 6)))
        period = values(replace(problem, objective="period"))
        makespan = values(replace(problem, objective="makespan"))
        assert_no_higher(period, makespan)


def test_work_that_fusing_does_away_with_leaves_a_bound_of_zero():
    problem = equal_stages(2, 3, 0, 0, 5, backward_ns=0)
    assert [(bound.name, bound.value_ns) for bound in lower_bounds(problem)] == [("load", 0)]


def test_too_large_for_all_ranks_still_counts_the_most_promising():
    problem = instance("paper-1.5B-p8-m24", "0.5x")
    full = values(problem)
    some = values(problem, most_effort=300)
    assert max(some["two-phase"], some["memory-time"]) < some["counting"] <= full["counting"]
    assert values(replace(problem, objective="makespan"), most_effort=300)["counting"] >= some["counting"]
    assert "counting" not in values(problem, most_effort=10)


def test_numbers_near_the_largest_do_not_overflow():
    small = equal_stages(2, 3, 5, 7, 3, "1x", activation_bytes=2, backward_weight_bytes=1)
    factor = 2**55
    huge = equal_stages(
        2, 3, 5 * factor, 7 * factor, 3 * factor, "1x", activation_bytes=2 * factor, backward_weight_bytes=factor
    )
    before, after = values(small), values(huge)
    for name in ("load", "chain", "two-phase", "relay"):
        assert after[name] == before[name] * factor
    for objective in ("period", "makespan"):
        value_by_hand = lower_bound(replace(small, objective=objective)).value_ns
        assert lower_bound(replace(huge, objective=objective)).value_ns <= value_by_hand * factor


def test_several_chunks_and_routes_have_load_and_chain():
    profile = Profile.uniform(4, forward_ns=1, backward_input_ns=2, backward_weight_ns=3, latency_ns=1)
    v = Problem(profile=profile, placement=Placement.v(2), microbatches=5)
    assert values(v) == {"load": 60, "two-phase": 60, "chain": 4 + 8 + 3 + 4}
    both = Problem(profile=profile, placement=Placement.bidirectional(4), microbatches=3)
    assert values(both)["load"] == 3 * 6
    unused = Problem(profile=profile, placement=Placement.custom([0, 1, 2, 3], [4, 1, 2, 3]), microbatches=1)
    assert lower_bound(replace(unused, objective="makespan")).name in {"chain", "head-tail"}


def test_two_phases_of_a_rank_with_two_chunks():
    profile = Profile.uniform(
        8, forward_ns=1, backward_input_ns=1, backward_weight_ns=1, activation_bytes=2, backward_weight_bytes=1
    )
    v = Problem(profile=profile, placement=Placement.v(4), microbatches=8, memory_limit="0.5x")
    # four F's fit before the first gradient, which takes 8; back at the top after 7 more, 2 + 4 of them with work
    assert values(v)["two-phase"] == 48 + (8 - 4) + (7 - 2 - 4)
    assert values(replace(v, memory_limit="1x"))["two-phase"] == 48
