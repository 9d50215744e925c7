"""Looking for a good rule of the list scheduler instead of a good order.

A rule is a few numbers (`zbsolve.solver.listing`): how long each class of operations waits for something
better, how many microbatches may be in flight. An order of a hundred thousand operations has too many
places to try moves at, but a list schedule of it takes a fraction of a second, and near a good rule there
are often better ones. Rules are tried on fewer microbatches, where that is faster still: the best ones do
well on all, and what repeats in their orders may be run more often (`zbsolve.solver.smaller`).
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from zbsolve.solver.budget import Budget
from zbsolve.solver.case import Case
from zbsolve.solver.listing import IN_FLIGHT, NEVER, NOISE, PENALTY, TASTE
from zbsolve.solver.network import SHAPE, Table
from zbsolve.solver.portfolio import STEPS_A_DRAFT, Class, classes_of, draft, plain_choices, random_rule
from zbsolve.solver.smaller import longer, smaller_case
from zbsolve.solver.tasks import Find, Found, Rule, Tune, Tuned

__all__ = ["changed", "tune"]

_KEPT = 8
"""Rules that are kept to go on from."""

_RANDOM = 0.25
"""The part of the work for rules of chance, where no rules are given."""

_FRESH = 0.2
"""The part of the later tries that are of chance, too: the best rules may be far from those found first."""

_REPLAY = 0.2
"""The part of the time that is kept for the large problem."""

_REPEATED = 2
"""Orders of a smaller problem whose loops are run more often."""


def tune(task: Tune, case: Case, budget: Budget, hand: Callable[[Find], None]) -> None:
    """Look for rules on a problem with so many microbatches, and hand out orders of the case and the rules."""
    few = case if task.microbatches == case.problem.microbatches else smaller_case(case, task.microbatches)
    if few.arrays[SHAPE][2] != case.arrays[SHAPE][2]:
        few = case  # microbatches differ, and so do their rules
    search = _Search(few, task, hand if few is case else None)
    part = budget.part(1.0 if few is case else 1 - _REPLAY)
    search.go(part)
    if few is not case:
        choices = plain_choices(case.forms)
        for rule in search.rules:
            if budget.over:
                break
            found = _play(case, choices, rule, budget)
            if found is not None:
                hand(found)
        for found in search.orders()[:_REPEATED]:
            for whole in longer(few, case, found, budget):
                hand(whole)
    hand(Tuned(few.problem.microbatches, tuple(search.rules)))


class _Search:
    """The best rules so far."""

    def __init__(self, case: Case, task: Tune, hand: Callable[[Find], None] | None) -> None:
        self.case = case
        self.rules: list[Rule] = []
        self._found: dict[int, Found] = {}
        self._task = task
        self._hand = hand
        self._rng = random.Random(task.seed)
        self._classes = classes_of(case)
        self._choices = plain_choices(case.forms)

    def go(self, budget: Budget) -> None:
        """Try the rules that are given, or some of chance, then what lies near the best."""
        for rule in self._task.rules:
            if budget.over and self.rules:
                return
            self._try(rule, budget)
        if not self.rules:
            first = budget.part(_RANDOM)
            while not first.over:
                self._try(self._random(), first)
        while not budget.over and self.rules and self.rules[0].value_ns > self._task.target_ns:
            if self._rng.random() < _FRESH:
                self._try(self._random(), budget)
                continue
            old = self.rules[int(len(self.rules) * self._rng.random() ** 2)]
            self._try(changed(old, self._classes, self._rng), budget)

    def orders(self) -> list[Found]:
        """Those of the best rules."""
        return [self._found[rule.value_ns] for rule in self.rules]

    def _random(self) -> Rule:
        rule = random_rule(self.case, self._classes, self._rng)
        choice = self._rng.randrange(len(self._choices)) if self.case.forms.matters else 0
        return Rule(0, choice, np.asarray(rule, dtype=np.int64), self._rng.getrandbits(31))

    def _try(self, rule: Rule, budget: Budget) -> None:
        found = _play(self.case, self._choices, rule, budget)
        if found is None or found.value_ns in self._found:
            return
        if self._hand is not None and (not self.rules or found.value_ns < self.rules[0].value_ns):
            self._hand(found)
        if len(self.rules) < _KEPT or found.value_ns < self.rules[-1].value_ns:
            self.rules.append(dataclasses.replace(rule, value_ns=found.value_ns))
            self._found[found.value_ns] = found
            self.rules.sort(key=lambda each: each.value_ns)
            for each in self.rules[_KEPT:]:
                del self._found[each.value_ns]
            del self.rules[_KEPT:]


def _play(case: Case, choices: Sequence[list[int]], rule: Rule, budget: Budget) -> Found | None:
    """The list schedule of a rule, timed."""
    budget.spend(STEPS_A_DRAFT - 1)
    own: Any = rule.table.copy()  # a draft lowers its limits
    table: Table = own.tolist() if case.kernels.lists else own
    return draft(case, choices[min(rule.choice, len(choices) - 1)], table, rule.seed, budget)


def changed(rule: Rule, classes: Sequence[Class], rng: random.Random) -> Rule:
    """A rule near another: a kind of operation waits longer or less, everywhere or from one end to the other."""
    table = rule.table.copy()
    penalty, in_flight = table[PENALTY], table[IN_FLIGHT]
    unit = max(1.0, sum(each.duration for each in classes) / len(classes))
    stages = 1 + max(each.stage for each in classes)
    parts = np.asarray([each.part for each in classes])
    place = np.asarray([each.stage for each in classes]) / stages - 0.5
    part, roll, count = rng.choice((0, 0, 2)), rng.random(), len(classes)
    if roll < 0.6:
        penalty[:count][parts == part] += round(unit * rng.gauss(0, rng.choice((0.02, 0.1, 0.3))))
        if rng.random() < 0.3:
            penalty[:count][parts == 2 - part] += round(unit * rng.gauss(0, 0.1))
    elif roll < 0.8:
        slope = unit * rng.gauss(0, 0.1)
        penalty[:count] += np.where(parts == part, np.round(slope * place), 0).astype(np.int64)
    elif roll < 0.93:
        spread = unit * rng.choice((0.01, 0.05))
        penalty[:count] += np.asarray([round(rng.gauss(0, spread)) for _ in classes], dtype=np.int64)
    else:
        limited = np.flatnonzero((parts == 0) & (in_flight[:count] < NEVER))
        if len(limited):
            first = rng.randrange(len(limited))
            there = limited[first : first + rng.randint(1, len(limited))]
            in_flight[there] = np.maximum(1, in_flight[there] + rng.choice((-1, 1)))
    if rng.random() < 0.1:
        table[TASTE][NOISE] = 0
    return Rule(0, rule.choice, table, rng.getrandbits(31) if rng.random() < 0.2 else rule.seed)
