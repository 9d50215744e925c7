"""CP-SAT put to work on an order, on parts of it, and on relaxations of the problem."""

from __future__ import annotations

import random
from collections.abc import Callable

from zbsolve.opgraph import OpGraph
from zbsolve.solution import Bound
from zbsolve.solver.budget import PUNCTUAL, Budget
from zbsolve.solver.case import Case
from zbsolve.solver.cpsat import Limits, improve
from zbsolve.solver.cpsat_window import improve_part, pick_part
from zbsolve.solver.kernels import Arrays, fits, makespan, period, rows_of, sequence_of
from zbsolve.solver.network import order_of
from zbsolve.solver.relaxation import improve_bound
from zbsolve.solver.tasks import Bounded, Find, Found, Prove, Rearrange, Relax

__all__ = ["prove", "rearrange", "relax"]

_PATIENCE = 2.0
"""Seconds, of the clock and of CP-SAT's own measure, for one part of an order."""

_PART_STEPS = 5_000
"""Moves that take as long as reading one such model in."""


def _graph_form(task: Prove | Rearrange, case: Case) -> tuple[Arrays, list[int]]:
    """The order of a task as CP-SAT reads it."""
    order = order_of(case.problem, task.sequence.tolist(), task.fused.tolist())
    graph = OpGraph.build(case.problem, order.rows)
    arrays = Arrays.of(graph)
    sequence = sequence_of(arrays, graph.by_lane(graph.encode(order)))
    assert sequence is not None
    return arrays, sequence


def _timed(case: Case, arrays: Arrays, sequence: list[int]) -> tuple[int, list[int]] | None:
    """A sequence that CP-SAT found, timed exactly and put where each node stands after what it needs."""
    again = sequence_of(arrays, rows_of(arrays, sequence))
    if again is None or not fits(arrays, again):
        return None
    return (period(arrays, again)[0] if case.periodic else makespan(arrays, again)), again


def prove(task: Prove, case: Case, budget: Budget, hand: Callable[[Find], None]) -> None:
    """Try to better the whole order and to prove a bound."""
    arrays, sequence = _graph_form(task, case)

    def found(new: list[int]) -> None:
        timed = _timed(case, arrays, new)
        if timed is not None:
            hand(Found(timed[0], *case.unfold(arrays.graph, timed[1])))

    def bounded(bound_ns: int) -> None:
        if case.forms.speaks_for_all(task.fused):
            hand(Bounded(Bound(bound_ns, "CP-SAT")))

    outcome = improve(
        arrays,
        sequence,
        objective=case.problem.objective,
        value_ns=task.value_ns,
        bound_ns=task.bound_ns,
        limits=Limits(
            seconds=PUNCTUAL * budget.seconds_left,
            deterministic=budget.deterministic_left,
            workers=1,
            seed=task.seed,
        ),
        on_sequence=found,
        on_bound=bounded,
    )
    budget.spend_deterministic(outcome.deterministic)


def rearrange(task: Rearrange, case: Case, budget: Budget, hand: Callable[[Find], None]) -> None:
    """Better an order one part after the other."""
    arrays, sequence = _graph_form(task, case)
    rng, value = random.Random(task.seed), task.value_ns

    def found(new: list[int]) -> None:
        nonlocal sequence, value
        timed = _timed(case, arrays, new)
        if timed is not None and timed[0] <= value:
            if timed[0] < value:
                hand(Found(timed[0], *case.unfold(arrays.graph, timed[1])))
            value, sequence = timed

    while not budget.over:
        left = budget.deterministic_left
        work = improve_part(
            arrays,
            sequence,
            pick_part(arrays, sequence, rng),
            objective=case.problem.objective,
            value_ns=value,
            limits=Limits(
                seconds=min(_PATIENCE, PUNCTUAL * budget.seconds_left),
                deterministic=_PATIENCE if left is None else min(_PATIENCE, left),
                workers=1,
                seed=rng.getrandbits(31),
            ),
            on_sequence=found,
        )
        budget.spend(_PART_STEPS)
        budget.spend_deterministic(work)


def relax(task: Relax, case: Case, budget: Budget, hand: Callable[[Find], None]) -> None:
    """Raise the bound by relaxations."""
    improve_bound(
        case.problem,
        incumbent_ns=task.value_ns,
        best=task.bound,
        work_limit=budget.deterministic_left,
        time_limit_s=PUNCTUAL * budget.seconds_left,
        seed=task.seed,
        on_bound=lambda bound: hand(Bounded(bound)),
    )
    budget.spend(budget.steps_left or 0)
