"""Of the timetables that a search met, the one that stands jitter best.

Many orders are within a hair of the best, and not all of them hang on the same operations. Candidates
are the orders of the solver's pool whose value is at most (1 + within) times the best, spread evenly
over their values where there are too many. All are timed under the same luck for a few trials, those
with the best p95 for all of them; of equals the one of least value wins, so the choice is as
repeatable as the search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from zbsolve.analysis.jitter import Draws, Jittered, under_jitter
from zbsolve.errors import InvalidInput
from zbsolve.metrics import metrics
from zbsolve.problem import Problem
from zbsolve.simulate import simulate
from zbsolve.solution import Solution
from zbsolve.timetable import Order, Timetable

if TYPE_CHECKING:
    from zbsolve.solver import Progress
    from zbsolve.solver.pool import Pool

__all__ = ["RobustSolution", "solve_robust"]

_FIRST_TRIALS = 64
"""Trials that every candidate gets."""

_FINALISTS, _FEW_FINALISTS = 6, 1
"""Candidates that get all trials beside the fastest; of a large problem only so few."""

_LARGE = 6_000
"""Operations of such a problem."""

_OPERATIONS, _FEWEST, _MOST = 60_000, 8, 100
"""Operations of all candidates together; but at least and at most so many candidates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RobustSolution:
    """The timetable with the best p95, beside the fastest.

    Parameters
    ----------
    solution
        The one chosen, with its own value and gap.
    jittered
        It under jitter.
    fastest, fastest_jittered
        The least value that was met, and that under the same jitter.
    candidates
        How many orders there were to choose from.
    """

    solution: Solution
    jittered: Jittered
    fastest: Solution
    fastest_jittered: Jittered
    candidates: int


_ENOUGH, _LOOKS, _LOOKED_AT = 20, 200, 60_000
"""Where there are fewer candidates, so many list schedules are tried, or operations in them placed."""

_STEPS_A_LOOK = 100
"""What the solver counts a list schedule as."""


def solve_robust(
    problem: Problem,
    relative: float | None = 0.05,
    *,
    within: float = 0.01,
    trials: int = 500,
    iterations: int = 10,
    time_limit_s: float = 60.0,
    work_limit: int | None = None,
    gap: float = 0.0,
    seed: int = 0,
    workers: int | None = None,
    start: Order | Timetable | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_choice: Callable[[int, int], None] | None = None,
) -> RobustSolution:
    """Solve, then choose among what the search met by the 95th percentile under jitter.

    Parameters
    ----------
    problem
        What is asked.
    relative, trials, iterations
        The jitter, as in `under_jitter`.
    within
        How much worse than the best a candidate's value may be without jitter: 0.01 is 1 %.
    time_limit_s, work_limit, gap, seed, workers, start, on_progress
        As in `zbsolve.solve`; the seed is that of the jitter too. Choosing takes some seconds more.
    on_choice
        Told how many candidates have been timed, and of how many.

    Raises
    ------
    InvalidInput
        If an argument makes no sense, or the measured spread is asked for and the profile holds none.
    Infeasible, NothingFound
        As `zbsolve.solve` does.
    """
    from zbsolve.solver.again import may_gain
    from zbsolve.solver.away import may_move
    from zbsolve.solver.driver import solve_without

    if may_gain(problem) or may_move(problem):
        raise InvalidInput(
            "a choice for jitter does not know what to compute again or to move away; leave recomputation and offload "
            "out, or solve and see how the timetable fares under jitter"
        )
    if not 0 <= within < 1:
        raise InvalidInput(f"candidates may be worse than the best by 0 or more and less than 100 %, got {within!r}")
    if relative is None and not problem.profile.source.spread:
        raise InvalidInput("the profile holds no measured spread; say how much jitter there is, such as 5%")
    pools: list[Pool] = []
    fastest = solve_without(
        frozenset(),
        problem,
        time_limit_s=time_limit_s,
        work_limit=work_limit,
        gap=gap,
        seed=seed,
        workers=workers,
        start=start,
        on_progress=on_progress,
        on_pool=pools.append,
    )
    draws = Draws(seed, iterations if problem.objective == "period" else 1)

    def timed(timetable: Timetable, count: int, *, blame: bool = False) -> Jittered:
        return under_jitter(
            timetable, relative, trials=count, iterations=iterations, seed=seed, draws=draws, blame=blame
        )

    candidates = [fastest.timetable]
    finals: list[tuple[int, int, Timetable]] = []
    with suppress(KeyboardInterrupt):  # then the choice is among those that have been timed
        met = dict.fromkeys([fastest.timetable.order, *_met(pools[0], within, seed)])
        candidates = sorted((simulate(problem, order) for order in met), key=_value)
        if _value(candidates[0]) < fastest.value_ns:
            fastest = _solution(fastest, candidates[0], "list scheduler, random rule")
        first: list[tuple[int, int, Timetable]] = []
        for candidate in candidates:
            first.append((timed(candidate, min(trials, _FIRST_TRIALS)).p95_ns, _value(candidate), candidate))
            if on_choice is not None:
                on_choice(len(first), len(candidates))
        large = sum(map(len, fastest.timetable.rows)) > _LARGE
        first.sort(key=lambda entry: entry[:2])
        for _, value, candidate in first[: _FEW_FINALISTS if large else _FINALISTS]:
            finals.append((timed(candidate, trials).p95_ns, value, candidate))
    fastest_jittered = timed(fastest.timetable, trials, blame=True)
    finals.append((fastest_jittered.p95_ns, fastest.value_ns, fastest.timetable))
    chosen = min(finals, key=lambda entry: entry[:2])[2]
    if chosen.order == fastest.timetable.order:
        solution, jittered = fastest, fastest_jittered
    else:
        solution = _solution(fastest, chosen, "best p95 under jitter of what the search met")
        jittered = timed(chosen, trials, blame=True)
    return RobustSolution(
        solution=solution,
        jittered=jittered,
        fastest=fastest,
        fastest_jittered=fastest_jittered,
        candidates=len(candidates),
    )


def _met(pool: Pool, within: float, seed: int) -> Iterator[Order]:
    """The orders that a search met and that are good enough to choose from."""
    from zbsolve.solver.network import order_of
    from zbsolve.solver.running import run
    from zbsolve.solver.tasks import Find, Found, Length, Scan

    problem, worst = pool.case.problem, (1 + within) * pool.incumbent.value_ns
    operations = 3 * problem.placement.stages * problem.microbatches

    def add(find: Find) -> None:
        if isinstance(find, Found):
            pool.add(find.value_ns, find.sequence, find.fused, find.method)

    if sum(entry.value_ns <= worst for entry in pool.entries) < _ENOUGH:
        # a search that was over at once has not looked around
        length = Length(steps=_STEPS_A_LOOK * max(1, min(_LOOKS, _LOOKED_AT // operations)))
        run(Scan(plain=False, length=length, seed=seed, keep=_MOST, target_ns=0), pool.case, math.inf, add)
    good = [entry for entry in pool.entries if entry.value_ns <= worst]
    for at in _spread_out(len(good), operations):
        yield order_of(problem, good[at].sequence.tolist(), good[at].fused.tolist())


def _spread_out(count: int, operations: int) -> list[int]:
    """Places of the candidates in a list of `count`: all, or evenly from the first to the last."""
    most = max(_FEWEST, min(_MOST, _OPERATIONS // operations))
    if count <= most:
        return list(range(count))
    return [at * (count - 1) // (most - 1) for at in range(most)]


def _value(timetable: Timetable) -> int:
    return timetable.period_ns if timetable.problem.objective == "period" else timetable.makespan_ns


def _solution(of: Solution, timetable: Timetable, method: str) -> Solution:
    """The claims of another timetable: its own value against the same bound."""
    value, bound = _value(timetable), of.lower_bound_ns
    return replace(
        of,
        timetable=timetable,
        metrics=metrics(timetable),
        value_ns=value,
        status="optimal" if value == bound else "feasible",
        gap=value / bound - 1 if bound else of.gap,
        method=method,
    )
