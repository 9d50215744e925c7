"""Solving the same problem with fewer microbatches, and stretching what comes out.

A search sees more of a small problem in the same time. Its filling and draining are those of the
large one, and what lies between repeats.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

from zbsolve.catalog.closing import closed
from zbsolve.problem import Problem
from zbsolve.solver.budget import Budget
from zbsolve.solver.network import order_of
from zbsolve.solver.stretching import stretch
from zbsolve.solver.tasks import Anneal, Case, Found, Length, Scan, run

__all__ = ["stretched", "worth_shrinking"]

_SIZES = (3, 2, 4)
"""Microbatches of the small problem, in stages: one to fill, one to drain, and what lies between."""

_RUNS = 6
"""Annealing runs on the small problem."""

_SCAN = 0.2
"""The part of the work for list schedules of the small problem."""


def worth_shrinking(problem: Problem) -> bool:
    """True if the iteration is long enough for a steady part, its microbatches are alike, and there is one route."""
    alike = len(problem.placement.routes) == 1 and problem.microbatch_factors is None
    return alike and problem.microbatches > (_SIZES[0] + 1) * problem.placement.stages


def stretched(case: Case, budget: Budget, seed: int) -> Iterator[Found]:
    """Search a smaller problem and give its best orders, stretched and timed."""
    rng, problem = random.Random(seed), case.problem
    small = dataclasses.replace(
        problem,
        microbatches=rng.choice(_SIZES) * problem.placement.stages,
        memory_limit=problem.limit_bytes,
        route_of=None,
    )
    few = Case(small, case.kernels)
    pool = _search(few, Scan(plain=False, length=_part(budget, _SCAN), seed=seed, keep=30, target_ns=0), budget)
    for left in range(_RUNS, 0, -1):
        if budget.over or not pool:
            break
        start = pool[int(len(pool) * rng.random() ** 2)]
        task = Anneal(
            sequence=start.sequence,
            fused=start.fused,
            first=rng.choice((0.3, 0.6, 1.1)) * problem.placement.ranks / few.nodes,
            ratio=1 / 30,
            target_ns=0,
            length=_part(budget, 1 / left),
            seed=seed + left,
        )
        pool += _search(few, task, budget)[-1:]
    pool.sort(key=lambda found: found.value_ns)
    for found in pool[:_RUNS]:
        order = stretch(order_of(small, found.sequence.tolist(), found.fused.tolist()), problem.microbatches)
        whole = None if order is None else case.read(closed(problem, order))
        if whole is not None:
            yield whole


def _part(budget: Budget, share: float) -> Length:
    """A part of what is left, with some of it kept for stretching."""
    left = budget.steps_left
    if left is None:
        return Length(seconds=0.9 * share * budget.seconds_left)
    return Length(steps=max(1, int(share * left)))


def _search(case: Case, task: Scan | Anneal, budget: Budget) -> list[Found]:
    found: list[Found] = []
    done = run(task, case, budget.deadline, lambda find: found.append(find) if isinstance(find, Found) else None)
    budget.spend(done.steps)
    return found
