"""Timing under jitter, against an oracle that unrolls every iteration operation by operation."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import problems, random_order
from zbsolve.analysis.jitter import Draws, quantile, spreads, under_jitter
from zbsolve.analysis.network import Network
from zbsolve.catalog import baseline
from zbsolve.errors import InvalidInput, ProblemError
from zbsolve.ops import Kind
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Profile, ProfileSource, StageSpread
from zbsolve.simulate import simulate


def small(relative_spread: tuple[StageSpread, ...] = (), *, objective: str = "period", microbatches: int = 4):
    profile = Profile.uniform(3, forward_ns=1000, backward_input_ns=1100, backward_weight_ns=900, latency_ns=50)
    profile = replace(profile, source=ProfileSource(spread=relative_spread))
    problem = Problem(profile=profile, placement=Placement.linear(3), microbatches=microbatches, objective=objective)
    return simulate(problem, baseline("zb-h1", problem))


def unrolled(timetable, sigma: float, *, trial: int, iterations: int, seed: int):
    """One trial, iteration by iteration: its value, and what is critical, as (iteration, node) with its lateness."""
    network = Network.of(simulate(timetable.problem, timetable.order))
    draws = Draws(seed, iterations)
    period = network.by_period
    end, cause, late = {}, {}, {}
    origin = [min(map(network.start, row.tolist()), default=0) if period else 0 for row in network.rows]
    ready = list(origin)
    last: list[object] = [None] * network.ranks
    for i in range(iterations):
        for node in network.sequence:
            rank = network.rank(node)
            waits = [(end[i, e.tail] + e.lag_ns, (i, e.tail)) for e in network.edges[node]]
            if not any(e.in_row for e in network.edges[node]):
                waits.insert(0, (ready[rank], last[rank]))
            at, why = max(waits, key=lambda pair: pair[0])
            planned = int(network.graph.duration_ns[node])
            luck = draws.of(trial // 64, rank, network.op(node))[i, trial % 64]
            taken = round(planned * math.exp(sigma * luck))
            end[i, node], cause[i, node], late[i, node] = at + taken, why, taken - planned
        for rank, row in enumerate(network.rows):
            if len(row):
                latest = max(network.lasts(rank), key=lambda n: end[i, n])
                ready[rank], last[rank] = end[i, latest], (i, latest)
    taken = [r - o for r, o in zip(ready, origin, strict=True)]
    total = max(taken)
    at = last[taken.index(total)]
    chain = {}
    while at is not None:
        chain[at] = late[at]
        at = cause[at]
    return -(-total // iterations), chain


@settings(max_examples=40)
@given(problems(variants=True), st.integers(1, 4), st.integers(0, 99))
def test_every_trial_is_what_an_unrolled_run_takes(problem, iterations, seed):
    timetable = simulate(problem, random_order(problem, seed))
    iterations = iterations if problem.objective == "period" else 1
    found = under_jitter(timetable, 0.2, trials=3, iterations=iterations, seed=seed)
    oracle = [unrolled(timetable, 0.2, trial=t, iterations=iterations, seed=seed) for t in range(3)]
    assert found.values_ns == tuple(sorted(value for value, _ in oracle))
    late = sum(sum(chain.values()) for _, chain in oracle) / (3 * iterations)
    assert sum(one.late_ns for one in found.operations) == pytest.approx(late)
    assert sum(one.critical for one in found.operations) == pytest.approx(
        sum(len(chain) for _, chain in oracle) / (3 * iterations)
    )


@settings(max_examples=60)
@given(problems(variants=True), st.integers(1, 6))
def test_without_jitter_every_trial_takes_the_exact_value(problem, iterations):
    timetable = simulate(problem, random_order(problem, iterations))
    found = under_jitter(timetable, 0.0, trials=2, iterations=iterations)
    value = timetable.period_ns if problem.objective == "period" else timetable.makespan_ns
    assert found.values_ns == (value, value)
    assert found.planned_ns == value
    assert all(one.late_ns == 0 for one in found.operations)


@settings(max_examples=40)
@given(problems(variants=True))
def test_the_blame_covers_the_lateness(problem):
    """A chain with nothing late on it is no longer than planned."""
    timetable = simulate(problem, random_order(problem, 5))
    found = under_jitter(timetable, 0.3, trials=70, iterations=3)
    mean = sum(found.values_ns) / len(found.values_ns)
    assert sum(one.late_ns for one in found.operations) >= mean - found.planned_ns - 1 - 1e-6
    assert sum(one.late_ns for one in found.stages) == pytest.approx(sum(one.late_ns for one in found.operations))


def test_the_same_seed_gives_the_same_luck_and_another_another():
    timetable = small()
    assert under_jitter(timetable, trials=80) == under_jitter(timetable, trials=80)
    assert under_jitter(timetable, trials=80).values_ns != under_jitter(timetable, trials=80, seed=1).values_ns
    more = under_jitter(timetable, trials=200)
    assert set(under_jitter(timetable, trials=128).values_ns) <= set(more.values_ns)


def test_two_orders_of_a_problem_meet_the_same_luck():
    """A rank by itself takes the sum of its operations in whatever order they stand."""
    profile = Profile.uniform(1, forward_ns=1000, backward_input_ns=1000, backward_weight_ns=1000)
    problem = Problem(profile=profile, placement=Placement.linear(1), microbatches=5)
    found = {under_jitter(simulate(problem, random_order(problem, s, fused=0)), trials=50).values_ns for s in range(4)}
    assert len(found) == 1


def test_draws_are_standard_normal_without_outliers():
    drawn = np.concatenate([Draws(0, 50).of(block, 0, op).ravel() for block in range(4) for op in ops()])
    assert np.abs(drawn).max() <= 3
    assert abs(drawn.mean()) < 0.02
    assert 0.97 < drawn.std() < 1.0  # the truncated normal's is 0.9866


def ops():
    return [timed.op for row in small(microbatches=2).rows for timed in row]


def test_measured_quartiles_come_out_again():
    spread = StageSpread(forward_ns=200, backward_input_ns=0, backward_weight_ns=90)
    profile = Profile.uniform(1, forward_ns=1000, backward_input_ns=1000, backward_weight_ns=1000)
    profile = replace(profile, source=ProfileSource(spread=(spread,)))
    problem = Problem(profile=profile, placement=Placement.linear(1), microbatches=1, forward_only=True)
    timetable = simulate(problem, baseline("forward-only", problem))
    values = under_jitter(timetable, None, trials=4000, iterations=1).values_ns
    assert quantile(values, 0.75) - quantile(values, 0.25) == pytest.approx(200, rel=0.08)
    assert quantile(values, 0.5) == pytest.approx(1000, rel=0.01)


def test_a_fused_backward_that_was_not_measured_varies_as_its_halves_do():
    assert spreads(StageSpread(backward_input_ns=30, backward_weight_ns=40), Kind.BACKWARD) == 50
    assert spreads(StageSpread(backward_input_ns=30, backward_ns=7), Kind.BACKWARD) == 7


def test_only_what_varies_is_late():
    spread = (StageSpread(), StageSpread(forward_ns=300, backward_input_ns=300, backward_weight_ns=300), StageSpread())
    found = under_jitter(small(spread), None, trials=100)
    assert found.relative is None
    assert {one.op.stage for one in found.operations if one.late_ns} == {1}
    assert found.stages[0].op.stage == 1
    assert found.p95_ns > found.p50_ns >= found.values_ns[0]


def test_makespan_trials_have_one_iteration():
    timetable = small(objective="makespan")
    found = under_jitter(timetable, 0.1, trials=20, iterations=7)
    assert (found.iterations, found.objective) == (1, "makespan")


def test_quantiles_are_values_that_occurred():
    assert [quantile((1, 2, 3, 4), share) for share in (0.0, 0.25, 0.26, 0.5, 0.95, 1.0)] == [1, 1, 2, 2, 4, 4]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"relative": 1.5}, "within 0 and 100%"),
        ({"relative": float("nan")}, "within 0 and 100%"),
        ({"trials": 0}, "at least one trial"),
        ({"iterations": 0}, "at least one iteration"),
        ({"seed": -1}, "seed"),
        ({"relative": None}, "no measured spread"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, what):
    with pytest.raises(InvalidInput, match=what):
        under_jitter(small(), **changes)


def test_times_that_would_overflow_are_refused():
    profile = Profile.uniform(2, forward_ns=2**58, backward_input_ns=1, backward_weight_ns=1)
    problem = Problem(profile=profile, placement=Placement.linear(2), microbatches=2)
    with pytest.raises(ProblemError, match="too long"):
        under_jitter(simulate(problem, baseline("1f1b", problem)), 1.0)
