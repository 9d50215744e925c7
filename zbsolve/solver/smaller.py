"""Solving the same problem with fewer microbatches first, and stretching what comes out.

A search sees more of a small problem in the same time. Its filling and draining are those of the
large one, and what lies between repeats.
"""

from __future__ import annotations

import dataclasses
import random
import time

from zbsolve.problem import Problem
from zbsolve.solution import Bound
from zbsolve.solver.budget import Budget
from zbsolve.solver.improvement import Improver
from zbsolve.solver.incumbent import Incumbent
from zbsolve.solver.node_sets import NodeSets
from zbsolve.solver.pool import Pool
from zbsolve.solver.portfolio import add_plain, add_random
from zbsolve.solver.stretching import stretch

__all__ = ["add_stretched", "worth_shrinking"]

_KEPT = 3
"""Microbatches of the small problem, in stages: one to fill, one to drain, one between."""

_TRIED = 20
"""The most orders of the small problem that are stretched."""


def worth_shrinking(problem: Problem) -> bool:
    """True if the iteration is long enough for a steady part, and there is only one route."""
    return len(problem.placement.routes) == 1 and problem.microbatches > (_KEPT + 1) * problem.placement.stages


def add_stretched(pool: Pool, budget: Budget, *, seed: int, workers: int) -> None:
    """Search the smaller problem for a while and add its best orders, stretched."""
    problem = pool.problem
    small = dataclasses.replace(
        problem,
        microbatches=_KEPT * problem.placement.stages,
        memory_limit=problem.limit_bytes,
        route_of=None,
    )
    # a bound of 0 never stops the search of the small problem: what counts is how it stretches
    incumbent = Incumbent(Bound(0, "none"), 0.0, time.perf_counter(), None)
    few, node_sets = Pool(small, incumbent), NodeSets(small)
    add_plain(few, node_sets, budget.part(0.3))
    add_random(few, node_sets, budget.part(0.2), random.Random(seed))
    if few.entries:
        Improver(few, node_sets, seed=seed, workers=workers, gap=0.0).short_starts(budget.part(0.8))
    for entry in few.entries[:_TRIED]:
        order = stretch(entry.order, problem.microbatches)
        if order is not None:
            budget.spend(1)
            pool.add_order(order, "steady stretch of a smaller solution")
        if budget.over or pool.incumbent.done:
            return
