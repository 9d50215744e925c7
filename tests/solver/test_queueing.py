"""Search where transfers queue: every way of timing an order says the same, and nothing found is worse than told."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracle import _Pipeline, peak, rows_of, tiny_problem, value_within_limits
from tests.strategies import placements, problems, random_order
from zbsolve.bounds import lower_bounds
from zbsolve.check import check
from zbsolve.errors import Infeasible
from zbsolve.opgraph import OpGraph
from zbsolve.profile import Link
from zbsolve.simulate import Timer, simulate
from zbsolve.solver import solve, timing
from zbsolve.solver.budget import Budget
from zbsolve.solver.case import Case
from zbsolve.solver.compiled import plain, ready_to_move
from zbsolve.solver.kernels import Arrays, makespan, period, sequence_of
from zbsolve.solver.network import order_of
from zbsolve.solver.portfolio import random_drafts
from zbsolve.solver.state import BEST, BEST_FUSED, BEST_SEQUENCE, CHAIN, CHAINED, FUSED, REG, SEQUENCE, VALUE


def exact(problem, order):
    timetable = simulate(problem, order)
    return timetable.period_ns if problem.objective == "period" else timetable.makespan_ns


@given(problems(queueing=True, variants=True), st.integers(0, 999))
@settings(max_examples=80, deadline=None)
def test_all_ways_of_timing_agree(problem, seed):
    # the search sees what is chosen around it folded away, and puts reductions as early as they may stand
    problem = dataclasses.replace(problem, allow=problem.allow - {"recompute", "offload", "paired"}, ends=False)
    order = random_order(problem, seed)
    graph = OpGraph.build(problem, order.rows)
    timer = Timer(graph, graph.encode(order))
    arrays = Arrays.of(graph)
    sequence = sequence_of(arrays, graph.by_lane(graph.encode(order)))
    assert makespan(arrays, sequence) == timer.makespan().value_ns
    value, release = period(arrays, sequence)
    assert value == timer.period().value_ns
    assert period(arrays, sequence, release)[0] == value
    found = Case(problem, plain()).read(order)
    assert found is not None
    assert found.value_ns == exact(problem, order)


@given(problems(placement=placements(), limits=True, queueing=True, variants=True), st.integers(0, 999))
@settings(max_examples=40, deadline=None)
def test_what_a_list_schedule_and_moves_say_of_their_orders_is_so(problem, seed):
    problem = dataclasses.replace(problem, allow=problem.allow - {"recompute", "offload", "paired"})
    case = Case(problem, plain())
    drafts = list(random_drafts(case, Budget(float("inf"), 500), random.Random(seed)))
    for draft in drafts:
        assert draft.value_ns == exact(problem, order_of(problem, draft.sequence, draft.fused))
    if not drafts:
        return
    draft = drafts[0]
    state = ready_to_move(case.kernels, case.network, draft.sequence, draft.fused, seed, case.periodic)
    value, switching = state[REG][VALUE], 0.15 if case.forms.matters else 0.0
    for temperature in (2.0, 0.5):
        case.kernels.anneal_moves(case.network, state, 60, temperature, 0, switching, case.periodic)
        timing.settle(case.network, state, case.periodic)
        order = order_of(problem, state[SEQUENCE][: case.nodes], state[FUSED][: case.nodes])
        assert state[REG][VALUE] >= exact(problem, order)  # answers are timed anew, so never too good is enough
        chain = state[CHAIN][: state[REG][CHAINED]]
        assert len(set(chain)) == len(chain)
    case.kernels.tabu_moves(case.network, state, 60, 3, 0, case.periodic)
    best = order_of(problem, state[BEST_SEQUENCE][: case.nodes], state[BEST_FUSED][: case.nodes])
    assert exact(problem, best) <= state[REG][BEST] <= value


def tiny(seed):
    """A tiny problem with slow links, and the optimum over every order."""
    rng = random.Random(seed)
    problem = tiny_problem(
        rng, rng.choice((None, 3)), sizes=((2, 2), (2, 2), (1, 2), (2, 3)) if seed % 4 else ((3, 2),)
    )
    if problem.placement.ranks > 2 or problem.microbatches > 2:
        problem = dataclasses.replace(problem, allow=frozenset({"fused"} if problem.placement.ranks > 2 else {"split"}))
    link = Link(
        latency_ns=rng.choice((0, 1, 3)),
        bytes_per_second=10**9 // rng.choice((1, 2, 5)),
        queueing=rng.choice(("link", "sender")),
    )
    problem = dataclasses.replace(problem, profile=dataclasses.replace(problem.profile, link=link))
    pipe = _Pipeline(problem)
    by_stage = []
    for s, cost in enumerate(pipe.costs):
        limit = pipe.limits[s]
        rows = rows_of(problem.microbatches, problem.allow)
        by_stage.append([row for row in rows if limit is None or peak(row, cost) <= limit])
    found = (value_within_limits(problem, pipe.order(list(rows))) for rows in itertools.product(*by_stage))
    return problem, min((value for value in found if value is not None), default=None)


@pytest.mark.parametrize("seed", range(24))
def test_bounds_and_search_against_the_optimum_of_every_order(seed):
    problem, best = tiny(seed)
    if best is None:
        with pytest.raises(Infeasible):
            lower_bounds(problem)
        return
    for bound in lower_bounds(problem):
        assert bound.value_ns <= best, bound
    solution = solve(problem, work_limit=3_000, workers=1, seed=seed)
    assert solution.lower_bound_ns <= best <= solution.value_ns
    check(problem, solution.timetable, claimed_ns=solution.value_ns)
    assert best == solution.value_ns
