"""Many list schedules and every published one: the pool that the rest of the search starts from."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from zbsolve.catalog import baseline, schedules
from zbsolve.catalog.closing import closed, open_ended
from zbsolve.catalog.zero_bubble import greedy_orders
from zbsolve.errors import ScheduleConditionError
from zbsolve.problem import Problem
from zbsolve.solver.budget import Budget
from zbsolve.solver.case import Case, Numbered
from zbsolve.solver.forms import Forms
from zbsolve.solver.listing import NEVER, new_rule
from zbsolve.solver.network import CLASS_PTR, MEMBER, NET_DURATION, SHAPE, Table
from zbsolve.solver.permuted import renumbered, sequences, with_own_numbers
from zbsolve.solver.pool import Pool
from zbsolve.solver.state import FUSED, SEQUENCE, new_state
from zbsolve.solver.tasks import Find, Found, Scan
from zbsolve.timetable import Order

__all__ = [
    "STEPS_A_DRAFT",
    "Class",
    "add_plain",
    "add_published",
    "classes_of",
    "draft",
    "plain_choices",
    "plain_drafts",
    "plain_rules",
    "published",
    "published_names",
    "random_drafts",
    "random_rule",
    "scan",
]

_LATE = 1e17

STEPS_A_DRAFT = 100
"""Moves that take as long as a random list schedule."""

_RULES_A_NUMBERING = 4
"""Plain rules, those without a limit of their own on what is in flight, for each other numbering of microbatches."""

_RULES_A_CHOICE = 4
"""Random rules tried on one choice of fused and split."""

GREEDY = "zero-bubble greedy"
"""As a name: every run of it."""


@dataclass(frozen=True, slots=True)
class Class:
    """What a rule may look at of a twin class.

    Parameters
    ----------
    part
        0 forward, 1 input gradient, 2 weight gradient, 3 what ends the iteration.
    stage, duration
        Its stage, and its ns.
    microbatch
        The first of its microbatches.
    """

    part: int
    stage: int
    duration: int
    microbatch: int


def classes_of(case: Case) -> list[Class]:
    """The twin classes of a case."""
    net, thirds, microbatches = case.arrays, int(case.arrays[SHAPE][5]), case.problem.microbatches
    count = int(net[SHAPE][2])
    first = net[MEMBER][net[CLASS_PTR][:count]]
    first = np.minimum(first, 3 * thirds)
    return [
        Class(
            part=node // thirds,
            stage=node % thirds // microbatches,
            duration=int(net[NET_DURATION][2 * node]) if node < 3 * thirds else 0,
            microbatch=node % thirds % microbatches,
        )
        for node in first.tolist()
    ]


def plain_rules(case: Case) -> Iterator[Table]:
    """A dozen rules without chance: weight gradients filling gaps, or late, under the usual in-flight limits."""
    classes = classes_of(case)
    stages = case.problem.placement.stages
    unit = max(c.duration for c in classes)
    limits = (lambda _: NEVER, lambda s: 2 * (stages - s) - 1, lambda s: stages - s)
    for limit in limits:
        for wait in (0.0, 0.5 * unit, 1.0 * unit, _LATE):
            penalty = [wait if c.part == 2 else 0.0 for c in classes]
            yield new_rule(case.network, penalty, [_of_class(case, c, limit(c.stage)) for c in classes], 0.0, True)


def _of_class(case: Case, c: Class, in_flight: int) -> int:
    """A limit on whole microbatches in flight as one on those of a class.

    Of sequences in k slices it lets k - 1 slices more in, which come before the first backward; by the order in
    which backwards come, first slices stay longest.
    """
    slices = case.problem.slices
    if slices == 1 or in_flight >= NEVER:
        return in_flight
    return -(-(in_flight + 2 * (slices - 1 - c.microbatch % slices)) // slices)


def random_rule(case: Case, classes: Sequence[Class], rng: random.Random) -> Table:
    """One rule of chance."""
    stages = case.problem.placement.stages
    unit = max(1.0, sum(c.duration for c in classes) / len(classes))
    weight = rng.choice((0.0, rng.uniform(0, 0.5), rng.uniform(0.3, 2.5), rng.uniform(0.3, 2.5), _LATE / unit))
    forward = rng.choice((0.0, 0.0, rng.uniform(-0.5, 1.5), rng.uniform(0, 0.2)))
    jitter = rng.choice((0.0, 0.0, 0.1, 0.4))
    turn = _turns(case.problem, rng)
    penalty = []
    for c in classes:
        asked = (forward, 0.0, weight, 0.0)[c.part]
        penalty.append(unit * (asked + jitter * rng.uniform(-1, 1)) + (turn[c.microbatch] if turn else 0.0))
    shape = rng.randrange(6)
    slope, offset, flat = rng.uniform(0.6, 2.6), rng.uniform(-1, 3), rng.randint(1, 2 * stages)
    waver = rng.choice((0, 0, 1, 2))
    in_flight = []
    for c in classes:
        left = stages - c.stage
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
        in_flight.append(_of_class(case, c, most + (rng.randint(-waver, waver) if waver else 0)))
    noise = unit * rng.choice((0.0, 0.0, 0.05, 0.2, 0.5))
    return new_rule(case.network, penalty, in_flight, noise, rng.random() < 0.8)


def _turns(problem: Problem, rng: random.Random) -> list[float]:
    """By microbatch what it has to wait for others that are preferred, in ns; nothing where all are alike."""
    tried = list(sequences(problem))
    if not tried or rng.random() < 0.2:
        return []
    _, sequence = rng.choice(tried)
    step = rng.choice((1.0, 1.0, problem.cost(0, sequence[0]).forward_ns * rng.uniform(0.05, 1.0)))
    turn = [0.0] * problem.microbatches
    for place, microbatch in enumerate(sequence):
        turn[microbatch] = place * step
    return turn


def add_plain(pool: Pool, budget: Budget) -> None:
    """Add what the plain rules give, on each of the plain choices of fused and split."""
    for found in plain_drafts(pool.case, budget):
        pool.add(found.value_ns, found.sequence, found.fused, found.method)
        if pool.incumbent.done:
            return


def plain_drafts(case: Case, budget: Budget) -> Iterator[Found]:
    """What the plain rules give, with other numbers of the microbatches only a few of them; at least one that fits."""
    any_yet = False
    for found in _all_plain(case, budget):
        if found is not None:
            any_yet = True
            yield found
        if budget.over and any_yet:
            return


def _all_plain(case: Case, budget: Budget) -> Iterator[Found | None]:
    for forms in plain_choices(case.forms):
        for number, rule in enumerate(plain_rules(case)):
            found = draft(case, forms, rule, 0, budget)
            yield found and dataclasses.replace(found, method=f"list scheduler, plain rule {number}")
    for other in case.others:
        for forms in plain_choices(other.case.forms):
            for number, rule in enumerate(itertools.islice(plain_rules(other.case), _RULES_A_NUMBERING)):
                found = draft(other.case, forms, rule, 0, budget)
                method = f"list scheduler, plain rule {number}, {other.title}"
                yield found and dataclasses.replace(other.own(found), method=method)


def random_drafts(case: Case, budget: Budget, rng: random.Random) -> Iterator[Found]:
    """What random rules give, until the budget is over; where microbatches differ, half of it with other numbers."""
    tried = 0
    classes: dict[Numbered | None, list[Class]] = {}
    while not budget.over:
        if tried % _RULES_A_CHOICE == 0:
            other = rng.choice(case.others) if case.others and rng.random() < 0.5 else None
            as_numbered = other.case if other else case
            forms = _random_choice(as_numbered.forms, rng)
            if other not in classes:
                classes[other] = classes_of(as_numbered)
        tried += 1
        budget.spend(STEPS_A_DRAFT - 1)
        rule = random_rule(as_numbered, classes[other], rng)
        found = draft(as_numbered, forms, rule, rng.getrandbits(31), budget)
        if found is not None:
            yield other.own(found) if other else found


def scan(task: Scan, case: Case, budget: Budget, hand: Callable[[Find], None]) -> None:
    """List schedules by rules, the best of them handed out."""
    best: list[Found] = []
    drafts = plain_drafts(case, budget) if task.plain else random_drafts(case, budget, random.Random(task.seed))
    for found in drafts:
        if not best or found.value_ns < best[0].value_ns:
            hand(found)
        if len(best) < task.keep or found.value_ns < best[-1].value_ns:
            best.append(found)
            best.sort(key=lambda f: f.value_ns)
            del best[task.keep :]
        if found.value_ns <= task.target_ns:
            break
    for found in best[1:]:
        hand(found)


def draft(case: Case, forms: list[int], rule: Table, seed: int, budget: Budget) -> Found | None:
    """The list schedule of a rule, timed."""
    budget.spend(1)
    state = new_state(case.network, range(case.nodes), forms, seed)
    if not case.kernels.list_schedule(case.network, state, rule):
        return None
    value = case.kernels.load(case.network, state, case.periodic)
    if value < 0:
        return None
    sequence, fused = (np.asarray(state[row][: case.nodes]) for row in (SEQUENCE, FUSED))
    return Found(int(value), sequence.astype(np.int32), fused.astype(np.int8))


def plain_choices(forms: Forms) -> list[list[int]]:
    """Nothing fused that need not be; what is cheaper fused; everything fused."""
    chosen: list[list[int]] = []
    for fused in (lambda s, j: False, lambda s, j: s in forms.cheap, lambda s, j: True):
        flags = forms.flags(fused)
        if flags not in chosen:
            chosen.append(flags)
    return chosen


def _random_choice(forms: Forms, rng: random.Random) -> list[int]:
    """Nothing fused, or what is cheaper, or everything; or, where it matters, a choice for each microbatch."""
    roll = rng.random()
    if not forms.matters:
        return forms.flags(lambda s, j: roll > 0.95)
    if roll < 0.2:
        return forms.flags(lambda s, j: False)
    if roll < 0.4:
        return forms.flags(lambda s, j: s in forms.cheap)
    if roll < 0.5:
        return forms.flags(lambda s, j: True)
    stages, microbatches = forms.stages, forms.microbatches
    if roll < 0.65:
        share = rng.choice((0.2, 0.5, 0.8))
        return forms.flags(lambda s, j: rng.random() < share)
    # split where the pipeline fills or drains and there is time to wait in, fused between
    slope, flat = rng.choice((-1.0, -0.5, 0.0, 0.5, 1.0)), rng.randint(0, 3)
    first, last = rng.random() < 0.4, rng.random() < 0.8

    def fused(stage: int, microbatch: int) -> bool:
        depth = stage if slope < 0 else stages - 1 - stage
        reach = abs(slope) * depth + flat
        return not ((first and microbatch < reach) or (last and microbatches - 1 - microbatch < reach))

    return forms.flags(fused)


def add_published(pool: Pool, budget: Budget) -> None:
    """Add every published schedule that fits, however short the time: the answer is never worse than one of them."""
    for name in published_names(pool.case.problem):
        for method, order in published(pool.case.problem, name):
            budget.spend(1)
            pool.add_order(order, method)
            if pool.incumbent.done:
                return


def published_names(problem: Problem) -> list[str]:
    """What `published` takes; first what takes longest, then what is most often best."""
    names = [schedule.name for schedule in schedules()]
    # the greedy's runs at the problem's own limit hold all that these two could give
    limited = None not in problem.limit_bytes
    names = [name for name in names if not (limited and name in ("zb-1p", "zb-2p"))]
    return [GREEDY, *sorted(names, key=lambda name: not name.startswith("zb-"))]


def published(problem: Problem, name: str) -> Iterator[tuple[str, Order]]:
    """A published schedule, or all runs of the published greedy; nothing where its conditions do not hold.

    Where microbatches differ, with other sequences of them as well.
    """
    with contextlib.suppress(ScheduleConditionError):
        yield from _as_numbered(problem, name)
        for title, sequence in sequences(problem):
            for method, order in _as_numbered(renumbered(problem, sequence), name):
                yield f"{method}, {title}", with_own_numbers(order, sequence)


def _as_numbered(problem: Problem, name: str) -> Iterator[tuple[str, Order]]:
    if name == GREEDY:
        yield from ((method, closed(problem, order)) for method, order in greedy_orders(open_ended(problem)))
    else:
        yield name, baseline(name, problem)
