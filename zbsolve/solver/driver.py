"""The way a problem is solved: bounds first, then cheap orders, then better ones, until proof or time stops it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from zbsolve.errors import NothingFound
from zbsolve.metrics import metrics
from zbsolve.problem import Problem
from zbsolve.simulate import simulate
from zbsolve.solution import Bound, Solution
from zbsolve.solver.budget import Budget
from zbsolve.solver.incumbent import Incumbent, Progress
from zbsolve.solver.node_sets import NodeSets
from zbsolve.solver.pool import Pool
from zbsolve.solver.portfolio import add_baselines, add_list_schedules
from zbsolve.timetable import Order, Timetable

__all__ = ["solve"]


def solve(
    problem: Problem,
    *,
    time_limit_s: float = 60.0,
    work_limit: int | None = None,
    gap: float = 0.0,
    seed: int = 0,
    workers: int | None = None,
    start: Order | Timetable | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Solution:
    """Find the best timetable and prove how good it is."""
    started = time.perf_counter()
    budget = Budget(started + time_limit_s, work_limit)
    incumbent = Incumbent(_bound(problem), gap, started, on_progress)
    try:
        _search(problem, incumbent, budget, seed)
    except KeyboardInterrupt:
        if incumbent.order is None:
            raise
    if incumbent.order is None:
        raise NothingFound("no timetable was found in time; raise the time limit or the memory limit")
    return _solution(problem, incumbent, started, seed)


def _bound(problem: Problem) -> Bound:
    try:
        from zbsolve.bounds import lower_bound
    except ImportError:
        load = [0] * problem.placement.ranks
        for row in problem.operations():
            for op in row:
                c = problem.cost(op.stage, op.microbatch or 0)
                apart = c.backward_input_ns + c.backward_weight_ns
                if op.kind == "forward":
                    load[problem.rank_of(op)] += c.forward_ns + min(apart, c.backward_ns)
        return Bound(max(load), "load")
    return lower_bound(problem)


def _search(problem: Problem, incumbent: Incumbent, budget: Budget, seed: int) -> None:
    rng = random.Random(seed)
    pool, node_sets = Pool(problem, incumbent), NodeSets(problem)
    add_list_schedules(pool, node_sets, budget.part(0.05, most_steps=40), rng)
    if not incumbent.done:
        add_baselines(pool, budget.part(0.5))
    if not incumbent.done:
        add_list_schedules(pool, node_sets, budget.part(0.3), rng)


def _solution(problem: Problem, incumbent: Incumbent, started: float, seed: int) -> Solution:
    assert incumbent.order is not None
    timetable = simulate(problem, incumbent.order)
    value = timetable.period_ns if problem.objective == "period" else timetable.makespan_ns
    bound = incumbent.bound
    return Solution(
        timetable=timetable,
        metrics=metrics(timetable),
        status="optimal" if value == bound.value_ns else "feasible",
        value_ns=value,
        lower_bound_ns=bound.value_ns,
        bound=bound.name,
        gap=value / bound.value_ns - 1,
        seconds=time.perf_counter() - started,
        seed=seed,
        method=incumbent.method,
        digest=problem.digest,
    )
