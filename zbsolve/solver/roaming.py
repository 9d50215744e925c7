"""A walk among the orders of a problem as it was asked, whatever they compute again or move away, one by one.

A choice of stages holds for all their microbatches; the walk moves single operations, and adds or takes out single
copies and recomputations. Each order is timed exactly. It is for what is left of the limits when the choices are
through: small problems, mostly, on which their searches end early.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from zbsolve.opgraph import OpGraph
from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.solver.budget import Budget
from zbsolve.solver.sparing import value_of_fitting
from zbsolve.timetable import Order

__all__ = ["roam"]

_FAR = 8
"""Places that an operation moves at most at once."""

_WARM, _COOL = 0.06, 0.004
"""What a worse order may lack of the best's value, as a share: at the start of a round, and at its end."""

_ROUND = 600
"""Steps from one start at the best order to the next."""

_PATIENCE = 16
"""Rounds without a better order after which the walk ends."""

_GRAPHS = 256
"""Graphs kept, one for each set of operations."""

_BACKWARDS = (Kind.BACKWARD, Kind.BACKWARD_INPUT)

Rows = list[list[Op]]


def roam(problem: Problem, order: Order, value_ns: int, *, target_ns: int, budget: Budget, seed: int) -> Order:
    """The best order met by annealing from one that keeps the limits; never a slower one.

    Parameters
    ----------
    value_ns
        Of the order.
    target_ns
        The walk ends at a value no greater than this.
    budget
        A step is one order tried.
    """
    walk = _Walk(problem, random.Random(seed))
    best, best_value = [list(row) for row in order.rows], value_ns
    rows, value = best, best_value
    step = fruitless = 0
    while fruitless < _PATIENCE and best_value > target_ns and not budget.over:
        budget.spend(1)
        step += 1
        if step % _ROUND == 0:
            rows, value = best, best_value
            fruitless += 1
        changed = walk.changed(rows)
        found = None if changed is None else walk.value(changed)
        if changed is None or found is None:
            continue
        warmth = _WARM * (_COOL / _WARM) ** (step % _ROUND / _ROUND)
        if found <= value + warmth * best_value * walk.random.expovariate(1):
            rows, value = changed, found
        if found < best_value:
            best, best_value, fruitless = changed, found, 0
    return Order(tuple(map(tuple, best)))


class _Walk:
    """Random changes of rows, and what they are worth."""

    def __init__(self, problem: Problem, rng: random.Random) -> None:
        self.problem, self.random = problem, rng
        self.graphs: dict[frozenset[Op], OpGraph] = {}
        ways: list[Callable[[list[Op], int], list[Op] | None]] = [self._shift, self._shift]
        if {"split", "fused"} <= problem.allow and not problem.forward_only:
            ways.append(self._fuse_or_split)
        if "offload" in problem.allow:
            ways.append(self._move_or_keep)
        if "recompute" in problem.allow:
            ways.append(self._again_or_once)
        self.ways = ways

    def changed(self, rows: Rows) -> Rows | None:
        """The rows with one of them changed at random; None where the change makes no sense."""
        rank = self.random.randrange(len(rows))
        if not rows[rank]:
            return None
        at = self.random.randrange(len(rows[rank]))
        row = self.random.choice(self.ways)(list(rows[rank]), at)
        return None if row is None else [*rows[:rank], row, *rows[rank + 1 :]]

    def value(self, rows: Rows) -> int | None:
        """The exact value of an order in ns; None where it exceeds a limit or can never finish."""
        key = frozenset(op for row in rows for op in row)
        order = Order(tuple(map(tuple, rows)))
        if key not in self.graphs:
            if len(self.graphs) >= _GRAPHS:
                self.graphs.clear()
            self.graphs[key] = OpGraph.build(self.problem, order.rows)
        return value_of_fitting(self.problem, order, self.graphs[key])

    def _shift(self, row: list[Op], at: int) -> list[Op]:
        op = row.pop(at)
        row.insert(min(len(row), max(0, at + self.random.randint(-_FAR, _FAR))), op)
        return row

    def _fuse_or_split(self, row: list[Op], at: int) -> list[Op] | None:
        op = row[at]
        one = Op(Kind.BACKWARD, op.stage, op.microbatch)
        halves = [Op(kind, op.stage, op.microbatch) for kind in (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)]
        if op.beside is None and op.kind is Kind.BACKWARD:
            row[at : at + 1] = halves
            return row
        if op not in halves or not set(halves) <= set(row):
            return None
        row[at] = one
        row.remove(halves[1] if op == halves[0] else halves[0])
        return row

    def _move_or_keep(self, row: list[Op], at: int) -> list[Op] | None:
        op = row[at]
        if op.microbatch is None or not self.problem.profile.stages[op.stage].offloadable:
            return None
        away = [Op(kind, op.stage, op.microbatch) for kind in (Kind.OFFLOAD, Kind.RELEASE)]
        back = Op(Kind.RELOAD, op.stage, op.microbatch)
        if back in row:
            return [other for other in row if other not in (*away, back)]
        made: list[Op] = []
        for other in row:
            mine = (other.stage, other.microbatch) == (op.stage, op.microbatch)
            if mine and other.kind is Kind.RECOMPUTE:
                return None
            if mine and other.kind in _BACKWARDS:
                made.append(back)
            made.append(other)
            if mine and other.kind is Kind.FORWARD:
                made += away
        return made

    def _again_or_once(self, row: list[Op], at: int) -> list[Op] | None:
        op = row[at]
        if op.microbatch is None:
            return None
        again = Op(Kind.RECOMPUTE, op.stage, op.microbatch)
        if again in row:
            row.remove(again)
            return row
        if Op(Kind.OFFLOAD, op.stage, op.microbatch) in row:
            return None
        mine = [Op(kind, op.stage, op.microbatch) for kind in _BACKWARDS]
        place = next(place for place, other in enumerate(row) if other in mine)
        row.insert(place, again)
        return row
