"""Which arm of the portfolio works next: the one that has earned the most for its time, and none never.

An arm is a way of finding better orders. Each has a share of the work: a floor, so that it is heard
of now and then, and a part that grows with what its tasks have gained lately, as improvement of the
best value for the work done. The arm that is furthest behind its share goes next. With a work limit
work is counted in steps, else in seconds, so the choice is as reproducible as the rest.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from zbsolve.solver.budget import Budget
from zbsolve.solver.pool import Pool
from zbsolve.solver.proposals import SETTLED, Proposals
from zbsolve.solver.tasks import Bounded, Done, Find, Found, Length, Task, Tuned

__all__ = ["ARMS", "Arm", "Director", "Pending"]

ARMS = {
    "list scheduler, random rule": 0.05,
    "list scheduler, tuned rule": 0.2,
    "annealing": 0.4,
    "annealing, part of an order": 0.3,
    "tabu search": 0.2,
    "steady stretch of a smaller solution": 0.1,
    "steady state": 0.1,
    "CP-SAT": 0.05,
    "CP-SAT, part of an order": 0.05,
    "relaxations": 0.4,
}
"""The arms by name and their shares of the work before anything is known of them."""

_FADING = 0.8
"""What a task's gain still counts for after the next of its arm."""

_LOST = 3
"""Lost tasks after which an arm is left alone."""


@dataclass(slots=True)
class Arm:
    """One way of finding better orders.

    Parameters
    ----------
    name
        As it is told in methods.
    floor
        Its share of the work before anything is known of it.
    propose
        Makes its next task; None if it has nothing to do now.
    """

    name: str
    floor: float
    propose: Callable[[], Task | None]
    work: float = 0.0
    gain: float = 0.0
    lost: int = 0


@dataclass(slots=True)
class Pending:
    """A task under way, and the line of what it finds; `opens`: it is done whatever the time."""

    arm: Arm
    task: Task
    work: float
    began: float
    line: int | None = None
    gain: float = 0.0
    opens: bool = False


class Director:
    """Hands out tasks and takes in what they find.

    Parameters
    ----------
    pool
        Where orders come from and go to.
    budget
        Of the search.
    size
        Tasks at once.
    seed
        Of all choices.
    gap
        A gap at which the search may stop.
    without
        Names of arms to leave out.

    Attributes
    ----------
    proposals
        What the arms would do next.
    """

    def __init__(
        self,
        pool: Pool,
        budget: Budget,
        *,
        size: int,
        seed: int,
        gap: float,
        without: frozenset[str] = frozenset(),
    ) -> None:
        self.pool = pool
        self.budget = budget
        self.size = size
        self.proposals = Proposals(pool, budget, size=size, seed=seed, gap=gap, anneals="annealing" not in without)
        self._first: deque[Task] = deque()
        self._opening = Arm("published schedules", 0.0, lambda: None)
        self.arms = [
            Arm(name, floor, self.proposals.by_arm[name]) for name, floor in ARMS.items() if name not in without
        ]
        for arm in self.arms:
            if arm.name == "annealing":
                arm.floor *= min(1.0, SETTLED / pool.case.nodes)
            elif arm.name == "list scheduler, tuned rule":
                arm.floor *= min(3.0, max(1.0, pool.case.nodes / SETTLED))

    def open_with(self, tasks: Iterable[Task]) -> None:
        """Hand these out before anything else."""
        self._first.extend(tasks)

    @property
    def opening(self) -> int:
        """How many of them are left."""
        return len(self._first)

    def next(self) -> Pending | None:
        """The next task; None if there is nothing to do."""
        if self._first:
            return Pending(self._opening, self._first.popleft(), 0.0, time.perf_counter(), opens=True)
        total = sum(arm.work for arm in self.arms) + 1e-9
        gains = {id(arm): arm.gain / (arm.work + 1e-9) for arm in self.arms}
        top = max(gains.values()) or 1.0
        weight = {id(arm): arm.floor * (1 + 3 * gains[id(arm)] / top) for arm in self.arms}
        every = sum(weight.values())
        for arm in sorted(self.arms, key=lambda a: a.work / total - weight[id(a)] / every):
            if arm.lost >= _LOST:
                continue
            task = arm.propose()
            if task is not None:
                length: Length = getattr(task, "length", Length())
                work = float((length.seconds if length.steps is None else length.steps) or 0)
                arm.work += work
                line: int = getattr(task, "line", 0) or self.pool.new_line()
                return Pending(arm, task, work, time.perf_counter(), line)
        return None

    def absorb(self, pending: Pending, find: Find) -> None:
        """Take in what a task has found."""
        incumbent = self.pool.incumbent
        if isinstance(find, Found):
            before = incumbent.value_ns
            incumbent.arm = pending.arm.name
            self.pool.add(find.value_ns, find.sequence, find.fused, find.method or pending.arm.name, pending.line)
            if incumbent.value_ns < before:
                pending.gain += before / incumbent.value_ns - 1
        elif isinstance(find, Bounded):
            before = incumbent.bound.value_ns
            incumbent.arm = pending.arm.name
            incumbent.prove(find.bound)
            if before:
                pending.gain += max(0.0, incumbent.bound.value_ns / before - 1)
        elif isinstance(find, Tuned):
            self.proposals.learn(find)
        elif isinstance(find, Done):
            if find.lost:
                incumbent.miss(pending.arm.name, find.why)
            if find.lost and pending.opens and self._opening.lost < _LOST:
                self._first.append(pending.task)
            self.budget.spend(find.steps)
            timed = self.budget.steps is None
            pending.arm.work += (time.perf_counter() - pending.began if timed else find.steps) - pending.work
            pending.arm.lost += find.lost
            pending.arm.gain = _FADING * pending.arm.gain + pending.gain
            self.proposals.done(pending.task, gained=bool(pending.gain))
