"""Solving where forwards may be computed again or moved away: which stages is decided around the search for an order.

    bound of the lighter problem -> each choice of stages for a short while -> the best one's neighbours
           -> the best choice for what is left -> neighbours, as long as there are new ones -> a walk among single
           copies and recomputations (see `zbsolve.solver.roaming`)

Each choice is solved as a problem without it (see `zbsolve.solver.choice`); every answer is put back into what was
asked, freed of what need not be computed again or moved, and timed exactly there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from zbsolve.bounds import lower_bound
from zbsolve.catalog import baseline, schedules
from zbsolve.errors import Infeasible, NothingFound, OrderError, ScheduleConditionError
from zbsolve.metrics import metrics
from zbsolve.ops import Kind
from zbsolve.problem import Problem
from zbsolve.simulate import simulate
from zbsolve.solution import Solution, relative_gap
from zbsolve.solver.again import readings, thinned
from zbsolve.solver.answer import solution_of
from zbsolve.solver.away import may_move, movable, moved
from zbsolve.solver.budget import Budget
from zbsolve.solver.choice import Choice, bare, choices, folded, neighbours, unfolded
from zbsolve.solver.copies import arranged
from zbsolve.solver.incumbent import Progress
from zbsolve.solver.roaming import roam
from zbsolve.solver.sparing import spared
from zbsolve.timetable import Order, Timetable

__all__ = ["Inner", "Limits", "solve_choosing"]

_FIRST, _SECOND = 0.4, 0.3
"""Shares of the limits for the first choices, and for the neighbours of the best of them."""

_WALK = 0.1
"""The share of a work limit for the walk at the end; of seconds it has what is left."""

_FEWEST_STEPS = 200

_TRIALS_NODES, _TRIALS_NODES_AT_END = 10_000, 200_000
"""Operations timed while each better order, and the last, is freed of single copies that it does not need."""

_OVER_S = 0.05
"""Seconds after the limit when that ends in any case."""

_LAST = 0.1
"""The share of the seconds that no further choice is begun in."""

_PUBLISHED = 0.15
"""The share of the seconds after which no more published schedules are moved away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long, in seconds and in search steps (None for no limit), and the gap to stop at."""

    seconds: float
    steps: int | None
    gap: float


class Inner(Protocol):
    """Solves a problem without the choice; says whether it was interrupted."""

    def __call__(
        self,
        problem: Problem,
        *,
        seconds: float,
        steps: int | None,
        start: Order | None,
        on_progress: Callable[[Progress], None] | None,
    ) -> tuple[Solution, bool]:
        """Solve within so many seconds and steps."""


class _Choosing:
    """The best so far, and what is left of the limits."""

    def __init__(self, problem: Problem, inner: Inner, limits: Limits, on_progress: Callable[[Progress], None] | None):
        self.problem, self.inner, self.limits, self.on_progress = problem, inner, limits, on_progress
        self.started = time.perf_counter()
        self.bound = lower_bound(problem)
        self.best: tuple[int, Timetable, str] | None = None
        self.told_ns: int | None = None
        self.chosen = Choice()
        self.order_of: dict[Choice, Order] = {}
        self.interrupted = False
        self.lost: tuple[str, ...] = ()

    @property
    def done(self) -> bool:
        if self.interrupted:
            return True
        return self.best is not None and relative_gap(self.best[0], self.bound.value_ns) <= self.limits.gap

    @property
    def left_s(self) -> float:
        """Seconds left."""
        return max(0.0, -self.over_by_s)

    @property
    def over_by_s(self) -> float:
        """By how many seconds the limit is exceeded, negative before that."""
        return time.perf_counter() - self.started - self.limits.seconds

    @property
    def spent(self) -> float:
        """The share of the seconds that is over, where they are what counts."""
        return 0.0 if self.limits.steps is not None else (time.perf_counter() - self.started) / self.limits.seconds

    def offer(self, order: Order, method: str) -> int | None:
        """Keep an order of the problem if it fits and is better than all before it; its value if it fits."""
        order = thinned(self.problem, order)
        if "offload" in self.problem.allow:
            order = arranged(self.problem, order)
        timetable = simulate(self.problem, order)
        peaks = metrics(timetable).peak_bytes
        if any(limit is not None and peak > limit for peak, limit in zip(peaks, self.problem.limit_bytes, strict=True)):
            return None
        value = timetable.period_ns if self.problem.objective == "period" else timetable.makespan_ns
        if self.best is None or value < self.best[0]:
            self.best = value, timetable, method
            self.spare(_TRIALS_NODES)
            value = self.best[0]
            self._tell_best()
        return value

    def spare(self, most_nodes: int) -> None:
        """Free the best order of every single copy and recomputation that it does not need."""
        assert self.best is not None
        value, timetable, method = self.best
        order = timetable.order
        trials = most_nodes // max(1, sum(map(len, order.rows)))
        value, shorter = spared(self.problem, order, value, trials=trials, over=lambda: self.over_by_s > _OVER_S)
        if shorter != order:
            self.best = value, simulate(self.problem, shorter), method

    def more_neighbours(self) -> None:
        """Neighbours of the best choice, as long as there are new ones and seconds left."""
        while not self.done and self.limits.steps is None and self.spent < 1 - _LAST:
            if not any(chosen not in self.order_of for chosen in neighbours(self.problem, self.chosen)):
                return
            known = len(self.order_of)
            self.try_all(neighbours(self.problem, self.chosen), (1 - self.spent) / 2, None)
            if len(self.order_of) == known:
                return

    def walk(self, seed: int) -> None:
        """Try single changes of the best order for what is left."""
        if self.done or self.best is None:
            return
        value, timetable, _ = self.best
        steps = None if self.limits.steps is None else int(_WALK * self.limits.steps)
        budget = Budget(time.perf_counter() + self.left_s, steps)
        target = int(self.bound.value_ns * (1 + self.limits.gap))
        order = roam(self.problem, timetable.order, value, target_ns=target, budget=budget, seed=seed)
        if order != timetable.order:
            self.offer(order, "walk among single copies")

    def published(self) -> None:
        """Offer what computes forwards again by itself, and what fits once enough is moved away."""
        for schedule in schedules():
            again = schedule.name.endswith("-recompute")
            if not (again or may_move(self.problem)):
                continue
            if self.best is not None and self.spent > _PUBLISHED:
                return
            with contextlib.suppress(ScheduleConditionError):
                order = baseline(schedule.name, self.problem)
                self.offer(order if again else moved(order, movable(self.problem)), schedule.name)

    def try_all(self, sets: Iterable[Choice], share: float, start: Order | None) -> None:
        """Solve with each of the sets, for an equal part of a share of the limits."""
        todo = [chosen for chosen in sets if chosen not in self.order_of]
        for chosen in todo:
            if self.done:
                return
            self.solve(chosen, share / len(todo), start)

    def solve(self, chosen: Choice, share: float, start: Order | None) -> None:
        """Solve with one set of stages, read in each way; nothing where it cannot fit."""
        ways = readings(self.problem, chosen.again)
        for reading in ways:
            if not self.done:
                self._solve(chosen, reading, share / len(ways), start)

    def _solve(self, chosen: Choice, reading: Kind, share: float, start: Order | None) -> None:
        left = self.left_s
        if left <= 0 and self.best is not None:
            return
        steps = None if self.limits.steps is None else max(_FEWEST_STEPS, int(share * self.limits.steps))
        seconds = min(max(left, 0.05), self.limits.seconds * share if steps is None else max(left, 0.05))
        try:
            solution, self.interrupted = self.inner(
                folded(self.problem, chosen, reading),
                seconds=seconds,
                steps=steps,
                start=start,
                on_progress=self._told(exact=chosen == Choice(again=chosen.again)),
            )
        except (Infeasible, NothingFound):
            return
        self.lost += solution.lost
        order = solution.timetable.order
        self.order_of.setdefault(chosen, order)
        before = None if self.best is None else self.best[0]
        value = self.offer(unfolded(self.problem, order, chosen), solution.method)
        if value is not None and (before is None or value < before):
            self.chosen, self.order_of[chosen] = chosen, order

    def _tell_best(self) -> None:
        """Tell of the best if nothing as good has been told."""
        assert self.best is not None
        value, _, method = self.best
        if self.on_progress is None or (self.told_ns is not None and self.told_ns <= value):
            return
        self.told_ns, bound = value, self.bound
        self.on_progress(
            Progress(
                seconds=time.perf_counter() - self.started,
                value_ns=value,
                lower_bound_ns=bound.value_ns,
                bound=bound.name,
                gap=relative_gap(value, bound.value_ns),
                method=method,
                lost=self.lost,
            )
        )

    def _told(self, *, exact: bool) -> Callable[[Progress], None] | None:
        """Tells of what is better than all before, with the bound of the problem itself.

        Where the search sees copies that take no time, or more room than there is, its values are too good: `exact` is
        False, and only what was lost is told.
        """
        tell = self.on_progress
        if tell is None:
            return None

        before, known = self.lost, 0

        def told(progress: Progress) -> None:
            nonlocal known
            if not exact:
                if self.best is None:
                    return
                progress = replace(progress, value_ns=self.best[0], method=self.best[2])
            if self.told_ns is None or progress.value_ns < self.told_ns or len(progress.lost) > known:
                bound, known, self.told_ns = self.bound, len(progress.lost), progress.value_ns
                tell(
                    replace(
                        progress,
                        seconds=time.perf_counter() - self.started,
                        lower_bound_ns=bound.value_ns,
                        bound=bound.name,
                        gap=relative_gap(progress.value_ns, bound.value_ns),
                        lost=before + progress.lost,
                    )
                )

        return told


def solve_choosing(
    problem: Problem,
    inner: Inner,
    limits: Limits,
    *,
    seed: int,
    start: Order | None,
    on_progress: Callable[[Progress], None] | None,
) -> tuple[Solution, bool]:
    """Solve a problem in which forwards may be computed again or moved away; and whether that was interrupted.

    Raises
    ------
    Infeasible
        If no timetable fits the memory limit, whatever is computed again or moved away.
    NothingFound
        If no timetable was found in time.
    """
    search = _Choosing(problem, inner, limits, on_progress)
    search.published()
    begin = None
    if start is not None:
        with contextlib.suppress(OrderError):  # of other microbatches, say; the inner search sees to that
            search.offer(start, "the given start")
        begin = bare(start)
    search.try_all(choices(problem), _FIRST, begin)
    if search.best is not None:
        search.try_all(neighbours(problem, search.chosen), _SECOND, begin)
    if not search.done:
        rest = 1 - _FIRST - _SECOND - (0 if limits.steps is None else _WALK)
        search.solve(search.chosen, rest, search.order_of.get(search.chosen, begin))
    try:
        search.more_neighbours()
        search.walk(seed)
        if search.best is not None:
            search.spare(_TRIALS_NODES_AT_END)
    except KeyboardInterrupt:
        search.interrupted = True
    if search.best is None:
        raise NothingFound("no timetable was found; give more time, a larger work limit, or a larger memory limit")
    value, timetable, method = search.best
    solution = solution_of(
        timetable, value, search.bound, method=method, started=search.started, seed=seed, lost=search.lost
    )
    return solution, search.interrupted
