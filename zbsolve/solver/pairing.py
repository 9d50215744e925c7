"""Which forwards and backwards of an order run together: put together and taken apart on the exact objective.

A pair starts only when both could and hands both results on at its end, so running together can cost more than it
saves. Each change is tried on the value and on memory::

    row    ... F3 BW1 ...      side by side in a row, in either sequence, B and W of the backward fused or not
           ... BW1 F3 ...
           ... B1 F3 W1 ...    W1 comes along
           ... F3 X Y BW1 ...  a few places apart: one is pulled to the other

First whole groups, in halves where a group is refused; then pulls of chance; in the end what gains nothing is taken
apart again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zbsolve.errors import OrderError
from zbsolve.metrics import peak_bytes
from zbsolve.opgraph import OpGraph
from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.simulate import Timer
from zbsolve.solver.budget import Budget
from zbsolve.timetable import Order

__all__ = ["together", "value_of"]

_STEPS = 20
"""Search steps that one trial counts for: an order is built and timed anew."""

_FARTHEST = 5
"""Places over which a forward and a backward are pulled together."""

_IN_VAIN = 400
"""Pulls without a gain, after which no more are tried."""

Row = tuple[Op, ...]


def value_of(problem: Problem, order: Order) -> int | None:
    """The objective value of an order; None if it exceeds a limit or can never finish."""
    graph = OpGraph.build(problem, order.rows)
    rows = graph.encode(order)
    if any(peak > limit for peak, limit in zip(peak_bytes(graph, rows), graph.limit_bytes.tolist(), strict=True)):
        return None
    try:
        timer = Timer(graph, rows)
    except OrderError:
        return None
    return timer.period().value_ns if problem.objective == "period" else timer.makespan().value_ns


def together(problem: Problem, order: Order, budget: Budget, seed: int) -> tuple[int, Order] | None:
    """Pair and take apart whatever makes an order better.

    Parameters
    ----------
    problem
        What is asked; it allows pairs.
    order
        An order of it, with or without pairs.
    budget
        Ends the trials early.
    seed
        Of the pulls.

    Returns
    -------
    Value and order, never worse than the given one; None if that exceeds a limit or can never finish.
    """
    value = value_of(problem, order)
    if value is None:
        return None
    searches = []
    for forward_ahead in (True, False):  # a row of F B F B F B can be paired in two ways
        search = _Search(problem, list(order.rows), value, budget)
        for turn in (forward_ahead, not forward_ahead):
            search.in_halves(search.neighbours(forward_ahead=turn))
        search.in_halves(search.pairs(), strictly=True)
        searches.append(search)
    search = min(searches, key=lambda one: one.value)
    search.pull(random.Random(seed))
    search.in_halves(search.pairs())
    return search.value, Order(tuple(search.rows))


@dataclass(frozen=True, slots=True)
class _Change:
    """Operations of one row that go, and what stands in the place of the first of them."""

    rank: int
    gone: tuple[Op, ...]
    new: tuple[Op, ...]


class _Search:
    """The rows as they are, and their value."""

    def __init__(self, problem: Problem, rows: list[Row], value: int, budget: Budget) -> None:
        self.problem, self.rows, self.value, self.budget = problem, rows, value, budget

    def neighbours(self, *, forward_ahead: bool) -> list[_Change]:
        """What stands side by side and takes less together, the forward ahead or behind, nothing twice."""
        found = []
        for rank, row in enumerate(self.rows):
            used = -1
            for at in range(len(row)):
                starts = (row[at].kind is Kind.FORWARD) == forward_ahead
                change = self._at(rank, row, at) if at > used and starts else None
                if change is not None:
                    found.append(change)
                    used = at + len(change.gone) - 1
        return found

    def _at(self, rank: int, row: Row, at: int) -> _Change | None:
        for length in (3, 2):
            some = row[at : at + length]
            if len(some) == length:
                pair = self._pair(some)
                if pair is not None:
                    return _Change(rank, some, (pair,))
        return None

    def _pair(self, some: Sequence[Op]) -> Op | None:
        """A forward and a backward, whole or in its two parts, as a pair; None if they are none or gain nothing."""
        forwards = [op for op in some if op.kind is Kind.FORWARD]
        others = [op for op in some if op.kind is not Kind.FORWARD]
        if len(forwards) != 1 or any(op.beside is not None for op in some):
            return None
        kinds, cells = tuple(op.kind for op in others), {(op.stage, op.microbatch) for op in others}
        if len(cells) != 1 or forwards[0].microbatch == others[0].microbatch:
            return None
        if kinds == (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT):
            if "fused" not in self.problem.allow:
                return None
            back = Op(Kind.BACKWARD, others[0].stage, others[0].microbatch)
        elif kinds in ((Kind.BACKWARD,), (Kind.BACKWARD_INPUT,)):
            back = others[0]
        else:
            return None
        pair = Op(Kind.FORWARD, forwards[0].stage, forwards[0].microbatch, back)
        taken = self.problem.overlap_ns(pair)
        return pair if taken is not None and taken < sum(map(self._alone, some)) else None

    def _alone(self, op: Op) -> int:
        cost = self.problem.cost(op.stage, op.microbatch)
        return {
            Kind.FORWARD: cost.forward_ns,
            Kind.BACKWARD: cost.backward_ns,
            Kind.BACKWARD_INPUT: cost.backward_input_ns,
        }.get(op.kind, cost.backward_weight_ns)

    def pairs(self) -> list[_Change]:
        """Every pair, to be taken apart."""
        return [
            _Change(rank, (op,), op.halves) for rank, row in enumerate(self.rows) for op in row if op.beside is not None
        ]

    def in_halves(self, changes: list[_Change], *, strictly: bool = False) -> None:
        """Make all of the changes that make nothing worse, or those that gain: refused groups are tried in halves."""
        groups = [changes]
        while groups and not self.budget.over:
            group = groups.pop()
            if group and not self._accept(self._changed(group), strictly=strictly) and len(group) > 1:
                middle = len(group) // 2
                groups += [group[middle:], group[:middle]]

    def _changed(self, group: Sequence[_Change]) -> list[Row]:
        rows = list(self.rows)
        for rank in {change.rank for change in group}:
            first = {change.gone[0]: change for change in group if change.rank == rank}
            gone = {op for change in first.values() for op in change.gone}
            made: list[Op] = []
            for op in rows[rank]:
                made += first[op].new if op in first else () if op in gone else (op,)
            rows[rank] = tuple(made)
        return rows

    def _accept(self, rows: list[Row], *, strictly: bool) -> bool:
        self.budget.spend(_STEPS)
        value = value_of(self.problem, Order(tuple(rows)))
        if value is None or value > self.value or (strictly and value == self.value):
            return False
        self.rows, self.value = rows, value
        return True

    def pull(self, rng: random.Random) -> None:
        """Pull forwards and backwards together that stand a few places apart, or one out of a pair."""
        vain = 0
        while vain < _IN_VAIN and not self.budget.over:
            rows = self._pulled(rng)
            before = self.value
            if rows is None or not self._accept(rows, strictly=False) or self.value == before:
                vain += 1
            else:
                vain = 0

    def _pulled(self, rng: random.Random) -> list[Row] | None:
        rank = rng.randrange(len(self.rows))
        row = list(self.rows[rank])
        if len(row) < 2:
            return None
        at = rng.randrange(len(row))
        op = row[at]
        if op.beside is not None and rng.random() < 0.5:
            row[at : at + 1] = op.halves
        else:
            moved = self._meeting(row, at, rng) if op.kind is Kind.FORWARD and op.beside is None else None
            if moved is None:  # somewhere else within reach
                to = max(0, min(len(row) - 1, at + rng.choice([-3, -2, -1, 1, 2, 3])))
                row.insert(to, row.pop(at))
            else:
                row = moved
        rows = list(self.rows)
        rows[rank] = tuple(row)
        return rows

    def _meeting(self, row: list[Op], at: int, rng: random.Random) -> list[Op] | None:
        """The row with a forward and a backward within reach as a pair, where one of them stood."""
        found = list(self._partners(row, at))
        if not found:
            return None
        places, pair = rng.choice(found)
        taken = {at, *places}
        stand = rng.choice([at, places[0]])
        made: list[Op] = []
        for place, op in enumerate(row):
            if place == stand:
                made.append(pair)
            elif place not in taken:
                made.append(op)
        return made

    def _partners(self, row: list[Op], at: int) -> Iterator[tuple[tuple[int, ...], Op]]:
        for place in range(max(0, at - _FARTHEST), min(len(row), at + _FARTHEST + 1)):
            other = row[place]
            if other.kind not in (Kind.BACKWARD, Kind.BACKWARD_INPUT):
                continue
            ways: list[tuple[int, ...]] = [(place,)]
            if other.kind is Kind.BACKWARD_INPUT:
                weight = Op(Kind.BACKWARD_WEIGHT, other.stage, other.microbatch)
                ways += [(place, w) for w in range(place + 1, min(len(row), place + _FARTHEST + 1)) if row[w] == weight]
            for places in ways:
                pair = self._pair([row[at], *(row[p] for p in places)])
                if pair is not None:
                    yield places, pair
