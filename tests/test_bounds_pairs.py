"""Bounds where operations may run together, against every order and every way of pairing it."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings

from tests.oracle import merges, value_within_limits
from tests.strategies import problems
from zbsolve.bounds import lower_bounds, smallest_limits
from zbsolve.bounds.unpaired import shares, unpaired
from zbsolve.catalog import baseline
from zbsolve.errors import Infeasible
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Link, Overlap, Profile, StageCost
from zbsolve.simulate import simulate
from zbsolve.timetable import Order

BACKWARDS = (Kind.BACKWARD, Kind.BACKWARD_INPUT)


def pairings(row: tuple[Op, ...]) -> list[tuple[Op, ...]]:
    """The row with any of its neighbours put together, a forward with a backward of another microbatch."""
    made: list[tuple[Op, ...]] = [()]
    ready: list[tuple[Op, ...]] = [()]
    for at, op in enumerate(row):
        longer = [(*head, op) for head in ready]
        if at:
            pair = {op.kind is Kind.FORWARD: op, row[at - 1].kind is Kind.FORWARD: row[at - 1]}
            if len(pair) == 2 and pair[False].kind in BACKWARDS and pair[False].microbatch != pair[True].microbatch:
                forward = pair[True]
                together = Op(forward.kind, forward.stage, forward.microbatch, pair[False])
                longer += [(*head, together) for head in made]
        made, ready = ready, longer
    return ready


def ways(problem: Problem, j: int, stages: list[int]) -> list[list[Op]]:
    """The sequences in which a rank can run one microbatch; with several stages only fused."""
    down = [Op(Kind.FORWARD, s, j) for s in stages]
    found = []
    if "fused" in problem.allow:
        found.append([*down, *(Op(Kind.BACKWARD, s, j) for s in reversed(stages))])
    if "split" in problem.allow:
        (stage,) = stages
        found.append([*down, Op(Kind.BACKWARD_INPUT, stage, j), Op(Kind.BACKWARD_WEIGHT, stage, j)])
    return found


def optimum(problem: Problem) -> int | None:
    """The least value over all sequences of labelled operations and all ways of pairing neighbours."""
    rows: list[list[tuple[Op, ...]]] = []
    assert problem.route_of is not None
    for rank in range(problem.placement.ranks):
        visits: dict[int, list[int]] = {}
        for j, route in enumerate(problem.route_of):
            visits[j] = [s for s, r in enumerate(problem.placement.routes[route]) if r == rank]
        mine: set[tuple[Op, ...]] = set()
        for how in itertools.product(*(ways(problem, j, stages) for j, stages in visits.items())):
            for merged in merges([list(chain) for chain in how]):
                mine.update(pairings(merged))
        rows.append(sorted(mine, key=str))
    values = (value_within_limits(problem, Order(combination)) for combination in itertools.product(*rows))
    return min((v for v in values if v is not None), default=None)


def tiny(rng: random.Random) -> Problem:
    where, microbatches, allow = rng.choice(
        [
            (Placement.linear(2), 2, {"fused"}),
            (Placement.linear(1), 3, {"fused"}),
            (Placement.v(1), 2, {"fused"}),
            (Placement.linear(1), 2, {"split"}),
            (Placement.linear(1), 2, {"split", "fused"}),
        ]
    )
    stages = tuple(
        StageCost(
            forward_ns=rng.randint(0, 6) + 1,
            backward_input_ns=rng.randint(0, 6),
            backward_weight_ns=rng.randint(0, 5),
            backward_ns=rng.randint(0, 11),
            activation_bytes=rng.randint(0, 3),
            backward_weight_bytes=rng.randint(0, 3),
            workspace_bytes=rng.randint(0, 1),
        )
        for _ in range(where.stages)
    )
    pairs = [(f, b) for r in range(where.ranks) for f in where.stages_of(r) for b in where.stages_of(r)]
    overlaps = tuple(
        Overlap(
            forward_stage=f,
            backward_stage=b,
            forward_backward_overlap_ns=rng.randint(1, 12),
            forward_backward_input_overlap_ns=rng.choice([None, rng.randint(1, 9)]),
        )
        for f, b in pairs
        if rng.random() < 0.8
    )
    sizes = tuple(rng.choice(["1", "2", "0.7"]) for _ in range(microbatches))
    return Problem(
        profile=Profile(stages=stages, link=Link(latency_ns=rng.choice([0, 2])), overlaps=overlaps),
        placement=where,
        microbatches=microbatches,
        objective=rng.choice(["period", "makespan"]),
        allow=frozenset(allow | {"paired"}),
        memory_limit=rng.choice([None, None, 6, "1x", "2x"]),
        rank_factors=rng.choice([None, None, ("1.7",) * where.ranks]),
        microbatch_factors=rng.choice([None, None, sizes]),
    )


@pytest.mark.parametrize("block", range(4))
def test_no_bound_exceeds_the_optimum(block):
    tight = known = 0
    for seed in range(20 * block, 20 * block + 20):
        problem = tiny(random.Random(seed))
        best = optimum(problem)
        try:
            bounds = lower_bounds(problem)
        except Infeasible:
            assert best is None
            continue
        assert best is not None, "a limit with which something fits"
        assert bounds[0].value_ns <= best, (seed, bounds[0])
        known += 1
        tight += bounds[0].value_ns == best
    assert known > 9
    assert tight > 2


@settings(max_examples=60, deadline=None)
@given(problems(paired=True))
def test_unpaired_operations_are_no_longer_and_fit_into_every_pair(problem):
    shorter = unpaired(problem)
    assert shorter.allow == problem.allow - {"paired"}
    for rank in range(problem.placement.ranks):
        ops = [op for op in Order(problem.operations()).rows[rank] if op.microbatch is not None]
        cells = sorted({(op.stage, op.microbatch) for op in ops})
        for s, j in cells:
            new, old = shorter.cost(s, j), problem.cost(s, j)
            assert new.forward_ns <= old.forward_ns
            assert new.backward_input_ns <= old.backward_input_ns
            assert new.backward_ns <= old.backward_ns
            assert new.backward_weight_ns == old.backward_weight_ns
            assert new.activation_bytes == old.activation_bytes
        for (s, j), (t, k) in itertools.product(cells, repeat=2):
            for kind in BACKWARDS if j != k else ():
                together = problem.overlap_ns(Op(Kind.FORWARD, s, j, Op(kind, t, k)))
                back = shorter.cost(t, k)
                taken = back.backward_ns if kind is Kind.BACKWARD else back.backward_input_ns
                if together is not None:
                    assert shorter.cost(s, j).forward_ns + taken <= together
    assert smallest_limits(problem) == smallest_limits(shorter)


def test_savings_are_shared_out_as_the_best_matching_has_them():
    rng = random.Random(5)
    for _ in range(200):
        n = rng.randint(1, 4)
        saving = [[rng.choice([0, rng.randint(0, 9)]) for _ in range(n)] for _ in range(n)]
        rows = shares(saving)
        columns = [max(0, *(saving[i][j] - rows[i] for i in range(n))) for j in range(n)]
        assert min(rows) == 0
        best = max(sum(saving[i][j] for i, j in enumerate(order)) for order in itertools.permutations(range(n)))
        assert sum(rows) + sum(columns) == best


def test_two_chunks_are_bounded_by_the_pairs_that_save_most_together():
    cost = StageCost(forward_ns=10, backward_input_ns=10, backward_weight_ns=10)
    overlaps = [((0, 0), 20), ((0, 1), 24), ((1, 0), 22), ((1, 1), 29)]
    profile = Profile(
        stages=(cost, cost),
        overlaps=tuple(
            Overlap(forward_stage=f, backward_stage=b, forward_backward_overlap_ns=ns) for (f, b), ns in overlaps
        ),
    )
    problem = Problem(
        profile=profile, placement=Placement.v(1), microbatches=7, allow=frozenset({"split", "fused", "paired"})
    )
    # F0 with B1 and F1 with B0 save 6 + 8, F0 with B0 and F1 with B1 only 10 + 1
    load = next(bound for bound in lower_bounds(problem) if bound.name == "load")
    assert load.value_ns == 7 * (60 - 14)


def test_a_problem_in_which_nothing_runs_together_in_less_keeps_its_bounds():
    cost = StageCost(forward_ns=10, backward_input_ns=10, backward_weight_ns=10)
    overlaps = (Overlap(forward_stage=0, backward_stage=0, forward_backward_overlap_ns=30),)
    plain = Problem(profile=Profile(stages=(cost,) * 3), placement=Placement.linear(3), microbatches=5)
    paired = Problem(
        profile=Profile(stages=(cost,) * 3, overlaps=overlaps),
        placement=Placement.linear(3),
        microbatches=5,
        allow=plain.allow | {"paired"},
    )
    assert lower_bounds(paired) == lower_bounds(plain)


def test_a_schedule_with_pairs_may_be_faster_than_any_bound_without():
    profile = Profile.uniform(4, forward_ns=10, backward_input_ns=10, backward_weight_ns=10, overlap_ns=16)
    problem = Problem(
        profile=profile,
        placement=Placement.v(2),
        microbatches=12,
        allow=frozenset({"split", "fused", "paired"}),
    )
    value = simulate(problem, baseline("dualpipe-v", problem)).period_ns
    apart = Problem(profile=profile, placement=Placement.v(2), microbatches=12)
    assert lower_bounds(problem)[0].value_ns <= value < lower_bounds(apart)[0].value_ns
