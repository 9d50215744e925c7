"""Many list schedules and every published one: the pool that the rest of the search starts from."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

from zbsolve.catalog import baseline, schedules
from zbsolve.catalog.zero_bubble import greedy_orders
from zbsolve.errors import ScheduleConditionError
from zbsolve.opgraph import KINDS
from zbsolve.ops import Kind
from zbsolve.problem import Problem
from zbsolve.solver.budget import Budget
from zbsolve.solver.list_scheduler import NEVER, Rule, list_schedule
from zbsolve.solver.node_sets import NodeSet, NodeSets
from zbsolve.solver.pattern import Pattern
from zbsolve.solver.pool import Pool
from zbsolve.timetable import Order

__all__ = ["add_baselines", "add_plain", "add_random", "plain_rules", "random_rule"]

_FORWARD = KINDS.index(Kind.FORWARD)
_BACKWARD_WEIGHT = KINDS.index(Kind.BACKWARD_WEIGHT)
_LATE = 1e17

_RULES_A_SET = 4
"""Random rules tried on one choice of fused and split, which takes a few schedules' time to build."""


def plain_rules(pattern: Pattern) -> Iterator[Rule]:
    """A dozen rules without chance: weight gradients filling gaps, or late, under the usual in-flight limits."""
    stages = max(pattern.stage) + 1
    unit = max(pattern.duration)
    limits = (lambda _: NEVER, lambda s: 2 * (stages - s) - 1, lambda s: stages - s)
    for limit in limits:
        for wait in (0.0, 0.5 * unit, 1.0 * unit, _LATE):
            yield Rule(
                penalty=[wait if k == _BACKWARD_WEIGHT else 0.0 for k in pattern.kind],
                in_flight=[limit(s) for s in pattern.stage],
            )


def random_rule(pattern: Pattern, rng: random.Random) -> Rule:
    """One rule of chance."""
    stages = max(pattern.stage) + 1
    unit = max(1.0, sum(pattern.duration) / len(pattern.duration))
    weight = rng.choice((0.0, rng.uniform(0, 0.5), rng.uniform(0.3, 2.5), rng.uniform(0.3, 2.5), _LATE / unit))
    forward = rng.choice((0.0, 0.0, rng.uniform(-0.5, 1.5), rng.uniform(0, 0.2)))
    jitter = rng.choice((0.0, 0.0, 0.1, 0.4))
    penalty = []
    for k in pattern.kind:
        asked = weight if k == _BACKWARD_WEIGHT else forward if k == _FORWARD else 0.0
        penalty.append(unit * (asked + jitter * rng.uniform(-1, 1)))
    shape = rng.randrange(6)
    slope, offset, flat = rng.uniform(0.6, 2.6), rng.uniform(-1, 3), rng.randint(1, 2 * stages)
    waver = rng.choice((0, 0, 1, 2))
    in_flight = []
    for s in pattern.stage:
        left = stages - s
        if shape <= 1:
            most = NEVER
        elif shape == 2:
            most = left + int(offset)
        elif shape == 3:
            most = 2 * left - 1 + int(offset)
        elif shape == 4:
            most = int(slope * left + offset)
        else:
            most = flat
        in_flight.append(most + (rng.randint(-waver, waver) if waver else 0))
    return Rule(
        penalty=penalty,
        in_flight=in_flight,
        noise=unit * rng.choice((0.0, 0.0, 0.05, 0.2, 0.5)),
        urgent=rng.random() < 0.8,
        seed=rng.getrandbits(32),
    )


def add_plain(pool: Pool, node_sets: NodeSets, budget: Budget) -> None:
    """Add what the plain rules give, on each of the plain choices of fused and split."""
    for node_set in _plain_sets(node_sets):
        for number, rule in enumerate(plain_rules(node_set.pattern)):
            _try(pool, node_set, rule, f"list scheduler, plain rule {number}", budget)
            if pool.incumbent.done or (budget.over and pool.incumbent.order is not None):
                return


def add_random(pool: Pool, node_sets: NodeSets, budget: Budget, rng: random.Random) -> None:
    """Add what random rules give until the budget is over."""
    tried = 0
    while not (pool.incumbent.done or budget.over):
        if tried % _RULES_A_SET == 0:
            node_set = _random_set(node_sets, rng)
        tried += 1
        _try(pool, node_set, random_rule(node_set.pattern, rng), "list scheduler, random rule", budget)


def _try(pool: Pool, node_set: NodeSet, rule: Rule, method: str, budget: Budget) -> None:
    budget.spend(1)
    draft = list_schedule(node_set.pattern, rule)
    if draft is not None:
        pool.add(node_set.arrays, draft.sequence, method)


def _plain_sets(node_sets: NodeSets) -> list[NodeSet]:
    """Nothing fused that need not be; what is cheaper fused; everything fused."""
    chosen = (frozenset[int](), node_sets.cheap, frozenset(node_sets.stages))
    return list(dict.fromkeys(node_sets.get(fused) for fused in chosen))


def _random_set(node_sets: NodeSets, rng: random.Random) -> NodeSet:
    """Nothing fused, or what is cheaper, or everything; or, where it matters, a choice for each microbatch."""
    draw = rng.random()
    if not node_sets.matters:
        return node_sets.get(frozenset() if draw < 0.95 else frozenset(node_sets.stages))
    if draw < 0.2:
        return node_sets.get(frozenset())
    if draw < 0.4:
        return node_sets.get(node_sets.cheap)
    if draw < 0.5:
        return node_sets.get(frozenset(node_sets.stages))
    stages, microbatches = len(node_sets.stages), node_sets.problem.microbatches
    if draw < 0.65:
        share = rng.choice((0.2, 0.5, 0.8))
        table = [[rng.random() < share for _ in range(microbatches)] for _ in range(stages)]
        return node_sets.mixed(lambda s, j: table[s][j])
    # split where the pipeline fills or drains and there is time to wait in, fused between
    slope, flat = rng.choice((-1.0, -0.5, 0.0, 0.5, 1.0)), rng.randint(0, 3)
    first, last = rng.random() < 0.4, rng.random() < 0.8

    def fused(stage: int, microbatch: int) -> bool:
        depth = stage if slope < 0 else stages - 1 - stage
        reach = abs(slope) * depth + flat
        return not ((first and microbatch < reach) or (last and microbatches - 1 - microbatch < reach))

    return node_sets.mixed(fused)


def add_baselines(pool: Pool, budget: Budget) -> None:
    """Add every published schedule that fits, however short the time: the answer is never worse than one of them."""
    for method, order in _published(pool.problem):
        budget.spend(1)
        pool.add_order(order, method)
        if pool.incumbent.done:
            return


def _published(problem: Problem) -> Iterator[tuple[str, Order]]:
    for schedule in schedules():
        # these are the greedy's best at the problem's own limit, which its runs give below
        if schedule.name in ("zb-1p", "zb-2p") and None not in problem.limit_bytes:
            continue
        with contextlib.suppress(ScheduleConditionError):
            yield schedule.name, baseline(schedule.name, problem)
    with contextlib.suppress(ScheduleConditionError):
        yield from greedy_orders(problem)
