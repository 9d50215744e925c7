"""Microbatches that differ: the solver may choose their sequence."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest

from tests.oracle import every_order
from tests.solver.instances import unequal
from zbsolve.bounds import lower_bounds
from zbsolve.catalog import baseline
from zbsolve.check import violations
from zbsolve.metrics import metrics
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Link, LinkOverride, Profile, StageCost
from zbsolve.simulate import simulate
from zbsolve.solver import solve
from zbsolve.solver.budget import Budget
from zbsolve.solver.case import Case
from zbsolve.solver.compiled import plain
from zbsolve.solver.network import order_of
from zbsolve.solver.permuted import renumbered, sequences, with_own_numbers
from zbsolve.solver.portfolio import draft, plain_rules

FACTORS = ("0.5", 1, "1.5", 2, 3)


def tiny(rng: random.Random, ranks: int, microbatches: int) -> Problem:
    stages = tuple(
        StageCost(
            forward_ns=rng.randint(1, 6),
            backward_input_ns=rng.randint(1, 6),
            backward_weight_ns=rng.randint(0, 6),
            activation_bytes=rng.randint(1, 4),
            backward_weight_bytes=rng.randint(0, 3),
        )
        for _ in range(ranks)
    )
    return Problem(
        profile=Profile(stages=stages, link=Link(latency_ns=rng.randint(0, 3))),
        placement=Placement.linear(ranks),
        microbatches=microbatches,
        memory_limit=rng.choice((None, "1x", "1.5x")),
        objective=rng.choice(("period", "makespan")),
        allow=frozenset({rng.choice(("split", "fused"))}),
        rank_factors=tuple(rng.choice(FACTORS) for _ in range(ranks)),
        microbatch_factors=tuple(rng.choice(FACTORS) for _ in range(microbatches)),
    )


def test_the_optimum_over_all_sequences_is_found_and_no_bound_is_above_it():
    rng = random.Random(3)
    found = 0
    for _ in range(14):
        problem = tiny(rng, 2, 2)
        best = every_order(problem)
        if best is None:
            continue
        found += 1
        assert max(bound.value_ns for bound in lower_bounds(problem)) <= best
        solution = solve(problem, work_limit=20_000, workers=1)
        assert violations(problem, solution.timetable, claimed_ns=solution.value_ns) == ()
        assert solution.lower_bound_ns <= best
        assert solution.value_ns == best
    assert found >= 10


def test_every_sequence_is_one_of_all_microbatches_and_none_comes_twice():
    assert list(sequences(unequal())) == []
    problem = unequal(microbatch_factors=(3, 1, 2, 1, 5, 1))
    found = [sequence for _, sequence in sequences(problem)]
    assert len(set(found)) == len(found) >= 6
    assert all(sorted(sequence) == list(range(6)) for sequence in found)
    assert (1, 3, 5, 2, 0, 4) in found


def test_a_schedule_in_another_sequence_is_an_order_of_the_problem():
    problem = unequal(microbatch_factors=(3, 1, 2, 1, 5, 1), memory_limit=None)
    for _, sequence in sequences(problem):
        other = renumbered(problem, sequence)
        order = with_own_numbers(baseline("1f1b", other), sequence)
        assert violations(problem, order) == ()
        assert simulate(problem, order).period_ns == simulate(other, baseline("1f1b", other)).period_ns


@pytest.mark.parametrize("placement", [Placement.linear(3), Placement.bidirectional(3)])
def test_never_worse_than_a_published_schedule_in_any_of_the_sequences(placement):
    problem = unequal(microbatch_factors=(4, 1, 2, 1, 5, 1), placement=placement, memory_limit="1.5x")
    solution = solve(problem, work_limit=30_000, workers=1)
    assert violations(problem, solution.timetable) == ()
    for name in ("1f1b", "gpipe") if placement.name == "linear" else ("gpipe", "naive"):
        for _, sequence in sequences(problem):
            order = with_own_numbers(baseline(name, renumbered(problem, sequence)), sequence)
            reached = metrics(simulate(problem, order))
            if all(peak <= limit for peak, limit in zip(reached.peak_bytes, problem.limit_bytes, strict=True)):
                assert solution.value_ns <= reached.period_ns


def two_routes(
    first: StageCost, second: StageCost, limits: tuple[int | None, ...], microbatches: int, **more
) -> Problem:
    return Problem(
        profile=Profile(stages=(first, second), link=Link(latency_ns=more.pop("latency_ns"))),
        placement=Placement.bidirectional(2),
        microbatches=microbatches,
        memory_limit=limits,
        **more,
    )


def stage(forward: int, back: int, weight: int, fused: int, held: int, kept: int, workspace: int, static: int):
    return StageCost(
        forward_ns=forward,
        backward_input_ns=back,
        backward_weight_ns=weight,
        backward_ns=fused,
        activation_bytes=held,
        backward_weight_bytes=kept,
        workspace_bytes=workspace,
        static_bytes=static,
    )


BOTH = frozenset({"split", "fused"})


@pytest.mark.parametrize(
    ("problem", "optimum"),
    [
        (
            two_routes(
                stage(6, 1, 2, 3, 2, 1, 0, 1),
                stage(2, 3, 2, 12, 4, 4, 1, 1),
                (11, 7),
                4,
                latency_ns=7,
                objective="makespan",
                allow=BOTH,
            ),
            57,
        ),
        (
            two_routes(
                stage(1, 3, 5, 8, 4, 2, 1, 0),
                stage(1, 3, 5, 8, 4, 2, 1, 0),
                (None, 8),
                5,
                latency_ns=2,
                allow=frozenset({"fused"}),
            ),
            71,
        ),
        (
            two_routes(
                stage(1, 8, 3, 14, 1, 0, 1, 5),
                stage(1, 8, 3, 14, 1, 0, 1, 5),
                (None, 12),
                3,
                latency_ns=0,
                objective="makespan",
                allow=BOTH,
            ),
            44,
        ),
        (
            Problem(
                profile=Profile(
                    stages=(stage(0, 2, 3, 12, 3, 6, 2, 0),) * 4,
                    link=Link(overrides=(LinkOverride(sender=0, receiver=1, latency_ns=7),)),
                ),
                placement=Placement.bidirectional(4),
                microbatches=2,
                memory_limit=(10, 9, 9, 11),
                objective="makespan",
                allow=frozenset({"split"}),
            ),
            27,
        ),
    ],
)
def test_where_memory_is_tight_one_route_may_go_before_the_other(problem, optimum):
    solution = solve(problem, work_limit=19_000, workers=1)
    assert violations(problem, solution.timetable, claimed_ns=solution.value_ns) == ()
    assert solution.value_ns == optimum


def test_sequences_of_routes_keep_those_that_are_alike_in_turn():
    problem = unequal(microbatches=6, memory_limit=None, placement=Placement.bidirectional(3))
    found = dict(sequences(problem))
    assert found["route after route"] == (0, 2, 4, 1, 3, 5)
    assert found["route after route, the last first"] == (1, 3, 5, 0, 2, 4)
    assert found["routes in turn, the last first"] == (1, 0, 3, 2, 5, 4)
    for sequence in found.values():
        assert [j for j in sequence if j % 2] == [1, 3, 5]
        assert [j for j in sequence if not j % 2] == [0, 2, 4]


@pytest.mark.parametrize("ends", [False, True])
def test_what_is_found_with_other_numbers_is_an_order_of_the_problem(ends):
    problem = unequal(
        microbatches=6, memory_limit=None, placement=Placement.bidirectional(3), microbatch_factors=(4, 1, 2, 1, 5, 1)
    )
    if ends:
        stages = tuple(replace(each, optimizer_ns=3, grad_reduce_ns=2) for each in problem.profile.stages)
        problem = replace(problem, profile=replace(problem.profile, stages=stages))
    case = Case(problem, plain())
    assert len(case.others) >= 8
    for other in case.others:
        forms = other.case.forms.flags(lambda s, j: j == 0)
        there = draft(other.case, forms, next(plain_rules(other.case)), 0, Budget(time.perf_counter() + 60, 10_000))
        here = other.own(there)
        order = order_of(problem, here.sequence.tolist(), here.fused.tolist())
        assert violations(problem, order) == ()
        assert case.read(order).value_ns == there.value_ns
