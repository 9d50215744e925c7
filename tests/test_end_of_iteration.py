"""Reductions of gradients and optimizers inside the iteration, from the model to the solver."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracle import merges, value_within_limits
from tests.strategies import placements, problems, random_order
from zbsolve.bounds import lower_bounds
from zbsolve.catalog import baseline, schedules
from zbsolve.catalog.closing import closed, open_ended
from zbsolve.check import violations
from zbsolve.draw.terminal import gantt
from zbsolve.errors import OrderError, ScheduleConditionError
from zbsolve.files import read_timetable_bytes, timetable_bytes
from zbsolve.interop.torch import write_torch_csv
from zbsolve.lowering import Do, lower, verify
from zbsolve.metrics import memory_curve, metrics
from zbsolve.opgraph import OpGraph
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Link, Profile, StageCost
from zbsolve.simulate import simulate
from zbsolve.solver import solve
from zbsolve.solver.case import Case
from zbsolve.solver.certificate import verify_bound
from zbsolve.solver.compiled import plain
from zbsolve.solver.kernels import Arrays, makespan, period, sequence_of
from zbsolve.solver.network import order_of as read_back
from zbsolve.timetable import Order, TimedOp, Timetable

REDUCE, OPTIMIZE = Kind.REDUCE_GRADIENT, Kind.OPTIMIZER


def asked(placement=None, microbatches=3, reduce=5, optimizer=2, **changes) -> Problem:
    placement = placement or Placement.linear(2)
    cost = StageCost(
        forward_ns=1,
        backward_input_ns=1,
        backward_weight_ns=1,
        activation_bytes=2,
        backward_weight_bytes=1,
        workspace_bytes=3,
        grad_reduce_ns=reduce,
        optimizer_ns=optimizer,
    )
    return Problem(
        profile=Profile(stages=(cost,) * placement.stages), placement=placement, microbatches=microbatches, **changes
    )


def end_of(timetable: Timetable, rank: int = 0) -> list[tuple[str, int, int]]:
    return [(t.op.kind.letter, t.start_ns, t.end_ns) for t in timetable.rows[rank] if t.op.microbatch is None]


def test_the_reduction_follows_the_last_weight_gradient_and_the_optimizer_follows_it():
    problem = asked()
    timetable = simulate(problem, baseline("1f1b", problem))
    last = timetable.rows[0][-3].end_ns
    assert end_of(timetable) == [("R", last, last + 5), ("O", last + 5, last + 7)]
    bare = open_ended(problem)
    assert timetable.period_ns == simulate(bare, baseline("1f1b", bare)).period_ns + 7
    assert violations(problem, timetable, claimed_ns=timetable.period_ns) == ()


def test_the_reduction_runs_beside_what_the_rank_still_computes():
    problem = asked(Placement.looped(1, 2), microbatches=1, reduce=4, optimizer=1)
    rows = ("F0@0 F0@1 BW0@1 R@1 BW0@0 R@0 O@1 O@0",)
    timetable = simulate(problem, order_of(rows))
    # F F BW at 0..4, the reduction of stage 1 beside BW of stage 0 at 4..6, that of stage 0 after it
    assert [(t.start_ns, t.end_ns) for t in timetable.rows[0][2:]] == [
        (2, 4),
        (4, 8),
        (4, 6),
        (8, 12),
        (8, 9),
        (12, 13),
    ]
    assert timetable.period_ns == timetable.makespan_ns == 13
    figures = metrics(timetable)
    assert figures.compute_ns == 8  # the network does not compute
    assert figures.peak_bytes == (7,)
    assert [time for time, _ in memory_curve(timetable)[0]] == sorted(time for time, _ in memory_curve(timetable)[0])


def order_of(rows) -> Order:
    kinds = {kind.letter: kind for kind in Kind}
    made = []
    for row in rows:
        ops = []
        for word in row.split():
            name, stage = word.split("@")
            letter = name.rstrip("0123456789")
            ops.append(Op(kinds[letter], int(stage), int(name[len(letter) :]) if name != letter else None))
        made.append(tuple(ops))
    return Order(tuple(made))


def test_replicas_wait_for_each_other():
    problem = asked(Placement.bidirectional(2), microbatches=2, reduce=3, optimizer=1)
    timetable = simulate(problem, baseline("gpipe", problem))
    ends = [[t for t in row if t.op.microbatch is None] for row in timetable.rows]
    for stage in range(2):
        complete = max(
            t.end_ns for row in timetable.rows for t in row if t.op.stage == stage and t.op.kind is Kind.BACKWARD
        )
        for row in ends:
            (reduction,) = (t for t in row if t.op == Op(REDUCE, stage, None))
            assert reduction.start_ns >= complete
    assert violations(problem, timetable) == ()


@pytest.mark.parametrize(
    ("reduce", "optimizer", "kinds"),
    [(0, 0, []), (0, 2, [OPTIMIZE]), (5, 0, [REDUCE, OPTIMIZE]), (5, 2, [REDUCE, OPTIMIZE])],
    ids=str,
)
def test_what_an_iteration_ends_with(reduce, optimizer, kinds):
    problem = asked(Placement.linear(1), reduce=reduce, optimizer=optimizer)
    assert [op.kind for op in problem.operations()[0] if op.microbatch is None] == kinds
    assert [op.kind for op in baseline("1f1b", problem).rows[0] if op.microbatch is None] == kinds


def test_a_slow_rank_has_a_slow_optimizer_and_a_network_like_the_others():
    problem = asked(rank_factors=(1, 3), microbatch_factors=(1, 2, 2))
    assert [(o[2] - o[1]) for o in end_of(simulate(problem, baseline("1f1b", problem)), 1)] == [5, 6]
    assert problem.cost(1, None, rank=1).optimizer_ns == 6


@pytest.mark.parametrize(
    ("rows", "said", "code"),
    [
        (
            ("F0@0 BW0@0 R@0 O@0", "F0@1 BW0@1 R@1"),
            "optimizer of stage 1 on rank 1 must be done exactly once",
            "missing",
        ),
        (("F0@0 BW0@0 R@0 O@0 O@1", "F0@1 BW0@1 R@1 O@1"), "where that stage does not lie", "misplaced"),
        (("F0@0 BW0@0 R@0 R@0 O@0", "F0@1 BW0@1 R@1 O@1"), "is done 2 times", "duplicate"),
        (("F0@0 R@0 BW0@0 O@0", "F0@1 BW0@1 R@1 O@1"), "stands ahead of BW0 of stage 0", "precedence"),
        (("F0@0 BW0@0 O@0 R@0", "F0@1 BW0@1 R@1 O@1"), "can never finish", "precedence"),
        (("F0@0 BW0@0 R0@0 O@0", "F0@1 BW0@1 R@1 O@1"), "is not an operation of this problem", "unknown"),
        (("F0@0 BW0@0 R@0 O@2", "F0@1 BW0@1 R@1 O@1"), "is not an operation of this problem", "unknown"),
    ],
)
def test_what_is_wrong_is_seen_by_graph_and_judge(rows, said, code):
    problem = asked(microbatches=1)
    with pytest.raises(OrderError, match=said):
        simulate(problem, order_of(rows))
    assert code in {v.code for v in violations(problem, order_of(rows))}


def test_the_network_of_a_rank_runs_one_reduction_at_a_time_and_not_before_its_turn():
    problem = asked(Placement.looped(1, 2), microbatches=1, reduce=4, optimizer=1)
    good = simulate(problem, order_of(("F0@0 F0@1 BW0@1 BW0@0 R@1 R@0 O@1 O@0",)))
    assert violations(problem, good) == ()
    for at, start, codes in ((4, 4, {"row_order"}), (5, 8, {"overlap"}), (6, 8, {"precedence"})):
        row = list(good.rows[0])
        row[at] = TimedOp(row[at].op, start, start + row[at].end_ns - row[at].start_ns)
        assert codes <= {v.code for v in violations(problem, replace(good, rows=(tuple(row),)))}


@settings(max_examples=60, deadline=None)
@given(problem=problems(variants=True), seed=st.integers(0, 2**32))
def test_all_ways_of_timing_agree_and_no_order_beats_a_bound(problem, seed):
    # the search sees them folded away
    problem = replace(problem, allow=problem.allow - {"recompute", "offload", "paired"})
    order = random_order(problem, seed)
    timetable = simulate(problem, order)
    value = timetable.period_ns if problem.objective == "period" else timetable.makespan_ns
    assert max(bound.value_ns for bound in lower_bounds(problem)) <= value
    graph = OpGraph.build(problem, order.rows)
    arrays = Arrays.of(graph)
    sequence = sequence_of(arrays, graph.by_lane(graph.encode(order)))
    lighter = period(arrays, sequence)[0] if problem.objective == "period" else makespan(arrays, sequence)
    visited = {problem.placement.routes[r][s] for r in problem.route_of for s in range(problem.placement.stages)}
    # issued early a reduction waits for what stands ahead of it in its row, which these do not know
    assert lighter <= value
    case = Case(problem, plain())
    unfolded = [column.tolist() for column in case.unfold(graph, sequence)]
    assert case.read(read_back(problem, *unfolded)).value_ns == case.read(order).value_ns
    found = case.read(order)
    if len(visited) == problem.placement.ranks:
        assert found.value_ns == lighter
        again = simulate(problem, read_back(problem, found.sequence.tolist(), found.fused.tolist()))
        assert (again.period_ns if problem.objective == "period" else again.makespan_ns) == found.value_ns


@settings(max_examples=40, deadline=None)
@given(problem=problems(placement=placements(), most_microbatches=4, variants=True))
def test_every_schedule_ends_right(problem):
    if problem.forward_only:
        return
    for schedule in schedules():
        try:
            order = baseline(schedule.name, problem)
        except ScheduleConditionError:
            continue
        assert violations(problem, simulate(problem, order)) == (), schedule.name
        assert closed(problem, order) == order
        verify(lower(simulate(problem, order)))


def every_end(problem: Problem) -> int:
    """The least value over all orders of one stage a rank, with one microbatch after the other."""
    best = None
    ways = [("F", "BW"), ("F", "B", "W")]
    singles = []
    for stage in range(problem.placement.stages):
        rows = []
        for choice in itertools.product(ways, repeat=problem.microbatches):
            rows += merges([[f"{k}{j}@{stage}" for k in way] for j, way in enumerate(choice)])
        singles.append([f"{' '.join(row)} R@{stage} O@{stage}" for row in rows])
    for rows in itertools.product(*singles):
        value = value_within_limits(problem, order_of(rows))
        if value is not None and (best is None or value < best):
            best = value
    return best


def test_the_solver_finds_the_best_of_all_orders():
    rng = random.Random(2)
    for objective in ("period", "makespan"):
        for _ in range(4):
            stages = tuple(
                StageCost(
                    forward_ns=rng.randint(1, 4),
                    backward_input_ns=rng.randint(1, 4),
                    backward_weight_ns=rng.randint(0, 4),
                    grad_reduce_ns=rng.randint(1, 5),
                    optimizer_ns=rng.randint(0, 5),
                )
                for _ in range(2)
            )
            problem = Problem(
                profile=Profile(stages=stages, link=Link(latency_ns=rng.randint(0, 2))),
                placement=Placement.linear(2),
                microbatches=2,
                objective=objective,
            )
            best = every_end(problem)
            assert max(bound.value_ns for bound in lower_bounds(problem)) <= best
            solution = solve(problem, work_limit=20_000, workers=1)
            assert violations(problem, solution.timetable, claimed_ns=solution.value_ns) == ()
            assert solution.lower_bound_ns <= best == solution.value_ns
            assert verify_bound(problem, solution.bound, solution.lower_bound_ns, time_limit_s=5).status != "wrong"


@pytest.mark.parametrize("placement", [Placement.v(2), Placement.bidirectional(2), Placement.looped(2, 2)])
def test_the_solver_is_never_worse_than_a_published_schedule(placement):
    problem = asked(placement, microbatches=4, reduce=3, optimizer=2)
    solution = solve(problem, work_limit=30_000, workers=1)
    assert violations(problem, solution.timetable, claimed_ns=solution.value_ns) == ()
    for schedule in schedules():
        try:
            order = baseline(schedule.name, problem)
        except ScheduleConditionError:
            continue
        assert solution.value_ns <= simulate(problem, order).period_ns


def test_a_start_without_its_end_is_closed():
    problem = asked(microbatches=8)
    start = baseline("zb-h1", open_ended(asked(microbatches=4)))
    solution = solve(problem, start=start, work_limit=2_000, workers=1)
    assert violations(problem, solution.timetable) == ()


def test_files_pictures_and_other_tools(tmp_path):
    problem = asked()
    timetable = simulate(problem, baseline("1f1b", problem))
    content = timetable_bytes(timetable)
    assert b'["reduce_gradient", 0, null, ' in content
    assert read_timetable_bytes(content, "t.json") == timetable
    assert "O optimizer" in (shown := gantt(timetable, width=120))
    assert "reductions of gradients run beside" in shown
    csv, beside = write_torch_csv(timetable, tmp_path / "t.csv")
    assert csv.read_text().splitlines()[0] == "0F0,0F1,0B0,0F2,0B1,0B2"
    assert json.loads(beside.read_text())["left_out"] == ["optimizer", "reduce_gradient"]
    lowered = lower(timetable)
    verify(lowered)
    assert all(a.op.microbatch is not None for row in lowered.rows for a in row if a.do is Do.COMPUTE)
