"""What each arm of the portfolio would do next: its task, or nothing for now."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from zbsolve.solver.budget import Budget
from zbsolve.solver.network import SHAPE
from zbsolve.solver.pool import Entry, Pool
from zbsolve.solver.rhythm import sizes_worth
from zbsolve.solver.smaller import small_sizes, worth_shrinking
from zbsolve.solver.tasks import (
    Anneal,
    AnnealParts,
    Length,
    Prove,
    Rearrange,
    Relax,
    Repeat,
    Rule,
    Scan,
    Shrink,
    Tabu,
    Task,
    Tune,
    Tuned,
)

__all__ = ["SETTLED", "Proposals"]

_TEMPERATURES = (0.6, 1.1, 0.3, 1.8)
"""Starting temperatures of annealing, in the order in which they are tried: in mean operations of a rank."""

_SLACKS = (1.7, 1.0, 2.5, 0.6)
"""How much worse the next order of a tabu search may be, in mean operations of a rank."""

_STARTS = 24
"""Short annealing starts before the longer ones."""

_CPSAT_NODES = 700
"""Beyond this many operations CP-SAT finds nothing on the whole problem."""

_PART_NODES = 6_000
"""Beyond this many, reading the model in takes longer than a part is worth."""

SETTLED = 6_000
"""Operations of an order that annealing sees enough of in the usual time; of more its share falls."""

_PARTED = 150
"""From this many on, parts of an order are annealed for themselves."""

_LINES = 16
"""Lines of orders (`zbsolve.solver.pool`) that are gone on with."""

_RELAXED = 12_000
"""Beyond this many, relaxations see only small parts of the problem and are asked for a short time."""

_FIRST = 6
"""Annealing starts before bounds are worked on: what they find tells where the bound has to reach."""

_RHYTHM, _RHYTHM_OF_CHUNKS = 0.06, 0.15
"""The part of the work for one steady state; stages that share a rank make its model many times larger."""

_RULES = 8
"""Rules of the list scheduler that are kept for each number of microbatches."""


class Proposals:
    """Makes the next task of an arm when its turn has come.

    Parameters
    ----------
    pool
        Where orders come from.
    budget
        Of the search.
    size
        Tasks at once.
    seed
        Of all choices.
    gap
        A gap at which the search may stop.
    anneals
        Whether annealing is among the arms; others wait for what it finds first.

    Attributes
    ----------
    warm
        Whether compiled kernels are ready; until then only what needs none is proposed.
    by_arm
        What makes the next task of an arm, by its name.
    """

    def __init__(self, pool: Pool, budget: Budget, *, size: int, seed: int, gap: float, anneals: bool) -> None:
        self.pool = pool
        self.budget = budget
        self.size = size
        self.gap = gap
        self.warm = True
        self._rng = random.Random(seed)
        self._runs = 0
        self._stale = 0
        self._repeated = self._walks = 0
        self._whole = self._left()
        self._asked: tuple[int, int] | None = None
        self._relaxing, self._relaxed = False, (0, 0)
        self._anneals = anneals
        self._rules: dict[int, tuple[Rule, ...]] = {}
        self._tunes = 0
        self._in_vain: Counter[int] = Counter()
        self._reached: dict[int, int] = {}
        self.by_arm: dict[str, Callable[[], Task | None]] = {
            "list scheduler, random rule": self._scan,
            "list scheduler, tuned rule": self._tune,
            "annealing": self._anneal,
            "annealing, part of an order": self._anneal_parts,
            "tabu search": self._tabu,
            "steady stretch of a smaller solution": self._shrink,
            "steady state": self._repeat,
            "CP-SAT": self._prove,
            "CP-SAT, part of an order": self._rearrange,
            "relaxations": self._relax,
        }

    def learn(self, tuned: Tuned) -> None:
        """Take in the rules that a task has tuned."""
        both = {rule.value_ns: rule for rule in (*tuned.rules, *self._rules.get(tuned.microbatches, ()))}
        self._rules[tuned.microbatches] = tuple(both[value] for value in sorted(both)[:_RULES])

    def done(self, task: Task, *, gained: bool) -> None:
        """Note that a task has ended, and whether anything got better by it."""
        if isinstance(task, Relax):
            self._relaxing = False
        elif isinstance(task, Anneal):
            self._stale = 0 if gained else self._stale + 1

    def _left(self) -> float:
        """Work left for all workers together."""
        steps = self.budget.steps_left
        return self.size * self.budget.seconds_left if steps is None else float(steps)

    def _length(self, share: float, most: float = 1.0) -> Length:
        """A part of the whole work, but at most such a part of what is left for one worker."""
        work = min(share * self._whole, most * self._left() / self.size)
        if self.budget.steps is None:
            return Length(seconds=max(0.05, work))
        return Length(steps=max(1, int(work)))

    def _target(self) -> int:
        return int(self.pool.incumbent.bound.value_ns * (1 + self.gap))

    def _seed(self) -> int:
        return self._rng.getrandbits(31)

    def _scan(self) -> Scan | None:
        return Scan(plain=False, length=self._length(0.03, 0.2), seed=self._seed(), keep=100, target_ns=self._target())

    def _tune(self) -> Tune | None:
        """Rules of the list scheduler, on fewer microbatches and on all in turn."""
        if not self.warm:
            return None
        case = self.pool.case
        whole = case.problem.microbatches
        sizes = [*small_sizes(case), whole]
        size = sizes[self._tunes % len(sizes)]
        # the first ones have to find what the others start from
        share = 0.15 if case.nodes > SETTLED and self._tunes < self.size else 0.06
        self._tunes += 1
        # where there are none yet for this number, those for another do
        rules = self._rules.get(size) or next(iter(self._rules.values()), ())
        return Tune(
            microbatches=size,
            rules=rules,
            target_ns=self._target() if size == whole else 0,
            length=self._length(share, 0.5),
            seed=self._seed(),
        )

    def _anneal(self) -> Anneal | None:
        if not self.warm:
            return None
        entries = self.pool.entries
        run, self._runs = self._runs, self._runs + 1
        if run < _STARTS:
            entry = entries[int(len(entries) * (run / _STARTS) ** 2)]
            length = self._length(0.01, 0.3)
        else:
            entry = self._good(entries)
            length = self._length(0.03 * 1.3 ** min(8, self._stale / self.size), 0.7)
        return Anneal(
            sequence=entry.sequence,
            fused=entry.fused,
            first=_TEMPERATURES[run % len(_TEMPERATURES)] * self.pool.case.problem.placement.ranks / len(entry.fused),
            ratio=1 / 30,
            target_ns=self._target(),
            length=length,
            seed=self._seed(),
        )

    def _tabu(self) -> Tabu | None:
        """Tabu search, from the pool's front and, every other time, from the best few."""
        if not self.warm or (self._runs < _FIRST and self._anneals):
            return None
        entries = self.pool.entries
        run, self._walks = self._walks, self._walks + 1
        entry = entries[min(run // 2, len(entries) - 1)] if run < _STARTS and run % 2 else self._good(entries)
        slack = _SLACKS[run % len(_SLACKS)] * self.pool.case.problem.placement.ranks / len(entry.fused)
        return Tabu(
            sequence=entry.sequence,
            fused=entry.fused,
            slack=slack,
            target_ns=self._target(),
            length=self._length(0.03, 0.4),
            seed=self._seed(),
            line=entry.line,
        )

    def _anneal_parts(self) -> AnnealParts | None:
        # where transfers queue, what happens in a part depends on more of the rest than borders in time can say
        if not self.warm or self.pool.case.nodes < _PARTED or self.pool.case.queueing:
            return None
        if self._runs < _FIRST and self._anneals:
            return None
        entry = self._line_to_go_on()
        return AnnealParts(
            sequence=entry.sequence,
            fused=entry.fused,
            target_ns=self._target(),
            length=self._length(0.02 if self.pool.case.nodes < SETTLED else 0.04, 0.4),
            seed=self._seed(),
            line=entry.line,
        )

    def _line_to_go_on(self) -> Entry:
        """The best of a line: the better it is the sooner, and later by one for each time that it was in vain."""
        heads = self.pool.heads[:_LINES]
        place = min(range(len(heads)), key=lambda k: (k + self._in_vain[heads[k].line], k))
        entry = heads[place]
        best = self._reached.get(entry.line)
        self._in_vain[entry.line] = 0 if best is None or entry.value_ns < best else self._in_vain[entry.line] + 1
        self._reached[entry.line] = entry.value_ns
        return entry

    def _shrink(self) -> Shrink | None:
        if not (self.warm and worth_shrinking(self.pool.case)):
            return None
        entry = self._good(self.pool.entries)
        return Shrink(sequence=entry.sequence, fused=entry.fused, length=self._length(0.04, 0.4), seed=self._seed())

    def _repeat(self) -> Repeat | None:
        """A steady state for the next size of its window, each once."""
        sizes = sizes_worth(self.pool.case.problem)
        if not self.warm or (self._runs < _FIRST and self._anneals) or self._repeated >= len(sizes):
            return None
        self._repeated += 1
        return Repeat(
            size=sizes[self._repeated - 1],
            value_ns=self.pool.incumbent.value_ns,
            target_ns=self._target(),
            length=self._length(_RHYTHM if self.pool.case.arrays[SHAPE][4] else _RHYTHM_OF_CHUNKS, 0.4),
            seed=self._seed(),
        )

    def _prove(self) -> Prove | None:
        """CP-SAT on the best order, once for each."""
        entry = self.pool.entries[0]
        key = (entry.value_ns, self.pool.incumbent.bound.value_ns)
        if (self._runs < _STARTS and self._anneals) or key == self._asked or len(entry.sequence) > _CPSAT_NODES:
            return None
        self._asked = key
        return Prove(
            sequence=entry.sequence,
            fused=entry.fused,
            value_ns=entry.value_ns,
            bound_ns=key[1],
            length=self._length(0.05, 0.5),
            seed=self._seed(),
        )

    def _rearrange(self) -> Rearrange | None:
        entry = self._good(self.pool.entries)
        if (self._runs < _STARTS and self._anneals) or len(entry.sequence) > _PART_NODES:
            return None
        return Rearrange(
            sequence=entry.sequence,
            fused=entry.fused,
            value_ns=entry.value_ns,
            length=self._length(0.04, 0.3),
            seed=self._seed(),
            line=entry.line,
        )

    def _relax(self) -> Relax | None:
        """The bound, one task at a time: with several workers it keeps one of them until the end."""
        large = self.pool.case.nodes > _RELAXED
        key = (0 if large else self.pool.incumbent.value_ns, self.pool.incumbent.bound.value_ns)
        early = self._tunes < 2 if large else self._runs < _FIRST and self._anneals
        if early or self._relaxing or key == self._relaxed:
            return None
        self._relaxing, self._relaxed = True, key
        return Relax(
            value_ns=self.pool.incumbent.value_ns,
            bound=self.pool.incumbent.bound,
            length=self._length(0.05, 0.1) if large else self._length(1.0, 1.0 if self.size > 1 else 0.4),
            seed=self._seed(),
        )

    def _good(self, entries: list[Entry]) -> Entry:
        """One of the best few."""
        return entries[min(len(entries) - 1, int(4 * self._rng.random() ** 2))]
