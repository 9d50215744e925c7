"""The pieces of search that can run elsewhere: annealing runs and CP-SAT runs, as data.

A task is what a worker process needs and nothing more; `run` does it and hands out what it finds.
The same task gives the same results in this process and in another.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from zbsolve.solver.annealing import Cooling, anneal
from zbsolve.solver.budget import Budget
from zbsolve.solver.kernels import Arrays

__all__ = ["Anneal", "Bounded", "Find", "Found", "Proof", "Prove", "Task", "run"]

_PUNCTUAL = 0.9
"""The part of its time that CP-SAT is given; it takes some more to notice the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anneal:
    """An annealing run; `seconds` and `steps` limit it, whichever there is.

    Parameters
    ----------
    arrays, sequence
        The order to begin with.
    objective
        ``"period"`` or ``"makespan"``.
    cooling
        Temperatures.
    target_ns
        Stop at this value.
    seconds
        From when it begins, None for none.
    steps
        Moves, None for no limit.
    seed
        Of its choices.
    method
        Its name.
    """

    arrays: Arrays
    sequence: list[int]
    objective: str
    cooling: Cooling
    target_ns: int
    seconds: float | None
    steps: int | None
    seed: int
    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prove:
    """A CP-SAT run; fields as in `Anneal` and `zbsolve.solver.cpsat.improve`."""

    arrays: Arrays
    sequence: list[int]
    objective: str
    value_ns: int
    bound_ns: int
    seconds: float | None
    deterministic: float | None
    workers: int
    seed: int
    method: str


Task = Anneal | Prove


@dataclass(frozen=True, slots=True)
class Found:
    """An order better than what its task began with; the value is known if it was timed exactly."""

    sequence: list[int]
    value_ns: int | None


@dataclass(frozen=True, slots=True)
class Proof:
    """The end of a task: how much work it was, and a bound it proved (0 for none)."""

    steps: int
    bound_ns: int
    deterministic: float


@dataclass(frozen=True, slots=True)
class Bounded:
    """A bound proved on the way."""

    bound_ns: int


Find = Found | Bounded | Proof
"""What a task hands out: orders and bounds as they come, then one proof."""


def run(task: Task, deadline: float, hand: Callable[[Find], None]) -> None:
    """Do a task.

    Parameters
    ----------
    task
        What to do.
    deadline
        On the clock of `time.perf_counter`; the task's own limits apply besides.
    hand
        Takes what it finds.
    """
    now = time.perf_counter()
    until = deadline if task.seconds is None else min(deadline, now + task.seconds)
    if isinstance(task, Anneal):
        budget = Budget(until, task.steps)
        anneal(
            task.arrays,
            task.sequence,
            objective=task.objective,
            cooling=task.cooling,
            budget=budget,
            rng=random.Random(task.seed),
            target_ns=task.target_ns,
            on_better=lambda value, sequence: hand(Found(sequence, value)),
        )
        hand(Proof(budget.spent, 0, 0.0))
        return
    from zbsolve.solver.cpsat import Limits, improve

    outcome = improve(
        task.arrays,
        task.sequence,
        objective=task.objective,
        value_ns=task.value_ns,
        bound_ns=task.bound_ns,
        limits=Limits(
            seconds=_PUNCTUAL * max(0.0, until - time.perf_counter()),
            deterministic=task.deterministic,
            workers=task.workers,
            seed=task.seed,
        ),
        on_sequence=lambda sequence: hand(Found(sequence, None)),
        on_bound=lambda bound: hand(Bounded(bound)),
    )
    hand(Proof(0, outcome.bound_ns, outcome.deterministic))
