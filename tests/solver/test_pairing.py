"""Choosing what runs together: never worse than published schedules, as good as the optimum of tiny problems."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import placements, problems, random_order
from tests.test_bounds_pairs import optimum, tiny
from zbsolve.bounds import lower_bound
from zbsolve.bounds.unpaired import may_pair, unpaired
from zbsolve.catalog import baseline
from zbsolve.check import check
from zbsolve.errors import Infeasible, NothingFound, OrderError
from zbsolve.ops import Kind
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Profile
from zbsolve.simulate import simulate
from zbsolve.solver import solve
from zbsolve.solver.budget import Budget
from zbsolve.solver.certificate import verify_bound
from zbsolve.solver.pairing import together, value_of
from zbsolve.timetable import Order

PAIRED = frozenset({"split", "fused", "paired"})


def uniform(where: Placement, microbatches: int, overlap_ns: int, **asked: object) -> Problem:
    profile = Profile.uniform(
        where.stages,
        forward_ns=10,
        backward_input_ns=10,
        backward_weight_ns=10,
        overlap_ns=overlap_ns,
        latency_ns=1,
        activation_bytes=2,
        backward_weight_bytes=1,
    )
    return Problem(profile=profile, placement=where, microbatches=microbatches, **({"allow": PAIRED} | asked))  # type: ignore[arg-type]


def pairs_in(order: Order) -> int:
    return sum(op.beside is not None for row in order.rows for op in row)


def unlimited() -> Budget:
    return Budget(float("inf"), 6_000)


def test_neighbours_run_together_where_that_is_shorter():
    problem = uniform(Placement.linear(1), 6, 22)
    plain = baseline("1f1b", problem)
    found = together(problem, plain, unlimited(), 0)
    assert found is not None
    value, order = found
    check(problem, simulate(problem, order), claimed_ns=value)
    assert value == 5 * 22 + 30, "all but the first forward and the last backward"
    assert pairs_in(order) == 5
    split = Order(tuple(tuple(part for op in row for part in op.parts) for row in plain.rows))
    assert (together(problem, split, unlimited(), 0) or (0, None))[0] == value


def test_what_gains_nothing_is_taken_apart():
    problem = uniform(Placement.v(2), 8, 29)
    order = baseline("dualpipe-v", problem)
    assert pairs_in(order)
    value = value_of(problem, order)
    found = together(problem, order, unlimited(), 0)
    assert found is not None
    assert value is not None
    assert found[0] < value
    dear = uniform(Placement.v(2), 8, 30)
    found = together(dear, baseline("dualpipe-v", dear), unlimited(), 0)
    assert found is not None
    assert pairs_in(found[1]) == 0


def test_pairs_keep_within_the_memory():
    problem = uniform(Placement.linear(1), 6, 22)
    for limit, pairs in ((4, 5), (3, 0), (2, 0)):
        tight = replace(problem, memory_limit=limit, allow=PAIRED - {"split"})
        plain = Order((tuple(op for j in range(6) for op in baseline("naive", tight).rows[0][2 * j : 2 * j + 2]),))
        found = together(tight, plain if limit == 2 else baseline("1f1b", tight), unlimited(), 0)
        assert found is not None
        if pairs or limit == 2:
            assert pairs_in(found[1]) >= pairs
        check(tight, simulate(tight, found[1]))


@pytest.mark.parametrize(("where", "name"), [(Placement.v(2), "dualpipe-v"), (Placement.bidirectional(4), "dualpipe")])
def test_a_solve_is_never_worse_than_published_pairs(where, name):
    for overlap in (22, 27):
        problem = uniform(where, 8, overlap)
        published = simulate(problem, baseline(name, problem)).period_ns
        solution = solve(problem, work_limit=3_000, workers=1)
        check(problem, solution.timetable, claimed_ns=solution.value_ns)
        assert solution.value_ns <= published
        assert solution.lower_bound_ns <= solution.value_ns
        assert solution.digest == problem.digest
        assert solution.timetable.problem == problem


def test_where_no_pair_is_shorter_nothing_is_paired():
    problem = uniform(Placement.linear(2), 4, 31)
    assert not may_pair(problem)
    solution = solve(problem, work_limit=2_000, workers=1)
    assert solution.timetable.problem == problem
    assert pairs_in(solution.timetable.order) == 0


def test_a_start_with_pairs_is_taken_in():
    problem = uniform(Placement.v(2), 8, 22)
    first = solve(problem, work_limit=3_000, workers=1)
    again = solve(problem, work_limit=500, workers=1, start=first.timetable)
    assert again.value_ns <= first.value_ns
    apart = replace(problem, allow=PAIRED - {"paired"})
    assert pairs_in(solve(apart, work_limit=500, workers=1, start=first.timetable).timetable.order) == 0


def test_the_same_seed_gives_the_same_order():
    problem = uniform(Placement.v(2), 6, 22)
    made = [solve(problem, work_limit=4_000, workers=1, seed=3).timetable for _ in range(2)]
    assert made[0] == made[1]


def test_pairs_and_recomputation_go_together():
    problem = uniform(Placement.linear(2), 4, 22, allow=PAIRED | {"recompute"}, memory_limit="1x")
    stages = tuple(replace(s, checkpoint_bytes=1, recompute_ns=4) for s in problem.profile.stages)
    problem = replace(problem, profile=replace(problem.profile, stages=stages), memory_limit=3)
    solution = solve(problem, work_limit=3_000, workers=1)
    check(problem, solution.timetable, claimed_ns=solution.value_ns)


def test_tiny_problems_come_near_their_optimum():
    met = known = 0
    for seed in range(100, 124):
        problem = tiny(random.Random(seed))
        try:
            solution = solve(problem, work_limit=6_000, workers=1, seed=seed)
        except Infeasible:
            continue
        check(problem, solution.timetable, claimed_ns=solution.value_ns)
        best = optimum(problem)
        assert best is not None
        assert solution.lower_bound_ns <= best <= solution.value_ns
        known += 1
        met += solution.value_ns == best
    assert known > 10
    assert met >= known - 2


def test_the_bound_of_a_relaxation_is_verified_anew():
    problem = uniform(Placement.linear(2), 3, 24)
    solution = solve(problem, work_limit=20_000, workers=1)
    verdict = verify_bound(problem, solution.bound, solution.lower_bound_ns, time_limit_s=20)
    assert verdict.status == "verified"


@pytest.mark.parametrize(
    "problem",
    [
        uniform(Placement.linear(2), 1, 12),
        uniform(Placement.linear(2), 4, 30),
        uniform(Placement.linear(2), 3, 12, slices=3),
        uniform(Placement.linear(2), 3, 12, forward_only=True),
        replace(uniform(Placement.linear(2), 1, 12), microbatch_factors=(2,), rank_factors=("1", "1.5")),
    ],
    ids=["one microbatch", "no shorter", "one sequence", "forwards alone", "one scaled"],
)
def test_where_no_pair_is_of_use_the_check_proves_what_the_search_does(problem):
    assert not may_pair(problem)
    assert unpaired(problem) == replace(problem, allow=problem.allow - {"paired"})
    assert lower_bound(problem) == lower_bound(replace(problem, allow=problem.allow - {"paired"}))
    solution = solve(problem, work_limit=300, workers=1)
    assert verify_bound(problem, solution.bound, solution.lower_bound_ns).ok


def test_of_one_sequence_no_order_runs_anything_together():
    for problem in (uniform(Placement.linear(2), 1, 12), uniform(Placement.linear(2), 3, 12, slices=3)):
        for seed in range(20):
            together_at = random.Random(seed)
            order = random_order(replace(problem, allow=problem.allow - {"paired"}), seed)
            row = list(order.rows[0])
            forwards = [op for op in row if op.kind is Kind.FORWARD]
            backs = [op for op in row if op.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT)]
            one, other = together_at.choice(forwards), together_at.choice(backs)
            at = row.index(other)
            row[at] = replace(one, beside=other)
            row.remove(one)
            with pytest.raises(OrderError):
                simulate(problem, Order((tuple(row), *order.rows[1:])))


def test_a_pair_that_rounding_alone_makes_shorter_is_counted_on():
    stage = {"forward_ns": 1, "backward_input_ns": 1, "backward_weight_ns": 1, "overlap_ns": 3}
    problem = Problem(
        profile=Profile.uniform(1, **stage),
        placement=Placement.linear(1),
        microbatches=2,
        rank_factors=("1.5",),
        allow=frozenset({"fused", "paired"}),
    )
    # half up: 1.5 is 2 and 3 is 3, one after the other 5; together 4.5 is 5
    assert may_pair(problem)
    assert not may_pair(replace(problem, rank_factors=None))


@settings(max_examples=25)
@given(st.data())
def test_the_check_accepts_the_bound_whatever_is_allowed(data):
    problem = data.draw(
        problems(placement=placements(most_ranks=2), most_microbatches=3, limits=True, paired=True, variants=True)
    )
    words = data.draw(st.sets(st.sampled_from(["recompute", "offload", "paired"])))
    problem = replace(problem, allow=problem.allow - words)
    try:
        solution = solve(problem, work_limit=50, workers=1)
    except (Infeasible, NothingFound):
        return
    verdict = verify_bound(problem, solution.bound, solution.lower_bound_ns, time_limit_s=2)
    assert verdict.status != "wrong", verdict.message
