"""The way a problem is solved: bounds first, then cheap orders, then better ones, until proof or time stops it.

    bounds -> plain list schedules -> published schedules -> random list schedules -> fusing
           -> a smaller problem, stretched -> annealing from many -> CP-SAT -> annealing from the best
           -> fusing -> exact times

Every arrow asks first whether value and bound have met.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable
from functools import partial

from zbsolve.bounds import MAX_EFFORT, lower_bound
from zbsolve.bounds.unpaired import may_pair
from zbsolve.catalog.closing import closed
from zbsolve.errors import InvalidInput, NothingFound, OrderError
from zbsolve.opgraph import OpGraph
from zbsolve.ops import Op
from zbsolve.problem import Problem
from zbsolve.simulate import Timer, simulate
from zbsolve.solution import Bound, Solution
from zbsolve.solver.again import may_gain
from zbsolve.solver.answer import solution_of
from zbsolve.solver.away import may_move
from zbsolve.solver.budget import Budget
from zbsolve.solver.case import Case
from zbsolve.solver.choice import bare as without
from zbsolve.solver.choosing import Inner, Limits, solve_choosing
from zbsolve.solver.compiled import plain
from zbsolve.solver.crew import Crew, InLine, Processes
from zbsolve.solver.director import Director
from zbsolve.solver.fusing import fuse
from zbsolve.solver.incumbent import Incumbent, Progress
from zbsolve.solver.pairs import solve_paired
from zbsolve.solver.pool import Pool
from zbsolve.solver.portfolio import add_plain, add_published, plain_drafts, published_names
from zbsolve.solver.smaller import carried_over
from zbsolve.solver.tasks import Length, Publish, Scan
from zbsolve.solver.twins import order_in_turn
from zbsolve.solver.work import Work
from zbsolve.timetable import Order, Timetable

__all__ = ["solve"]

_CREW_S, _CREW_STEPS = 2.0, 20_000
"""A search shorter than this is over before worker processes have paid for their start."""

_LARGE = 6_000
"""From this many operations on, published schedules are built by workers too."""

_LARGE_FOR_ONE = 15_000
"""The same where the search is to be so short: workers, too, take time to start."""

_FUSING_NODES = 500_000
"""Operations timed while the answer is fused at the end."""

_EFFORT_A_SECOND = 4_000
"""Of the time limit: the effort that analytic bounds may take, a tenth of it."""

_GIVEN = "the given start"

_TIMING, _FUSING = 4.0, 4.0
"""What timing and measuring the answer takes, and fusing it with a few trials: in times that reading the problem took.
So the seconds kept back from the search are those of this machine at this load."""


def solve(
    problem: Problem,
    *,
    time_limit_s: float = 60.0,
    work_limit: int | None = None,
    gap: float = 0.0,
    seed: int = 0,
    workers: int | None = None,
    start: Order | Timetable | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Solution:
    """Find the best timetable and prove how good it is.

    Parameters
    ----------
    problem
        What is asked. Any placement; the search is strongest with one chunk a rank.
    time_limit_s
        Wall time in seconds.
    work_limit
        A limit in search steps: evaluated schedules and annealing moves, and CP-SAT's own
        deterministic time at 10 000 steps a unit. With it the same seed and workers give the same
        order on any machine, provided that the time limit is not reached.
    gap
        Stop as soon as value / bound - 1 is at most this.
    seed
        Of all random choices.
    workers
        Processes, and threads of CP-SAT; default as many as there are CPUs for this process.
    start
        An order to begin with: of this problem, or of one with other costs, limits or number of
        microbatches. It is left out if it exceeds the memory limit or cannot be stretched.
    on_progress
        Called whenever the best order or the bound improves.

    Returns
    -------
    Solution
        Its status is ``"optimal"`` if value and bound are equal. An interrupt (Ctrl-C) ends the
        search and returns the best so far.

    Raises
    ------
    Infeasible
        If no timetable fits the memory limit; names the smallest limits that would do.
    InvalidInput
        If an argument makes no sense.
    OrderError
        If `start` is no order of this problem, or can never finish.
    NothingFound
        If no timetable was found in time.
    KeyboardInterrupt
        If it comes before the first order is known.
    """
    return solve_without(
        frozenset(),
        problem,
        time_limit_s=time_limit_s,
        work_limit=work_limit,
        gap=gap,
        seed=seed,
        workers=workers,
        start=start,
        on_progress=on_progress,
    )


def solve_without(
    arms: frozenset[str],
    problem: Problem,
    *,
    time_limit_s: float = 60.0,
    work_limit: int | None = None,
    gap: float = 0.0,
    seed: int = 0,
    workers: int | None = None,
    start: Order | Timetable | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_pool: Callable[[Pool], None] | None = None,
) -> Solution:
    """`solve` with some arms (see `zbsolve.solver.director.ARMS`) left out, to see what they are good for.

    `on_pool` is handed the orders that a search met, when it has ended: of the problem, or of one in which what is
    computed again or moved is folded away (see `zbsolve.solver.choice`).
    """
    _check_arguments(time_limit_s, work_limit, gap, workers)
    order = start.order if isinstance(start, Timetable) else start

    def searching(on_pool: Callable[[Pool], None] | None) -> Inner:
        def one(
            problem: Problem,
            *,
            seconds: float,
            steps: int | None,
            start: Order | None,
            on_progress: Callable[[Progress], None] | None,
        ) -> tuple[Solution, bool]:
            return _solve(
                arms,
                problem,
                time_limit_s=seconds,
                work_limit=steps,
                gap=gap,
                seed=seed,
                workers=workers,
                start=start,
                on_progress=on_progress,
                on_pool=on_pool,
            )

        return partial(_with_choices, one, gap=gap, seed=seed)

    inner = searching(on_pool)
    if may_pair(problem):
        limits = Limits(seconds=time_limit_s, steps=work_limit, gap=gap)
        # what the search met with other durations is nobody's to choose from
        return solve_paired(problem, inner, searching(None), limits, seed=seed, start=order, on_progress=on_progress)
    bare = dataclasses.replace(problem, allow=problem.allow - {"paired"})
    if bare.allow != problem.allow and order is not None:
        order = order.apart()
    solution, _ = inner(bare, seconds=time_limit_s, steps=work_limit, start=order, on_progress=on_progress)
    return _as_asked(problem, solution)


def _with_choices(
    one: Inner,
    problem: Problem,
    *,
    seconds: float,
    steps: int | None,
    start: Order | None,
    on_progress: Callable[[Progress], None] | None,
    gap: float,
    seed: int,
) -> tuple[Solution, bool]:
    """Solve a problem in which forwards may be computed again or moved with what solves one without these choices."""
    if may_gain(problem) or may_move(problem):
        limits = Limits(seconds=seconds, steps=steps, gap=gap)
        return solve_choosing(problem, one, limits, seed=seed, start=start, on_progress=on_progress)
    bare = dataclasses.replace(problem, allow=problem.allow - {"recompute", "offload"})
    if bare.allow != problem.allow and start is not None:
        start = without(start)
    solution, interrupted = one(bare, seconds=seconds, steps=steps, start=start, on_progress=on_progress)
    return _as_asked(problem, solution), interrupted


def _as_asked(problem: Problem, solution: Solution) -> Solution:
    """A solution of a problem that allows less, as one of what was asked."""
    if solution.timetable.problem.allow == problem.allow:
        return solution
    timetable = dataclasses.replace(solution.timetable, problem=problem)
    return dataclasses.replace(solution, timetable=timetable, digest=problem.digest)


def _solve(
    arms: frozenset[str],
    problem: Problem,
    *,
    time_limit_s: float,
    work_limit: int | None,
    gap: float,
    seed: int,
    workers: int | None,
    start: Order | None,
    on_progress: Callable[[Progress], None] | None,
    on_pool: Callable[[Pool], None] | None,
) -> tuple[Solution, bool]:
    """Solve a problem in which nothing may be computed again or moved; and whether it was interrupted."""
    started = time.perf_counter()
    effort = int(min(MAX_EFFORT, _EFFORT_A_SECOND * time_limit_s))
    incumbent = Incumbent(Bound(0, "none"), gap, started, on_progress)
    case = Case(problem, plain())
    read = time.perf_counter() - started
    timing, fusing = min(0.3 * time_limit_s, _TIMING * read), min(0.1 * time_limit_s, _FUSING * read)
    budget = Budget(started + time_limit_s - timing - fusing, work_limit)
    interrupted = False
    try:
        workers = workers or _available_cpus()
        pool = Pool(case, incumbent)
        director = Director(pool, budget, size=workers, seed=seed, gap=gap, without=arms)
        if start is not None:
            _add_start(pool, start)
        _search(director, partial(lower_bound, problem, most_effort=effort))
    except KeyboardInterrupt:
        interrupted = True
        if not incumbent.known:
            raise
    if not incumbent.known:
        raise NothingFound(
            "no timetable was found; give more time, a larger work limit, or a larger memory limit "
            "(with several chunks a rank the search keeps some memory in reserve)"
        )
    fuse_until = started + time_limit_s - timing
    if time.perf_counter() + 0.5 * _FUSING * read > fuse_until:
        fuse_until = 0.0
    solution = _solution(problem, incumbent, started, seed, fuse_until)
    if on_pool is not None:
        on_pool(pool)
    return solution, interrupted


def _check_arguments(time_limit_s: float, work_limit: int | None, gap: float, workers: int | None) -> None:
    if not (math.isfinite(time_limit_s) and time_limit_s > 0):
        raise InvalidInput(f"the time limit must be a positive number of seconds, got {time_limit_s!r}")
    if work_limit is not None and work_limit < 1:
        raise InvalidInput(f"the work limit must be at least 1 step, got {work_limit!r}")
    if not (math.isfinite(gap) and gap >= 0):
        raise InvalidInput(f"the gap must be 0 or more, got {gap!r}")
    if workers is not None and workers < 1:
        raise InvalidInput(f"the search needs at least 1 worker, got {workers!r}")


def _available_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def _search(director: Director, prove: Callable[[], Bound]) -> None:
    pool, budget, incumbent, case = director.pool, director.budget, director.pool.incumbent, director.pool.case
    if budget.steps is None and case.nodes >= (_LARGE if budget.seconds_left > _CREW_S else _LARGE_FOR_ONE):
        plainly = Scan(plain=True, length=Length(seconds=0.1 * budget.seconds_left), seed=0, keep=10, target_ns=0)
        director.open_with([plainly, *(Publish(name) for name in published_names(case.problem))])
        with Work(director, Processes(case, director.size, in_order=False)) as work:
            incumbent.prove(prove())
            work.go_on()
        if not incumbent.known:
            _add_first(pool)
        return
    incumbent.prove(prove())
    add_published(pool, budget)
    if not incumbent.done and not (budget.over and incumbent.known):
        add_plain(pool, budget.part(0.5))
    if not (incumbent.done or budget.over):
        with Work(director, _crew(case, budget, director.size)) as work:
            work.go_on()


def _add_first(pool: Pool) -> None:
    """Any order at all, whatever the time: the first plain rule that comes to an end."""
    found = next(plain_drafts(pool.case, Budget(math.inf, None)), None)
    if found is not None:
        pool.add(found.value_ns, found.sequence, found.fused, found.method)


def _crew(case: Case, budget: Budget, workers: int) -> Crew:
    """Processes, unless the search is over before they have paid for their start."""
    steps = budget.steps_left
    if (budget.seconds_left < _CREW_S) if steps is None else (steps < _CREW_STEPS):
        return InLine(case, workers)
    return Processes(case, workers, in_order=steps is not None)


def _add_start(pool: Pool, order: Order) -> None:
    """Take a given order in; of another number of microbatches: without some, or with its loops run more often.

    Raises
    ------
    OrderError
        If it is no order of this problem with the microbatches that it has, or can never finish.
    """
    problem = pool.case.problem
    present = 1 + max((op.microbatch or 0 for row in order.rows for op in row), default=0)
    if _ends_of(order) != _ends_of(Order(problem.operations())):
        order = closed(problem, order)
    if present == problem.microbatches:
        _refuse_stuck(problem, order)
        pool.add_order(order_in_turn(OpGraph.build(problem, order.rows), order), _GIVEN)
        return
    if len(problem.placement.routes) == 1 and problem.slices == 1:
        own = dataclasses.replace(problem, microbatches=present, route_of=None, microbatch_factors=None)
        _refuse_stuck(own, order)
    if (carried := carried_over(problem, order)) is not None:
        pool.add_order(carried, _GIVEN)


def _ends_of(order: Order) -> list[set[Op]]:
    """The reductions and optimizers of each rank."""
    return [{op for op in row if op.microbatch is None} for row in order.rows]


def _refuse_stuck(problem: Problem, order: Order) -> None:
    graph = OpGraph.build(problem, order.rows)
    try:
        Timer(graph, graph.encode(order))
    except OrderError as error:
        raise OrderError(f"the given start cannot be used: {error}; leave it out, or mend it") from None


def _solution(problem: Problem, incumbent: Incumbent, started: float, seed: int, fuse_until: float) -> Solution:
    """Time the best order exactly, fused wherever that costs nothing."""
    order = incumbent.order
    assert order is not None
    trials = max(10, _FUSING_NODES // sum(map(len, order.rows)))
    if time.perf_counter() < fuse_until:
        _, order = fuse(problem, order, Budget(fuse_until, trials))
    timetable = simulate(problem, order)
    value = timetable.period_ns if problem.objective == "period" else timetable.makespan_ns
    return solution_of(
        timetable, value, incumbent.bound, method=incumbent.method, started=started, seed=seed, lost=incumbent.lost
    )
