"""Annealing and tabu search from one order, so many moves at a time (`zbsolve.solver.walks`)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from zbsolve.solver.budget import Budget
from zbsolve.solver.case import Case
from zbsolve.solver.compiled import ready_to_move
from zbsolve.solver.network import Table
from zbsolve.solver.state import BEST, BEST_FUSED, BEST_SEQUENCE, REG
from zbsolve.solver.tasks import Anneal, Find, Found, Tabu

__all__ = ["anneal", "tabu"]

_CHUNK = 2_000
"""Moves between two looks at the clock by compiled kernels; also how often the temperature falls."""


def anneal(task: Anneal, case: Case, budget: Budget, hand: Callable[[Find], None]) -> None:
    """From an order on, at a temperature that falls."""
    kernels, net, periodic = case.kernels, case.network, case.periodic
    switching = 0.15 if case.forms.matters else 0.0
    first, whole = task.first, budget.seconds_left

    def walk(state: Table, moves: int, begun: int) -> int:
        done = 1 - budget.seconds_left / whole if budget.steps is None else budget.spent / budget.steps
        temperature = first * begun * task.ratio**done
        moved: int = kernels.anneal_moves(net, state, moves, temperature, task.target_ns, switching, periodic)
        return moved

    _walk(task, case, budget, hand, walk)


def tabu(task: Tabu, case: Case, budget: Budget, hand: Callable[[Find], None]) -> None:
    """From an order on, always to the best of its neighbours that is not forbidden."""

    def walk(state: Table, moves: int, begun: int) -> int:
        slack = int(task.slack * begun)
        tried: int = case.kernels.tabu_moves(case.network, state, moves, slack, task.target_ns, case.periodic)
        return tried

    _walk(task, case, budget, hand, walk)


def _walk(
    task: Anneal | Tabu,
    case: Case,
    budget: Budget,
    hand: Callable[[Find], None],
    walk: Callable[[Table, int, int], int],
) -> None:
    """From the order of a task on, so many moves at a time; hands out whatever is better than all before."""
    kernels, net = case.kernels, case.network
    state = ready_to_move(kernels, net, task.sequence.tolist(), task.fused.tolist(), task.seed, case.periodic)
    if state is None:
        return
    told = begun = state[REG][BEST]
    chunk = 50 if kernels.lists and budget.steps is None else _CHUNK
    while not budget.over and told > task.target_ns:
        moves = chunk if budget.steps is None else min(chunk, budget.steps - budget.spent)
        budget.spend(walk(state, moves, begun))
        if state[REG][BEST] < told:
            told = state[REG][BEST]
            sequence, fused = (np.asarray(state[row][: case.nodes]) for row in (BEST_SEQUENCE, BEST_FUSED))
            hand(Found(int(told), sequence.astype(np.int32), fused.astype(np.int8)))
