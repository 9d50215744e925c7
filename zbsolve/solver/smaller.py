"""Solving the same problem with fewer microbatches, and running its loops more often.

A search sees more of a small problem in the same time. Its filling and draining are those of the
large one, and what lies between repeats (`zbsolve.solver.stretching`). The small problem begins with
list schedules or with an order of the large one that some loops are left out of.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from zbsolve.opgraph import OpGraph
from zbsolve.problem import Problem
from zbsolve.solver.budget import Budget
from zbsolve.solver.case import Case
from zbsolve.solver.compiled import plain
from zbsolve.solver.local_search import anneal
from zbsolve.solver.network import BASE, LIMIT, NET_CHANGE, RANK, order_of
from zbsolve.solver.portfolio import scan
from zbsolve.solver.state import END, new_state
from zbsolve.solver.stretching import Int64, Loop, leave_out, loops, plans, run_loops
from zbsolve.solver.tasks import Anneal, Find, Found, Length, Scan, Shrink
from zbsolve.solver.twins import order_in_turn
from zbsolve.timetable import Order

__all__ = [
    "carried_over",
    "longer",
    "shorter",
    "shrink",
    "small_sizes",
    "smaller_case",
    "stretched",
    "turn_over",
    "worth_shrinking",
]

_TIGHT, _ROOMY = (4, 5, 6), (3, 2, 4)
"""Microbatches of the small problem, in those that are in flight at most: some to fill, some to drain, and what lies
between. Where fewer are in flight than there are stages, orders need more turns to settle down."""

_RUNS = 6
"""Annealing runs on the small problem."""

_SCAN = (0.2, 0.5)
"""The part of the work for list schedules of the small problem."""

_LONG = 12_000
"""Operations from which on the small problem gets one annealing run, not several."""

_TRIED = 6
"""Loops of one small order that are tried on the large problem."""


def turn_over(case: Case) -> int:
    """The most microbatches in flight on the rank where the fewest fit, at most as many as there are stages."""
    net, problem = case.arrays, case.problem
    stages = problem.placement.stages
    firsts = np.arange(stages) * problem.microbatches
    held = np.bincount(net[RANK][firsts], weights=net[NET_CHANGE][2 * firsts], minlength=problem.placement.ranks)
    room = (net[LIMIT] - net[BASE])[: problem.placement.ranks]
    most = min((int(r // h) for r, h in zip(room.tolist(), held.tolist(), strict=True) if h), default=stages)
    return max(1, min(stages, most))


def small_sizes(case: Case) -> list[int]:
    """Numbers of microbatches of small problems, so that whole turns are missing.

    None where there is no steady part: with several routes, or microbatches that differ, as slices do by their place.
    """
    turn, microbatches = turn_over(case), case.problem.microbatches
    wanted = _TIGHT if turn < case.problem.placement.stages else _ROOMY
    sizes = [size * turn + (microbatches - size * turn) % turn for size in wanted]
    problem = case.problem
    alike = len(problem.placement.routes) == 1 and problem.microbatch_factors is None and problem.slices == 1
    return [size for size in sizes if 4 * size <= 3 * microbatches] if alike else []


def worth_shrinking(case: Case) -> bool:
    """True if the iteration is long enough for a steady part."""
    return bool(small_sizes(case))


def shrink(task: Shrink, case: Case, budget: Budget, hand: Callable[[Find], None]) -> None:
    """Hand out the best orders of a smaller problem, stretched and timed."""
    for found in stretched(case, task, budget):
        hand(found)


def stretched(case: Case, task: Shrink, budget: Budget) -> Iterator[Found]:
    """Search a smaller problem and give its best orders, stretched and timed."""
    rng, problem = random.Random(task.seed), case.problem
    size = rng.choice(small_sizes(case))
    few = smaller_case(case, size)
    known = None
    if rng.random() < 0.5:
        known = shorter(case, few, task.sequence, task.fused)
    if known is not None:
        pool = [known]
    else:
        scan = Scan(plain=False, length=_part(budget, rng.choice(_SCAN)), seed=task.seed, keep=30, target_ns=0)
        pool = sorted(_search(few, scan, budget), key=lambda found: found.value_ns)
        if pool:
            yield from longer(few, case, pool[0], budget)
    runs = _RUNS if few.nodes < _LONG else 1
    for left in range(runs, 0, -1):
        if budget.over or not pool:
            return
        start = pool[int(len(pool) * rng.random() ** 2)] if left > 1 else pool[0]
        anneal = Anneal(
            sequence=start.sequence,
            fused=start.fused,
            first=rng.choice((0.1, 0.3, 0.6, 1.1)) * problem.placement.ranks / few.nodes,
            ratio=1 / 30,
            target_ns=0,
            length=_part(budget, 1 / left),
            seed=task.seed + left,
        )
        better = _search(few, anneal, budget)[-1:]
        pool = sorted(pool + better, key=lambda found: found.value_ns)
        for found in better:
            yield from longer(few, case, found, budget)


def smaller_case(case: Case, size: int) -> Case:
    """The same with fewer microbatches, all alike."""
    problem = dataclasses.replace(
        case.problem,
        microbatches=size,
        memory_limit=case.problem.limit_bytes,
        route_of=None,
        microbatch_factors=None,
    )
    return Case(problem, case.kernels)


def longer(few: Case, case: Case, found: Found, budget: Budget) -> Iterator[Found]:
    """An order of a small case as orders of a larger one, each better than those before."""
    rows, turn = _rows(few, found), turn_over(case)
    more = case.problem.microbatches - few.problem.microbatches
    sizes = range(1, min(2 * turn + 1, more) + 1)
    there = _promising(loops(rows, few.problem.microbatches, sizes), turn, _paces(few, found))
    best = None
    for plan in plans(there, more)[:_TRIED]:
        if budget.over:
            return
        budget.spend(1)
        whole = run_loops(rows, _forms(few, found.fused), few.problem.microbatches, plan)
        read = whole and case.read_open(whole[0], whole[1])
        if read and (best is None or read.value_ns < best.value_ns):
            best = read
            yield best


def carried_over(problem: Problem, order: Order) -> Order | None:
    """An order of a problem with another number of microbatches as an order of this one.

    Parameters
    ----------
    problem
        What is asked.
    order
        With more microbatches, of which the last ones are left out, or fewer, and loops that run more often.

    Returns
    -------
    The best of these; None if it has no loops or does not fit the memory, or sequences are in slices.

    Raises
    ------
    OrderError
        If it is no order of the problem with its own number of microbatches.
    """
    present = 1 + max((op.microbatch or 0 for row in order.rows for op in row), default=0)
    if problem.slices > 1:
        return None
    case = Case(problem, plain())
    if present > problem.microbatches:
        order = leave_out(order, problem.microbatches)
    few = case if present >= problem.microbatches else smaller_case(case, present)
    graph = OpGraph.build(few.problem, order.rows)  # refuses what is no order of the problem
    found = few.read(order_in_turn(graph, order))
    if found is not None and few is not case:
        found = min(longer(few, case, found, Budget(math.inf, None)), key=lambda each: each.value_ns, default=None)
    return None if found is None else order_of(problem, found.sequence.tolist(), found.fused.tolist())


def shorter(case: Case, few: Case, sequence: Any, fused: Any) -> Found | None:
    """An order of a case with a loop left out, for a smaller one; None if there is no such loop."""
    found = Found(0, sequence, fused)
    rows, missing = _rows(case, found), case.problem.microbatches - few.problem.microbatches
    for plan in plans(loops(rows, case.problem.microbatches, [missing]), -missing)[:_TRIED]:
        rest = run_loops(rows, _forms(case, fused), case.problem.microbatches, plan)
        read = rest and few.read_open(rest[0], rest[1])
        if read:
            return read
    return None


def _rows(case: Case, found: Found) -> list[Int64]:
    """By rank, the nodes of an order that belong to a microbatch; ghosts need not stand right behind their B."""
    sequence = np.asarray(found.sequence, dtype=np.int64)
    sequence = sequence[sequence < _of_microbatches(case)]
    rank = case.rank[sequence]
    return [sequence[rank == r] for r in range(case.problem.placement.ranks)]


def _forms(case: Case, fused: Any) -> list[int]:
    """By node of `_rows`, whether it is fused."""
    forms: list[int] = fused[: _of_microbatches(case)].tolist()
    return forms


def _of_microbatches(case: Case) -> int:
    """The number of nodes that belong to a microbatch; behind them are those that end the iteration."""
    return 3 * case.problem.placement.stages * case.problem.microbatches


def _paces(case: Case, found: Found) -> Callable[[Loop], float]:
    """Gives the time that a loop of an order takes for each of its microbatches."""
    state = new_state(case.network, found.sequence.tolist(), found.fused.tolist(), 0)
    case.kernels.load(case.network, state, case.periodic)
    microbatches, stages = case.problem.microbatches, case.problem.placement.stages
    # ends of the gradients, by stage
    ends = np.asarray(state[END][: _of_microbatches(case)]).reshape(3, stages, microbatches)[1]

    def pace(loop: Loop) -> float:
        last = min(loop.first + loop.size, microbatches - 1)
        return float((ends[:, last] - ends[:, last - loop.size]).mean()) / loop.size

    return pace


def _promising(there: list[Loop], turn: int, pace: Callable[[Loop], float]) -> list[Loop]:
    """Loops by their pace, the two best of each size.

    Microbatches that run in flocks follow each other faster than any order could go on for long, so what a
    loop takes says something only where it holds at least a flock; shorter ones come last.
    """
    taken: Counter[int] = Counter()
    best = []
    for loop in sorted(there, key=lambda loop: (loop.size + 1 < turn, pace(loop))):
        taken[loop.size] += 1
        if taken[loop.size] <= 2:
            best.append(loop)
    return best


def _part(budget: Budget, share: float) -> Length:
    """A part of what is left, with some of it kept for stretching."""
    left = budget.steps_left
    if left is None:
        return Length(seconds=0.9 * share * budget.seconds_left)
    return Length(steps=max(1, int(share * left)))


def _search(case: Case, task: Scan | Anneal, budget: Budget) -> list[Found]:
    found: list[Found] = []
    own = task.length.from_now(budget.deadline)

    def hand(find: Find) -> None:
        if isinstance(find, Found):
            found.append(find)

    if isinstance(task, Scan):
        scan(task, case, own, hand)
    else:
        anneal(task, case, own, hand)
    budget.spend(own.spent)
    return found
