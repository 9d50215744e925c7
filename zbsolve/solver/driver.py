"""The way a problem is solved: bounds first, then cheap orders, then better ones, until proof or time stops it.

    bounds -> plain list schedules -> published schedules -> random list schedules -> fusing
           -> a smaller problem, stretched -> annealing from many -> CP-SAT -> annealing from the best
           -> fusing -> exact times

Every arrow asks first whether value and bound have met.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable

from zbsolve.bounds import lower_bound
from zbsolve.errors import InvalidInput, NothingFound
from zbsolve.metrics import metrics
from zbsolve.problem import Problem
from zbsolve.simulate import simulate
from zbsolve.solution import Solution
from zbsolve.solver.budget import Budget
from zbsolve.solver.fusing import Fuser, fuse
from zbsolve.solver.improvement import Improver
from zbsolve.solver.incumbent import Incumbent, Progress, relative_gap
from zbsolve.solver.node_sets import NodeSets
from zbsolve.solver.pool import Pool
from zbsolve.solver.portfolio import add_baselines, add_plain, add_random
from zbsolve.solver.smaller import add_stretched, worth_shrinking
from zbsolve.solver.stretching import stretch
from zbsolve.timetable import Order, Timetable

__all__ = ["solve"]

_PORTFOLIO, _SMALLER, _SHORT, _CPSAT = 0.12, 0.12, 0.4, 0.25
"""Parts of what is left that random list schedules, the smaller problem, short annealing starts and CP-SAT may take."""

_MOST_RANDOM = 3_000
"""Random list schedules under a work limit; more add little."""

_FUSING_NODES = 500_000
"""Operations timed while the answer is fused at the end."""

_FINISH_S = 5e-5
"""Seconds an operation that fusing, timing and measuring the answer take, kept back from the search."""

_ROUND_S, _ROUND_STEPS = 6.0, 60_000
"""What one round of long annealing runs takes."""


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
    """Find the best timetable and prove how good it is.

    Parameters
    ----------
    problem
        What is asked. Any placement; the search is strongest with one chunk a rank.
    time_limit_s
        Wall time in seconds.
    work_limit
        A limit in search steps: evaluated schedules and annealing moves, and CP-SAT's own
        deterministic time at 10 000 steps a unit. With it the same seed and workers give the same
        order on any machine, provided that the time limit is not reached.
    gap
        Stop as soon as value / bound - 1 is at most this.
    seed
        Of all random choices.
    workers
        Processes, and threads of CP-SAT; default as many as there are CPUs for this process.
    start
        An order to begin with: of this problem, or of one with other costs, limits or number of
        microbatches. It is left out if it exceeds the memory limit or cannot be stretched.
    on_progress
        Called whenever the best order or the bound improves.

    Returns
    -------
    Solution
        Its status is ``"optimal"`` if value and bound are equal. An interrupt (Ctrl-C) ends the
        search and returns the best so far.

    Raises
    ------
    Infeasible
        If no timetable fits the memory limit; names the smallest limits that would do.
    InvalidInput
        If an argument makes no sense.
    OrderError
        If `start` is no order of this problem.
    NothingFound
        If no timetable was found in time.
    KeyboardInterrupt
        If it comes before the first order is known.
    """
    started = time.perf_counter()
    _check_arguments(time_limit_s, work_limit, gap, workers)
    incumbent = Incumbent(lower_bound(problem), gap, started, on_progress)
    operations = 3 * problem.placement.stages * problem.microbatches
    finish = min(0.3 * time_limit_s, _FINISH_S * operations)
    budget = Budget(started + time_limit_s - finish, work_limit)
    try:
        _search(problem, incumbent, budget, seed, workers or _available_cpus(), start, gap)
    except KeyboardInterrupt:
        if incumbent.order is None:
            raise
    if incumbent.order is None:
        raise NothingFound(
            "no timetable was found; give more time, a larger work limit, or a larger memory limit "
            "(with several chunks a rank the search keeps some memory in reserve)"
        )
    return _solution(problem, incumbent, started, seed)


def _check_arguments(time_limit_s: float, work_limit: int | None, gap: float, workers: int | None) -> None:
    if not (math.isfinite(time_limit_s) and time_limit_s > 0):
        raise InvalidInput(f"the time limit must be a positive number of seconds, got {time_limit_s!r}")
    if work_limit is not None and work_limit < 1:
        raise InvalidInput(f"the work limit must be at least 1 step, got {work_limit!r}")
    if not (math.isfinite(gap) and gap >= 0):
        raise InvalidInput(f"the gap must be 0 or more, got {gap!r}")
    if workers is not None and workers < 1:
        raise InvalidInput(f"the search needs at least 1 worker, got {workers!r}")


def _available_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def _search(
    problem: Problem,
    incumbent: Incumbent,
    budget: Budget,
    seed: int,
    workers: int,
    start: Order | Timetable | None,
    gap: float,
) -> None:
    pool, node_sets = Pool(problem, incumbent), NodeSets(problem)
    if start is not None:
        _add_start(pool, start.order if isinstance(start, Timetable) else start)
    improver = Improver(pool, node_sets, seed=seed, workers=workers, gap=gap)
    rng, fuser = random.Random(seed), Fuser(pool)

    def fuse_best(count: int) -> None:
        if node_sets.matters:
            fuser.best(count, budget.part(0.1))

    steps: tuple[Callable[[], None], ...] = (
        lambda: add_baselines(pool, budget.part(0.5)),
        lambda: add_plain(pool, node_sets, budget.part(0.5)),
        lambda: add_random(pool, node_sets, budget.part(_PORTFOLIO, most_steps=_MOST_RANDOM), rng),
        lambda: fuse_best(100),
        lambda: _stretch(pool, budget, seed, workers),
        lambda: improver.short_starts(budget.part(_SHORT)),
        lambda: fuse_best(30),
        lambda: improver.cpsat(budget.part(_CPSAT)),
        lambda: improver.long_runs(budget.part(0.5), _rounds(budget)),
        lambda: fuse_best(10),
        lambda: improver.long_runs(budget.part(0.95), _rounds(budget)),
        lambda: fuse_best(10),
    )
    for step in steps:
        if not incumbent.done and not (budget.over and incumbent.order is not None):
            step()


def _add_start(pool: Pool, order: Order) -> None:
    """Take a given order in, stretched if it has another number of microbatches."""
    present = 1 + max((op.microbatch or 0 for row in order.rows for op in row), default=0)
    stretched = order if present == pool.problem.microbatches else stretch(order, pool.problem.microbatches)
    if stretched is not None:
        pool.add_order(stretched, "the given start")


def _stretch(pool: Pool, budget: Budget, seed: int, workers: int) -> None:
    if worth_shrinking(pool.problem):
        add_stretched(pool, budget.part(_SMALLER), seed=seed, workers=workers)


def _rounds(budget: Budget) -> int:
    left = budget.steps_left
    return max(1, int(budget.seconds_left / 2 / _ROUND_S) if left is None else left // 2 // _ROUND_STEPS)


def _solution(problem: Problem, incumbent: Incumbent, started: float, seed: int) -> Solution:
    """Time the best order exactly, fused wherever that costs nothing."""
    assert incumbent.order is not None
    trials = max(10, _FUSING_NODES // sum(map(len, incumbent.order.rows)))
    _, order = fuse(problem, incumbent.order, Budget(math.inf, trials))
    timetable = simulate(problem, order)
    value = timetable.period_ns if problem.objective == "period" else timetable.makespan_ns
    bound = incumbent.bound
    return Solution(
        timetable=timetable,
        metrics=metrics(timetable),
        status="optimal" if value == bound.value_ns else "feasible",
        value_ns=value,
        lower_bound_ns=bound.value_ns,
        bound=bound.name,
        gap=relative_gap(value, bound.value_ns),
        seconds=time.perf_counter() - started,
        seed=seed,
        method=incumbent.method,
        digest=problem.digest,
    )
