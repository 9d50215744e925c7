"""Links on which transfers wait for each other: modelled, timed, judged."""

from __future__ import annotations

import dataclasses
import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle import merges
from tests.strategies import problems, random_order
from zbsolve.bounds.costs import read_costs
from zbsolve.bounds.links import link_load
from zbsolve.check import check, violations
from zbsolve.errors import FileFormatError, OrderError, ProfileError
from zbsolve.files import read_profile_bytes
from zbsolve.files.profile import profile_bytes
from zbsolve.opgraph import OpGraph
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Link, LinkOverride, Profile, StageCost
from zbsolve.simulate import Timer, simulate
from zbsolve.solver import solve
from zbsolve.timetable import Order, TimedOp, Timetable
from zbsolve.transfers import link_spans, queued_transfers

F, BW = Kind.FORWARD, Kind.BACKWARD


def forwards(*, microbatches: int = 3, objective: str = "makespan", **link: object) -> Problem:
    """Two ranks; a forward takes 2 ns and hands 5 bytes on, at a byte per ns unless said otherwise."""
    stage = StageCost(forward_ns=2, backward_input_ns=0, backward_weight_ns=0, output_bytes=5)
    given = {"latency_ns": 1, "bytes_per_second": 10**9, "queueing": "link"} | link
    return Problem(
        profile=Profile(stages=(stage, stage), link=Link(**given)),
        placement=Placement.linear(2),
        microbatches=microbatches,
        objective=objective,
        forward_only=True,
    )


def in_turn(problem: Problem) -> Order:
    return Order(problem.operations())


def starts(problem: Problem, rank: int) -> list[int]:
    return [timed.start_ns for timed in simulate(problem, in_turn(problem)).rows[rank]]


def test_transfers_follow_each_other_on_their_link():
    # F ends at 2, 4, 6; the link is taken 2..7, 7..12, 12..17, and a latency of 1 follows
    assert starts(forwards(), 1) == [8, 13, 18]
    assert starts(forwards(queueing=None), 1) == [8, 10, 12]


def test_the_period_is_no_less_than_what_a_link_is_busy():
    problem = forwards(objective="period")
    timetable = simulate(problem, in_turn(problem))
    assert timetable.period_ns == 15  # three transfers of 5 ns; the ranks need 6 and 12 ns
    assert max(row[-1].end_ns - row[0].start_ns for row in timetable.rows) < 15
    assert violations(problem, timetable, claimed_ns=15) == ()
    assert [v.code for v in violations(problem, timetable, claimed_ns=14)] == ["claim"]


def test_what_leaves_a_rank_may_share_one_way_out():
    stage = StageCost(forward_ns=1, backward_input_ns=1, backward_weight_ns=0, output_bytes=10)
    value = {}
    for how in ("link", "sender"):
        link = Link(bytes_per_second=10**9, queueing=how)
        problem = Problem(
            profile=Profile(stages=(stage,) * 3, link=link),
            placement=Placement.linear(3),
            microbatches=4,
            allow={"fused"},
        )
        rows = [
            [op for j in range(4) for op in (Op(F, s, j), Op(BW, s, j - 2 + s)) if (op.microbatch or 0) >= 0]
            + [Op(BW, s, j) for j in range(2 + s, 4)]
            for s in range(2)
        ]
        rows.append([Op(kind, 2, j) for j in range(4) for kind in (F, BW)])
        order = Order(tuple(tuple(dict.fromkeys(row)) for row in rows))
        timetable = simulate(problem, order)
        check(problem, timetable, claimed_ns=timetable.period_ns)
        value[how] = timetable.period_ns
    assert value["link"] >= 40  # four transfers of 10 ns each way
    assert value["sender"] >= 80  # the middle rank sends four each way


@given(problems(variants=True, queueing=True, recompute=True), st.integers(0, 10**6))
def test_the_judge_takes_what_the_timer_times(problem, seed):
    order = random_order(problem, seed)
    timetable = simulate(problem, order)
    graph = OpGraph.build(problem, order.rows)
    timer = Timer(graph, graph.encode(order))
    times = timer.period() if problem.objective == "period" else timer.makespan()
    value = timetable.period_ns if problem.objective == "period" else timetable.makespan_ns
    assert value == times.value_ns
    check(problem, timetable, claimed_ns=value)


@given(problems(variants=True, queueing=True), st.integers(0, 10**6), st.data())
def test_the_judge_refuses_what_starts_before_its_transfer_is_there(problem, seed, data):
    problem = dataclasses.replace(problem, objective="makespan")
    timetable = simulate(problem, random_order(problem, seed))
    sent = [one for line in queued_transfers(problem, timetable.rows).values() for one in line]
    tight = [one for one in sent if one.arrival_ns == one.needed_ns > 0]
    if not tight:
        return
    one = data.draw(st.sampled_from(tight))
    rows = [
        [TimedOp(t.op, t.start_ns - (t.op == one.head), t.end_ns - (t.op == one.head)) for t in row]
        for row in timetable.rows
    ]
    found = violations(problem, Timetable(problem=problem, rows=rows))
    assert any(v.code == "transfer" and one.head in v.ops for v in found) or one.needed_ns == 0


@given(problems(queueing=True), st.integers(0, 10**6))
def test_without_queueing_nothing_is_later(problem, seed):
    order = random_order(problem, seed)
    bare = dataclasses.replace(
        problem, profile=dataclasses.replace(problem.profile, link=problem.profile.link.without_queueing())
    )
    slow, fast = simulate(problem, order), simulate(bare, order)
    assert fast.period_ns <= slow.period_ns
    assert fast.makespan_ns <= slow.makespan_ns or problem.objective == "period"
    spans = link_spans(problem, slow.rows)
    assert all(span <= slow.period_ns for span in spans.values())


def unrolled(problem: Problem, order: Order, iterations: int) -> list[int]:
    """When the last operation of each iteration ends: everything as soon as possible, links in the order of sending."""
    graph = OpGraph.build(problem, order.rows)
    rows = [row.tolist() for row in graph.encode(order)]
    into = [[] for _ in range(len(graph))]
    for arc, head in enumerate(graph.arc_head.tolist()):
        into[head].append(arc)
    tails, lags = graph.arc_tail.tolist(), graph.arc_lag_ns.tolist()
    links, busy = graph.arc_link.tolist(), graph.arc_busy_ns.tolist()
    free_link, free_rank, ends = [0] * len(graph.links), [0] * len(rows), []
    for _ in range(iterations):
        end, arrival, place = {}, {}, [0] * len(rows)
        while any(at < len(row) for at, row in zip(place, rows, strict=True)):
            for r, row in enumerate(rows):
                while place[r] < len(row) and all(tails[a] in end for a in into[row[place[r]]]):
                    node = row[place[r]]
                    at = max([free_rank[r], *(arrival.get(a, end[tails[a]] + lags[a]) for a in into[node])])
                    free_rank[r] = end[node] = at + int(graph.duration_ns[node])
                    for a in [a for a, tail in enumerate(tails) if tail == node and links[a] >= 0]:
                        free_link[links[a]] = max(free_link[links[a]], end[node]) + busy[a]
                        arrival[a] = free_link[links[a]] + lags[a] - busy[a]
                    place[r] += 1
        ends.append(max(end.values()))
    return ends


@given(problems(queueing=True, most_microbatches=4, objective="period"), st.integers(0, 10**6))
def test_iterations_without_a_barrier_come_at_the_period(problem, seed):
    order = random_order(problem, seed)
    period = simulate(problem, order).period_ns
    ends = unrolled(problem, order, 40)
    # a max-plus system is periodic in the end, with a rhythm of at most as many iterations as there are columns
    rhythm = next(
        k
        for k in range(1, 13)
        if len({b - a for a, b in zip(ends[-14:-k] if k else ends, ends[-14 + k :], strict=False)}) == 1
    )
    assert period == -(-Fraction(ends[-1] - ends[-1 - rhythm], rhythm) // 1)


def test_a_link_without_a_bandwidth_cannot_queue():
    with pytest.raises(ProfileError, match="only for a bandwidth; give bytes_per_second"):
        Link(latency_ns=3, queueing="link")
    with pytest.raises(ProfileError, match="link override: transfers can queue"):
        LinkOverride(sender=0, receiver=1, queueing="sender")
    with pytest.raises(ProfileError, match="'link' or 'sender'"):
        Link(bytes_per_second=1, queueing=True)


def test_files_have_it_where_it_is_used():
    override = LinkOverride(sender=0, receiver=1, bytes_per_second=5, queueing="sender")
    link = Link(latency_ns=1, bytes_per_second=10**9, queueing="link", overrides=(override,))
    profile = Profile(stages=forwards().profile.stages, link=link)
    assert read_profile_bytes(profile_bytes(profile), "x.json") == profile
    assert b"queueing" not in profile_bytes(dataclasses.replace(profile, link=link.without_queueing()))
    broken = profile_bytes(profile).replace(b'"queueing": "link"', b'"queueing": "pair"')
    with pytest.raises(FileFormatError, match=r"\$.link.queueing"):
        read_profile_bytes(broken, "x.json")


def test_the_fingerprint_knows_it_and_is_otherwise_what_it_was():
    digests = [forwards(queueing=how).digest for how in (None, "link", "sender")]
    assert len(set(digests)) == 3
    assert digests[0] == "6bdbf2604edc3a38"


def test_the_graph_says_which_transfers_take_which_link():
    graph = OpGraph.build(forwards())
    assert [str(link) for link in graph.links] == ["0 -> 1"]
    assert graph.arc_link.tolist() == [0, 0, 0]
    assert graph.arc_busy_ns.tolist() == [5, 5, 5]
    assert graph.arc_lag_ns.tolist() == [6, 6, 6]
    assert OpGraph.build(forwards(queueing=None)).links == ()
    shared = OpGraph.build(forwards(queueing="sender"))
    assert [str(link) for link in shared.links] == ["out of rank 0"]


def test_transfers_of_a_timetable():
    problem = forwards()
    timetable = simulate(problem, in_turn(problem))
    [(link, sent)] = queued_transfers(problem, timetable.rows).items()
    assert link == (0, 1)
    assert [(one.start_ns, one.end_ns, one.arrival_ns, one.behind) for one in sent] == [
        (2, 7, 8, None),
        (7, 12, 13, 0),
        (12, 17, 18, 1),
    ]
    assert [one.waited_ns for one in sent] == [0, 3, 6]
    assert all(one.needed_ns == one.arrival_ns for one in sent)
    assert [a.end_ns for a, b in itertools.pairwise(sent)] == [b.start_ns for a, b in itertools.pairwise(sent)]


def there_and_back(microbatches: int, transfer_ns: int, latency_ns: int, *costs: int, **changes: object) -> Problem:
    f, b, w = costs
    stage = StageCost(forward_ns=f, backward_input_ns=b, backward_weight_ns=w, output_bytes=transfer_ns)
    link = Link(latency_ns=latency_ns, bytes_per_second=10**9, queueing="link")
    given = {"placement": Placement.linear(2), "microbatches": microbatches} | changes
    return Problem(profile=Profile(stages=(stage, stage), link=link), **given)


def test_a_rank_waits_from_its_first_forward_until_the_last_gradient_is_back():
    problem = there_and_back(4, 30, 0, 10, 10, 10)
    assert link_load(read_costs(problem)) == 10 + 4 * 30 + 20 + 30 + 20
    solution = solve(problem, work_limit=2_000, workers=1)
    assert (solution.value_ns, solution.status) == (200, "optimal")


def best_of_all(problem: Problem) -> int:
    """The least period of all orders for two microbatches."""
    rows = []
    for stage in range(2):
        chains = [[Op(kind, stage, j) for kind in (F, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)] for j in range(2)]
        rows.append(list(merges(chains)))
    values = []
    for order in map(Order, itertools.product(*rows)):
        try:
            values.append(simulate(problem, order).period_ns)
        except OrderError:
            continue
    return min(values)


@pytest.mark.parametrize(
    ("transfer_ns", "latency_ns", "costs"),
    [(9, 0, (3, 2, 1)), (5, 4, (1, 1, 1)), (2, 1, (3, 5, 2)), (20, 3, (1, 7, 0))],
)
def test_the_way_round_is_no_more_than_the_best_of_all_orders_takes(transfer_ns, latency_ns, costs):
    problem = there_and_back(2, transfer_ns, latency_ns, *costs, allow=frozenset({"split"}))
    assert link_load(read_costs(problem)) <= best_of_all(problem)


@given(problems(queueing=True, variants=True), st.integers(0, 10**6))
def test_no_order_is_faster_than_its_links_allow(problem, seed):
    problem = dataclasses.replace(problem, objective="period")
    assert link_load(read_costs(problem)) <= simulate(problem, random_order(problem, seed)).period_ns
