"""Simulated annealing over orders, with the exact period (or makespan) as the objective.

The period needs a release vector x, one first start a rank (see `zbsolve.simulate`); it is kept from
one order to the next, since neighbours have nearly the same. Whether a neighbour is taken is a
question with a threshold drawn beforehand: is there an x with every rank done within the threshold?
One pass under the present x usually tells. If a rank is late but hangs on another rank's release,
its own release moves up and another pass is due; if it hangs on its own release, no x can help.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zbsolve.solver.budget import Budget
from zbsolve.solver.kernels import Arrays, period, sweep
from zbsolve.solver.neighbourhood import LiveOrder, Move

__all__ = ["Cooling", "anneal"]

_ROUNDS = 5
"""Passes after which a neighbour counts as too long."""

_FARTHEST = 6
"""The most places an operation moves at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cooling:
    """How the temperature falls.

    Parameters
    ----------
    first_ns
        The temperature at the start.
    ratio
        The temperature at the end as a part of the first.
    """

    first_ns: float
    ratio: float = 1 / 30


class _Times:
    """Ends of all nodes under a release vector, behind which a sentinel stands for each rank and one for no wait."""

    def __init__(self, arrays: Arrays, order: LiveOrder, objective: str) -> None:
        self.arrays = arrays
        self.order = order
        self.periodic = objective == "period"
        nodes, ranks = len(arrays.rank), arrays.ranks
        self.nodes, self.never = nodes, nodes + ranks
        self.tail = [w[0][0] if w else self.never for w in arrays.waits]
        self.lag = [w[0][1] if w else 0 for w in arrays.waits]
        self.more = {node: w[1:] for node, w in enumerate(arrays.waits) if len(w) > 1}
        self.end: list[int] = []
        self.value = 0
        self.settle([0] * ranks)

    def settle(self, release: Sequence[int]) -> None:
        """Time the present order from scratch, exactly."""
        release = list(release)
        if self.periodic:
            self.value, release = period(self.arrays, self.order.sequence, release)
        end, last = sweep(self.arrays, self.order.sequence, release)
        self.end = [*end, *release, -(2**62)]
        if not self.periodic:
            self.value = max(last)

    @property
    def release(self) -> list[int]:
        """The release vector."""
        return self.end[self.nodes : self.never]

    def _pass(self, end: list[int], sequence: Sequence[int]) -> None:
        before, duration, tail, lag, more = self.order.before, self.arrays.duration, self.tail, self.lag, self.more
        if more:
            for node in sequence:
                at = max(end[before[node]], end[tail[node]] + lag[node])
                for other, wait in more.get(node, ()):
                    at = max(at, end[other] + wait)
                end[node] = at + duration[node]
            return
        for node in sequence:
            at = end[before[node]]
            arrival = end[tail[node]] + lag[node]
            end[node] = (arrival if arrival > at else at) + duration[node]

    def within(self, move: Move, threshold: int) -> tuple[list[int], int] | None:
        """Ends and value after a move whose rows are linked already; None if beyond the threshold."""
        low, high, region, _, _ = move
        sequence, nodes, last = self.order.sequence, self.nodes, self.order.last
        changed = [*region, *sequence[high + 1 :]]
        end = self.end.copy()
        self._pass(end, changed)
        if not self.periodic:
            value = max(end[n] for n in last)
            return (end, value) if value <= threshold else None
        busy = self.arrays.busy
        for attempt in range(_ROUNDS):
            late = [r for r in busy if end[last[r]] - end[nodes + r] > threshold]
            if not late:
                return end, max(end[last[r]] - end[nodes + r] for r in busy)
            if attempt == _ROUNDS - 1 or any(self.origin(end, r) == r for r in late):
                return None
            for r in late:
                end[nodes + r] = end[last[r]] - threshold
            if not attempt:
                changed = [*sequence[:low], *changed]
            self._pass(end, changed)
        return None

    def origin(self, end: list[int], rank: int) -> int:
        """The rank whose release the last end of a rank hangs on."""
        before, duration, tail, lag = self.order.before, self.arrays.duration, self.tail, self.lag
        node, nodes = self.order.last[rank], self.nodes
        while node < nodes:
            at = end[node] - duration[node]
            ahead = before[node]
            if end[ahead] == at:
                node = ahead
            elif end[tail[node]] + lag[node] == at:
                node = tail[node]
            else:
                node = next(t for t, wait in self.more[node] if end[t] + wait == at)
        return node - nodes

    def critical(self, rng: random.Random) -> tuple[list[int], list[int], bool]:
        """One chain of operations that makes the value what it is.

        Returns
        -------
        Its nodes, those that wait for nothing but their row predecessor, and whether it is a cycle.
        """
        end, before, duration, tail = self.end, self.order.before, self.arrays.duration, self.tail
        nodes, last = self.nodes, self.order.last
        if self.periodic:
            late = [r for r in self.arrays.busy if end[last[r]] - end[nodes + r] == self.value]
        else:
            late = [r for r in self.arrays.busy if end[last[r]] == self.value]
        rank = late[int(rng.random() * len(late))]
        node = last[rank]
        chain, blocked = [], []
        while node < nodes:
            chain.append(node)
            at = end[node] - duration[node]
            ahead = before[node]
            if end[ahead] == at:
                if ahead < nodes:
                    blocked.append(node)
                node = ahead
            elif end[tail[node]] + self.lag[node] == at:
                node = tail[node]
            else:
                node = next(t for t, wait in self.more[node] if end[t] + wait == at)
        return chain, blocked, not self.periodic or node - nodes == rank


def anneal(
    arrays: Arrays,
    sequence: Sequence[int],
    *,
    objective: str,
    cooling: Cooling,
    budget: Budget,
    rng: random.Random,
    target_ns: int = 0,
    on_better: Callable[[int, list[int]], None] | None = None,
) -> tuple[int, list[int]]:
    """Improve an order until the budget is over or the target is met.

    Parameters
    ----------
    arrays
        The graph.
    sequence
        The order to begin with; must fit the memory.
    objective
        ``"period"`` or ``"makespan"``.
    cooling
        Temperatures; they fall with the steps of the budget, or with its seconds where steps have no limit.
    budget
        One step a move.
    rng
        Of all choices.
    target_ns
        Stop at this value.
    on_better
        Told of every order better than all before.

    Returns
    -------
    The best value and its sequence.
    """
    order = LiveOrder(arrays, sequence)
    times = _Times(arrays, order, objective)
    best_value, best = times.value, list(order.sequence)
    if best_value <= target_ns:
        return best_value, best
    draw, log = rng.random, math.log
    nodes = len(arrays.rank)
    chain, blocked, _ = times.critical(rng)
    check_every = max(1, min(64, 20_000 // nodes))
    progress = _Progress(budget)
    temperature = cooling.first_ns
    count = 0
    while True:
        if count % check_every == 0:
            if count:
                budget.spend(check_every)
            if budget.over:
                break
            temperature = cooling.first_ns * cooling.ratio ** progress.done()
        count += 1
        kind = draw()
        if kind < 0.6 and blocked:
            move = order.earlier(blocked[int(draw() * len(blocked))], 1)
        else:
            node = chain[int(draw() * len(chain))] if kind < 0.92 else int(draw() * nodes)
            steps = 1 + int(draw() * _FARTHEST)
            move = order.earlier(node, steps) if draw() < 0.5 else order.later(node, steps)
        if move is None:
            continue
        threshold = times.value - int(temperature * log(1.0 - draw()))
        undo = order.link(move[3], move[4])
        outcome = times.within(move, threshold)
        if outcome is None:
            order.link(move[3], undo)
            continue
        order.commit(move)
        times.end, times.value = outcome
        chain, blocked, cyclic = times.critical(rng)
        if not cyclic:
            times.settle(times.release)
            chain, blocked, _ = times.critical(rng)
        if times.value < best_value:
            best_value, best = times.value, list(order.sequence)
            if on_better is not None:
                on_better(best_value, best)
            if best_value <= target_ns:
                break
    return best_value, best


class _Progress:
    """How much of a budget is used, from 0 to 1."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._steps, self._seconds = budget.steps_left, budget.seconds_left

    def done(self) -> float:
        if self._steps is not None:
            return 1 - (self._budget.steps_left or 0) / max(1, self._steps)
        return 1 - self._budget.seconds_left / max(1e-9, self._seconds)
