"""Solving where a forward and a backward may run together: around the search for an order, and after it.

    published schedules with pairs ----------------------------+
    the problem without the choice ---------- a good order ----+--> put together, taken apart --> the best
    the problem with the shorter operations - a good order ----+
                                              and a bound

The second of these is what every timetable with pairs can be turned into (see `zbsolve.bounds.unpaired`): whatever the
search proves of it holds for what was asked, and its orders are those that pairs would like.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace

from zbsolve.bounds import lower_bound
from zbsolve.bounds.unpaired import unpaired
from zbsolve.catalog import baseline, schedules
from zbsolve.errors import Infeasible, NothingFound, OrderError, ScheduleConditionError
from zbsolve.problem import Problem
from zbsolve.simulate import simulate
from zbsolve.solution import Bound, Solution, relative_gap
from zbsolve.solver.answer import solution_of
from zbsolve.solver.budget import Budget
from zbsolve.solver.choosing import Inner, Limits
from zbsolve.solver.incumbent import Progress
from zbsolve.solver.pairing import together, value_of
from zbsolve.timetable import Order

__all__ = ["solve_paired"]

_APART, _SHORTER = 0.45, 0.3
"""Shares of the limits for the problem without pairs and for the one with shorter operations; pairing has the rest."""

_FEWEST_STEPS = 200

_ORDERS = 4
"""Orders that pairs are sought in, the best first."""


class _Pairing:
    """The best so far, the orders met, and what is left of the limits."""

    def __init__(self, problem: Problem, limits: Limits, on_progress: Callable[[Progress], None] | None) -> None:
        self.problem, self.limits, self.on_progress = problem, limits, on_progress
        self.started = time.perf_counter()
        self.bound = lower_bound(problem)
        self.met: list[tuple[int, Order, str]] = []
        self.interrupted = False
        self.lost: tuple[str, ...] = ()

    @property
    def done(self) -> bool:
        """Whether value and bound are near enough, or somebody has had enough."""
        return self.interrupted or (bool(self.met) and self._gap() <= self.limits.gap)

    def _gap(self) -> float:
        return relative_gap(self.met[0][0], self.bound.value_ns)

    def left(self) -> float:
        """Seconds of the time limit."""
        return self.limits.seconds - (time.perf_counter() - self.started)

    def steps(self, share: float) -> int | None:
        """Of the work limit."""
        return None if self.limits.steps is None else max(_FEWEST_STEPS, int(share * self.limits.steps))

    def offer(self, order: Order, method: str) -> None:
        """Keep an order of the problem that fits, the best ones first."""
        value = value_of(self.problem, order)
        if value is None or any(order == known for _, known, _ in self.met):
            return
        better = not self.met or value < self.met[0][0]
        self.met = sorted([*self.met, (value, order, method)], key=lambda met: met[0])
        if better and self.on_progress is not None:
            self.on_progress(
                Progress(
                    seconds=time.perf_counter() - self.started,
                    value_ns=value,
                    lower_bound_ns=self.bound.value_ns,
                    bound=self.bound.name,
                    gap=self._gap(),
                    method=method,
                )
            )

    def published(self) -> None:
        """Offer the schedules that run something together by themselves."""
        for schedule in schedules():
            with contextlib.suppress(ScheduleConditionError, Infeasible):
                order = baseline(schedule.name, self.problem)
                if any(op.beside is not None for row in order.rows for op in row):
                    self.offer(order, schedule.name)

    def search(self, inner: Inner, asked: Problem, share: float, start: Order | None, *, proves: bool) -> None:
        """Solve a problem without pairs: its order is one of what was asked, and so may be what it proves."""
        if self.done or (self.left() <= 0 and self.met):
            return
        steps = self.steps(share)
        seconds = min(max(self.left(), 0.05), self.limits.seconds * share if steps is None else max(self.left(), 0.05))
        with contextlib.suppress(NothingFound, Infeasible):
            solution, self.interrupted = inner(asked, seconds=seconds, steps=steps, start=start, on_progress=None)
            self.lost += solution.lost
            if proves:
                self.prove(Bound(solution.lower_bound_ns, solution.bound))
            self.offer(solution.timetable.order, solution.method)

    def prove(self, bound: Bound) -> None:
        """Keep a bound if it is better."""
        if bound.value_ns > self.bound.value_ns:
            self.bound = bound

    def pair(self, seed: int) -> None:
        """Put together and take apart in the best orders."""
        orders = list(self.met[:_ORDERS])
        steps = self.steps(1 - _APART - _SHORTER)
        for turn, (_, order, method) in enumerate(orders):
            if self.done or (self.left() <= 0 and turn):
                return
            rest = len(orders) - turn
            budget = Budget(
                time.perf_counter() + max(0.05, self.left() / rest if steps is None else self.left()),
                None if steps is None else steps // len(orders),
            )
            try:
                found = together(self.problem, order, budget, seed + turn)
            except KeyboardInterrupt:
                self.interrupted = True
                return
            if found is not None:
                self.offer(found[1], f"{method}, pairs")


def solve_paired(
    problem: Problem,
    inner: Inner,
    shorter: Inner,
    limits: Limits,
    *,
    seed: int,
    start: Order | None,
    on_progress: Callable[[Progress], None] | None,
) -> Solution:
    """Solve a problem in which a forward and a backward may run together.

    Parameters
    ----------
    inner, shorter
        Solve the problem without the choice, and the one with shorter operations.

    Raises
    ------
    Infeasible
        If no timetable fits the memory limit.
    NothingFound
        If no timetable was found in time.
    """
    search = _Pairing(problem, limits, on_progress)
    search.published()
    bare = None
    if start is not None:
        with contextlib.suppress(OrderError):  # of other microbatches, say; the inner search sees to that
            search.offer(start, "the given start")
        bare = start.apart()
    search.search(inner, replace(problem, allow=problem.allow - {"paired"}), _APART, bare, proves=False)
    best = search.met[0][1].apart() if search.met else bare
    search.search(shorter, unpaired(problem), _SHORTER, best, proves=True)
    if search.met and not search.done:
        search.pair(seed)
    if not search.met:
        raise NothingFound("no timetable was found; give more time, a larger work limit, or a larger memory limit")
    value, order, method = search.met[0]
    timetable = simulate(problem, order)
    return solution_of(
        timetable, value, search.bound, method=method, started=search.started, seed=seed, lost=search.lost
    )
