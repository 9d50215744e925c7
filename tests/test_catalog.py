from dataclasses import astuple, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.catalog.helpers import bubble_ns, figures, picture, uniform
from tests.solver.instances import INSTANCES
from tests.solver.instances import instance as instance_of
from tests.strategies import placements, problems
from zbsolve.catalog import Schedule, baseline, schedules
from zbsolve.catalog.zero_bubble import greedy_orders
from zbsolve.check import violations
from zbsolve.errors import InvalidInput, ScheduleConditionError
from zbsolve.metrics import metrics
from zbsolve.opgraph import OpGraph
from zbsolve.ops import Kind
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Profile, StageCost
from zbsolve.simulate import Timer, simulate

WHOLE_BACKWARD = ("naive", "gpipe", "1f1b", "eager-1f1b")
ZERO_BUBBLE = ("zb-h1", "zb-h2", "zb-1p", "zb-2p")
NAMES = (*WHOLE_BACKWARD, *ZERO_BUBBLE)


def equal_stages(ranks, *args, **options):
    """`uniform` with one stage a rank."""
    return uniform(Placement.linear(ranks), *args, **options)


# ------------------------------------------------------------------------------ the list


def test_the_catalog_says_where_every_schedule_comes_from():
    assert [schedule.name for schedule in schedules()] == [
        "naive",
        "gpipe",
        "gpipe-recompute",
        "1f1b",
        "eager-1f1b",
        "looped-bfs",
        "torch-looped-bfs",
        "interleaved-1f1b",
        "interleaved-1f1b-grouped",
        "interleaved-zb",
        "zb-h1",
        "zb-h2",
        "zb-1p",
        "zb-2p",
        "zb-v",
        "torch-zb-v",
        "1f1b-v",
        "v-half",
        "v-block",
        "v-min",
        "chimera",
        "dualpipe",
        "dualpipe-v",
        "hanayo",
        "seq-1f1b",
        "seq-zb-h1",
        "forward-only",
    ]
    for schedule in schedules():
        assert isinstance(schedule, Schedule)
        assert schedule.family
        assert schedule.placement in ("any", "linear", "looped", "v", "wave", "bidirectional")
        assert schedule.source
        assert schedule.needs
    assert all("arXiv" in schedule.source for schedule in schedules() if schedule.name != "naive")


def test_an_unknown_name_is_answered_with_the_names():
    with pytest.raises(InvalidInput, match=r"zb-h3.*naive, gpipe, gpipe-recompute, 1f1b, eager-1f1b, looped-bfs"):
        baseline("zb-h3", equal_stages(2, 2))


# ------------------------------------------------------------------------------ pictures


def test_pictures_of_whole_backwards():
    assert picture("naive", equal_stages(3, 2)) == [
        "F0                   BW0   F1                   BW1",
        "   F0          BW0            F1          BW1",
        "      F0 BW0                     F1 BW1",
    ]
    assert picture("gpipe", equal_stages(3, 4)) == [
        "F0 F1 F2 F3                   BW0   BW1   BW2   BW3",
        "   F0 F1 F2 F3          BW0   BW1   BW2   BW3",
        "      F0 F1 F2 F3 BW0   BW1   BW2   BW3",
    ]
    assert picture("1f1b", equal_stages(3, 4)) == [
        "F0 F1 F2             BW0   F3 BW1      BW2      BW3",
        "   F0 F1       BW0   F2 BW1   F3 BW2      BW3",
        "      F0 BW0   F1 BW1   F2 BW2   F3 BW3",
    ]


def test_pictures_of_split_backwards():
    h1 = [
        "F0 F1 F2       B0 W0 F3 B1 W1 F4 B2 W2 B3 W3 B4 W4",
        "   F0 F1    B0 F2 B1 W0 F3 B2 W1 F4 B3 W2 B4 W3 W4",
        "      F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 F4 B4 W2 W3 W4",
    ]
    h2 = [
        "F0 F1 F2 F3 F4 B0 W0 B1 W1 B2 W2 B3 W3 B4 W4",
        "   F0 F1 F2 B0 F3 B1 F4 B2 W0 B3 W1 B4 W2 W3 W4",
        "      F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 W0 W1 W2 W3 W4",
    ]
    problem = equal_stages(3, 5)
    assert picture("zb-h1", problem) == picture("zb-1p", problem) == h1
    assert picture("zb-h2", problem) == picture("zb-2p", problem) == h2


def test_picture_of_several_chunks():
    problem = Problem(profile=equal_stages(4, 1).profile, placement=Placement.v(2), microbatches=2)
    assert picture("gpipe", problem) == [
        "F0 F1       f0 f1 bw0   bw1               BW0   BW1",
        "   F0 F1 f0 f1          bw0   bw1   BW0   BW1",
    ]


# ------------------------------------------------------------------------------ formulas

STAGE_NS = st.integers(1, 40)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 14), STAGE_NS, STAGE_NS, STAGE_NS)
def test_gpipe_and_1f1b_wait_for_the_ramp(ranks, microbatches, forward, backward, weight):
    problem = equal_stages(ranks, microbatches, forward, backward, weight)
    for name in ("gpipe", "1f1b"):
        assert bubble_ns(name, problem) == (ranks - 1) * (forward + backward + weight)
    assert figures("gpipe", problem).peak_bytes == (2 * microbatches,) * ranks
    assert figures("1f1b", problem).peak_bytes == tuple(2 * min(ranks - r, microbatches) for r in range(ranks))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 14), STAGE_NS, STAGE_NS, STAGE_NS)
def test_naive_is_a_chain(ranks, microbatches, forward, backward, weight):
    problem = equal_stages(ranks, microbatches, forward, backward, weight)
    found = figures("naive", problem)
    assert found.period_ns == microbatches * ranks * (forward + backward + weight)
    assert found.peak_bytes == (2,) * ranks


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(0, 9), STAGE_NS, STAGE_NS, STAGE_NS)
def test_zb_h1_fills_the_ramp_with_weight_passes(ranks, more, forward, backward, weight):
    weight = min(weight, forward)
    problem = equal_stages(ranks, ranks + more, forward, backward, weight)
    assert bubble_ns("zb-h1", problem) == (ranks - 1) * (forward + backward - weight)
    assert max(figures("zb-h1", problem).peak_bytes) == 2 * ranks


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(0, 9), STAGE_NS, STAGE_NS, STAGE_NS)
def test_zb_h2_fills_it_twice(ranks, more, forward, backward, weight):
    weight = min(weight, forward, (forward + backward) // 2)
    problem = equal_stages(ranks, 2 * ranks - 1 + more, forward, backward, weight)
    assert bubble_ns("zb-h2", problem) == (ranks - 1) * (forward + backward - 2 * weight)
    assert max(figures("zb-h2", problem).peak_bytes) == 2 * (2 * ranks - 1)


@pytest.mark.parametrize(
    ("instance", "h1", "h2"),
    [("paper-1.5B-p8-m24", 0.1585, 0.1083), ("paper-6.2B-p8-m24", 0.1323, 0.0698)],
)
def test_bubbles_of_the_zero_bubble_paper(instance, h1, h2):
    problem = instance_of(instance)
    assert round(figures("zb-h1", problem).bubble, 4) == h1
    assert round(figures("zb-h2", problem).bubble, 4) == h2


# ------------------------------------------------------------------------------ published figures


def rows_of(instance, *starts):
    return [row for row in instance["reference"] if row["schedule"].startswith(starts)]


@pytest.mark.parametrize("instance", INSTANCES.values(), ids=lambda i: i["name"])
def test_reference_rows_of_1f1b(instance):
    problem = instance_of(instance["name"])
    found = figures("1f1b", problem)
    (row,) = (row for row in instance["reference"] if row["schedule"] == "1F1B")
    assert (found.period_ns, found.makespan_ns) == (row["period_ns"], row["makespan_ns"])


@pytest.mark.parametrize("instance", INSTANCES.values(), ids=lambda i: i["name"])
def test_reference_rows_of_the_greedy(instance):
    """Every published run is one of the sixteen, and the baseline is no worse than the best of them."""
    for name, limit in (("zb-1p", "1x"), ("zb-2p", "2x")):
        rows = [r for r in rows_of(instance, name.upper().replace("P", "p")) if r["memory_limit"] == limit]
        assert rows
        problem = instance_of(instance["name"], limit)
        graph = OpGraph.build(problem)
        timers = [Timer(graph, graph.encode(order)) for _, order in greedy_orders(problem)]
        found = {(timer.period().value_ns, timer.makespan().value_ns) for timer in timers}
        assert {(row["period_ns"], row["makespan_ns"]) for row in rows} <= found
        mine = figures(name, instance_of(instance["name"]))
        assert mine.period_ns == min(found)[0] <= min(row["period_ns"] for row in rows)
        assert all(peak <= limit for peak, limit in zip(mine.peak_bytes, problem.limit_bytes, strict=True))


@pytest.mark.parametrize(("limit", "period_ns"), [(7440, 4846644000), (6200, 6683363000), (4960, 8512766000)])
def test_the_greedy_degenerates_below_1x_as_published(limit, period_ns):
    problem = instance_of("profiled-8stage", limit)
    assert figures("zb-1p", problem).period_ns == figures("zb-2p", problem).period_ns == period_ns


# ------------------------------------------------------------------------------ conditions


@pytest.mark.parametrize("name", ["1f1b", "eager-1f1b", *ZERO_BUBBLE])
def test_several_chunks_are_refused_where_a_schedule_has_one(name):
    problem = Problem(profile=equal_stages(4, 1).profile, placement=Placement.v(2), microbatches=2)
    with pytest.raises(ScheduleConditionError, match=f"{name} .*rank 0 holds stages 0, 3 .*placement v.*; use "):
        baseline(name, problem)


@pytest.mark.parametrize("name", ["1f1b", "eager-1f1b", *ZERO_BUBBLE])
def test_several_routes_are_refused_where_a_schedule_has_one(name):
    problem = Problem(profile=equal_stages(2, 1).profile, placement=Placement.custom([0, 1], [2, 3]), microbatches=4)
    with pytest.raises(ScheduleConditionError, match=f"{name} .*2 routes.*; use "):
        baseline(name, problem)


@pytest.mark.parametrize("name", ZERO_BUBBLE)
def test_fused_backwards_alone_are_refused_by_the_zero_bubble_schedules(name):
    with pytest.raises(ScheduleConditionError, match=f"{name} .*fused.*allow 'split'"):
        baseline(name, equal_stages(2, 2, allow={"fused"}))
    with pytest.raises(ScheduleConditionError, match="the zero-bubble greedy"):
        greedy_orders(equal_stages(2, 2, allow={"fused"}))


def test_whole_backwards_are_fused_where_allowed_and_else_adjacent():
    for name in WHOLE_BACKWARD:
        both = baseline(name, equal_stages(3, 4))
        split = baseline(name, equal_stages(3, 4, allow={"split"}))
        assert {op.kind for row in both.rows for op in row} == {Kind.FORWARD, Kind.BACKWARD}
        assert split.rows == tuple(tuple(part for op in row for part in op.parts) for row in both.rows)


# ------------------------------------------------------------------------------ any problem

ONE_STAGE_A_RANK = st.integers(1, 5).flatmap(lambda n: st.permutations(range(n))).map(Placement.custom)
ALLOW = st.sampled_from([{"split"}, {"fused"}, {"split", "fused"}])


def largest_cost(problem, stage):
    """The largest microbatch: all costs grow with a microbatch's factor."""
    return max((problem.cost(stage, j) for j in range(problem.microbatches)), key=astuple)


def promised_bytes(name, problem):
    """The memory that each schedule promises to keep, by rank, for one stage a rank."""
    (route,) = problem.placement.routes
    ranks, microbatches = len(route), problem.microbatches
    promise = [0] * ranks
    for stage, rank in enumerate(route):
        cost = largest_cost(problem, stage)
        always = cost.static_bytes + cost.workspace_bytes
        whole, most = cost.activation_bytes, max(cost.activation_bytes, cost.backward_weight_bytes)
        if "fused" not in problem.allow:
            whole = most
        growth = most - cost.activation_bytes
        limit = problem.limit_bytes[rank]
        promise[rank] = {
            "naive": always + whole,
            "gpipe": always + microbatches * whole,
            "1f1b": always + min(ranks - stage, microbatches) * whole,
            "eager-1f1b": always + min(2 * (ranks - stage) - 1, microbatches) * whole,
            "zb-h1": always + min(ranks, microbatches) * most,
            "zb-h2": always + min(2 * ranks - 1, microbatches) * most,
            "zb-1p": max(limit or cost.static_bytes + ranks * cost.activation_bytes, always + whole + growth),
            "zb-2p": max(limit or cost.static_bytes + 2 * ranks * cost.activation_bytes, always + whole + growth),
        }[name]
    return promise


@settings(max_examples=150, deadline=None)
@given(problems(placement=ONE_STAGE_A_RANK, most_microbatches=9), st.booleans(), ALLOW, st.data())
def test_every_schedule_is_complete_and_keeps_its_promise(problem, limited, allow, data):
    limits = ["0.1x", "0.5x", "0.75x", "1x", "2x", None]
    if limited:
        given_limits = data.draw(st.tuples(*[st.sampled_from(limits)] * problem.placement.ranks))
        problem = replace(problem, memory_limit=given_limits)
    problem = replace(problem, allow=frozenset(allow))
    unlimited = replace(problem, memory_limit=None)
    for name in NAMES if "split" in allow else WHOLE_BACKWARD:
        order = baseline(name, problem)
        assert violations(unlimited, order) == ()
        timetable = simulate(problem, order)
        assert violations(unlimited, timetable) == ()
        peaks = metrics(timetable).peak_bytes
        assert all(p <= q for p, q in zip(peaks, promised_bytes(name, problem), strict=True)), name


@settings(max_examples=60, deadline=None)
@given(problems(placement=placements(), most_microbatches=6), ALLOW)
def test_sequential_schedules_work_on_every_placement(problem, allow):
    problem = replace(problem, allow=frozenset(allow))
    for name in ("naive", "gpipe"):
        order = baseline(name, problem)
        assert violations(problem, order) == ()
        assert violations(problem, simulate(problem, order)) == ()


@settings(max_examples=80, deadline=None)
@given(problems(placement=ONE_STAGE_A_RANK, most_microbatches=9, limits=True))
def test_greedy_orders_fit_the_limit_and_hold_the_baseline(problem):
    found = greedy_orders(problem)
    assert len({name for name, _ in found}) == len({order for _, order in found}) == len(found) <= 16
    assert all(violations(problem, order) == () for _, order in found)
    best = baseline("zb-1p", problem)
    assert (best in [order for _, order in found]) == (violations(problem, best) == ())


def test_greedy_finds_an_order_wherever_one_microbatch_at_a_time_fits():
    cost = StageCost(
        forward_ns=3,
        backward_input_ns=2,
        backward_weight_ns=4,
        activation_bytes=5,
        backward_weight_bytes=8,
        workspace_bytes=1,
        static_bytes=100,
    )
    problem = Problem(profile=Profile(stages=(cost,) * 4), placement=Placement.linear(4), microbatches=6)
    assert greedy_orders(replace(problem, memory_limit=109))
    assert greedy_orders(replace(problem, memory_limit=108)) == []
    assert max(figures("zb-1p", replace(problem, memory_limit=0)).peak_bytes) == 109


def test_ranks_may_be_numbered_in_any_way():
    linear = equal_stages(4, 6, 3, 2, 1, latency=1)
    route = (2, 0, 3, 1)
    turned = replace(linear, placement=Placement.custom(route))
    for name in NAMES:
        plain, other = baseline(name, linear), baseline(name, turned)
        assert tuple(other.rows[rank] for rank in route) == plain.rows
