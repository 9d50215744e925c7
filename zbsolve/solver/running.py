"""Tasks done: each handed to the part of the solver that can do it.

The same task gives the same results in this process and in another, with plain kernels and with
compiled ones, if steps limit it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from zbsolve.solver.budget import Budget
from zbsolve.solver.case import Case
from zbsolve.solver.compiled import ready_to_move
from zbsolve.solver.exact import prove, rearrange, relax
from zbsolve.solver.local_search import anneal, tabu
from zbsolve.solver.network import LIMIT
from zbsolve.solver.parts import anneal_parts
from zbsolve.solver.portfolio import plain_rules, published, scan
from zbsolve.solver.smaller import shrink
from zbsolve.solver.state import SEQUENCE, new_state
from zbsolve.solver.steady import repeat
from zbsolve.solver.tasks import (
    Anneal,
    AnnealParts,
    Done,
    Find,
    Prove,
    Publish,
    Rearrange,
    Relax,
    Repeat,
    Scan,
    Shrink,
    Tabu,
    Task,
    Tune,
    Warm,
)
from zbsolve.solver.tuning import tune

__all__ = ["run"]

_HOW: dict[type[Task], Callable[[Any, Case, Budget, Callable[[Find], None]], None]] = {
    Scan: scan,
    Anneal: anneal,
    AnnealParts: anneal_parts,
    Tabu: tabu,
    Shrink: shrink,
    Tune: tune,
    Repeat: repeat,
    Prove: prove,
    Rearrange: rearrange,
    Relax: relax,
}
"""What does a task of a length."""


def run(task: Task, case: Case, deadline: float, hand: Callable[[Find], None]) -> Done:
    """Do a task.

    Parameters
    ----------
    task
        What to do.
    case
        What all tasks share.
    deadline
        On the clock of `time.perf_counter`; the task's own length applies besides.
    hand
        Takes what it finds.
    """
    if isinstance(task, Warm):
        _warm(case)
        return Done()
    if isinstance(task, Publish):
        _publish(task, case, hand)
        return Done(1)
    budget = task.length.from_now(deadline)
    _HOW[type(task)](task, case, budget, hand)
    return Done(budget.spent)


def _warm(case: Case) -> None:
    """Call every kernel once, on a list schedule without a limit."""
    free: Any = case.arrays.copy()
    free[LIMIT] = 2**62
    if case.kernels.lists:
        free = free.tolist()
    state = new_state(free, range(case.nodes), [0] * case.nodes, 0)
    case.kernels.list_schedule(free, state, next(plain_rules(case)))
    ready = ready_to_move(case.kernels, free, state[SEQUENCE][: case.nodes], [0] * case.nodes, 0, case.periodic)
    if ready is not None:
        case.kernels.anneal_moves(free, ready, 1, 1.0, 0, 0.0, case.periodic)
        case.kernels.tabu_moves(free, ready, 1, 1, 0, case.periodic)
        case.kernels.tails(free, ready, case.periodic)


def _publish(task: Publish, case: Case, hand: Callable[[Find], None]) -> None:
    for method, order in published(case.problem, task.name):
        found = case.read(order)
        if found is not None:
            hand(dataclasses.replace(found, method=method))
