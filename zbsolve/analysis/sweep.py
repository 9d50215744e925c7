"""The best period over memory limits, microbatches and placements.

Points that differ in their memory alone (or, where there is one limit, in their microbatches alone)
form a chain and are solved in turn, from little memory to much: what fits a limit fits a larger one,
so each starts from the best order of the point before and can never be worse. Chains are solved side
by side in processes, one worker a point, so that the answers depend neither on how many there are nor
on which ends first.

Afterwards neighbours help once more: a bound for more memory holds for less, and a timetable found
with more that happens to fit less counts there too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from zbsolve.analysis.processes import Crew
from zbsolve.analysis.whatif import Effort
from zbsolve.errors import Infeasible, InvalidInput, NothingFound
from zbsolve.metrics import metrics
from zbsolve.problem import Problem
from zbsolve.solution import Solution, Status
from zbsolve.timetable import Timetable

__all__ = ["FrontierStatus", "SweepOutcome", "SweepPoint", "chains", "neighbours_help", "solve_point", "sweep"]

FrontierStatus = Status | Literal["infeasible", "nothing found"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One question of a sweep.

    Parameters
    ----------
    placement, memory
        What people call its placement and its limit.
    problem
        What is asked.
    """

    placement: str
    memory: str
    problem: Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOutcome:
    """The answer.

    Parameters
    ----------
    point
        The question.
    status
        As a solution's, or why there is none.
    solution
        The best found.
    """

    point: SweepPoint
    status: FrontierStatus
    solution: Solution | None = None


def chains(points: Iterable[SweepPoint]) -> tuple[tuple[SweepPoint, ...], ...]:
    """Points in the order in which they are solved: chains of neighbours, each from the least to the most.

    Raises
    ------
    InvalidInput
        If two points are the same.
    """
    given = list(points)
    seen: dict[str, SweepPoint] = {}
    for point in given:
        twin = seen.setdefault(point.problem.digest, point)
        if twin is not point:
            raise InvalidInput(
                f"two points of the sweep are the same: {_name(twin)} and {_name(point)}; leave one of them out"
            )
    several = len({point.memory for point in given}) > 1
    found: dict[object, list[SweepPoint]] = {}
    for point in given:
        problem = point.problem
        key = (point.placement, problem.placement, problem.microbatches if several else point.memory)
        found.setdefault(key, []).append(point)
    return tuple(tuple(sorted(chain, key=_size)) for chain in found.values())


def sweep(
    points: Iterable[SweepPoint],
    effort: Effort,
    *,
    jobs: int = 1,
    known: Mapping[str, Solution] | None = None,
    on_outcome: Callable[[SweepOutcome], None] | None = None,
) -> tuple[SweepOutcome, ...]:
    """Solve all points.

    Parameters
    ----------
    points
        The questions.
    effort
        For each; `workers` of it says nothing: a point has one worker.
    jobs
        Points solved at once.
    known
        Solutions of an earlier sweep by the digests of their problems; these are not solved again.
    on_outcome
        Told each outcome as it comes, known ones too.

    Returns
    -------
    The outcomes in the order of the points, after neighbours have helped each other.

    Raises
    ------
    InvalidInput
        If two points are the same.
    RunError
        If a process dies.
    KeyboardInterrupt
        As it comes; what `on_outcome` was told is not lost.
    """
    given = tuple(points)
    lines = [_Chain(chain, dict(known or {}), on_outcome) for chain in chains(given)]
    effort = replace(effort, workers=1)
    with Crew(min(jobs, len(lines))) as crew:
        at = {id(line): line for line in lines}
        for line in lines:
            _next(line, crew, effort)
        while crew.busy:
            key, outcome = crew.hear()
            line = at[key]
            line.add(outcome)
            _next(line, crew, effort)
    by_digest = {o.point.problem.digest: o for line in lines for o in neighbours_help(line.outcomes)}
    return tuple(by_digest[point.problem.digest] for point in given)


def solve_point(point: SweepPoint, start: Timetable | None, effort: Effort) -> SweepOutcome:
    """Solve one point, from a neighbour's timetable."""
    from zbsolve.solver import solve

    try:
        solution = solve(
            point.problem,
            time_limit_s=effort.time_limit_s,
            work_limit=effort.work_limit,
            seed=effort.seed,
            workers=effort.workers,
            start=start,
        )
    except Infeasible:
        return SweepOutcome(point=point, status="infeasible")
    except NothingFound:
        return SweepOutcome(point=point, status="nothing found")
    return SweepOutcome(point=point, status=solution.status, solution=solution)


class _Chain:
    """A chain on its way."""

    def __init__(
        self,
        points: Sequence[SweepPoint],
        known: Mapping[str, Solution],
        on_outcome: Callable[[SweepOutcome], None] | None,
    ) -> None:
        self.points, self.known, self.on_outcome = points, known, on_outcome
        self.outcomes: list[SweepOutcome] = []

    def add(self, outcome: SweepOutcome) -> None:
        self.outcomes.append(outcome)
        if self.on_outcome is not None:
            self.on_outcome(outcome)

    def pending(self) -> Iterator[SweepPoint]:
        """The next point, once those that are known are noted; none at the end."""
        while len(self.outcomes) < len(self.points):
            point = self.points[len(self.outcomes)]
            solution = self.known.get(point.problem.digest)
            if solution is None:
                yield point
                return
            self.add(SweepOutcome(point=point, status=solution.status, solution=solution))

    @property
    def start(self) -> Timetable | None:
        """The best of the nearest neighbour with less."""
        solved = [outcome.solution for outcome in self.outcomes if outcome.solution is not None]
        return solved[-1].timetable if solved else None


def _next(line: _Chain, crew: Crew, effort: Effort) -> None:
    for point in line.pending():
        crew.submit(id(line), solve_point, point, line.start, effort)


def neighbours_help(chain: Sequence[SweepOutcome]) -> tuple[SweepOutcome, ...]:
    """Hand bounds and timetables down a chain from much memory to little, where they hold."""
    helped: list[SweepOutcome] = []
    for outcome in reversed(chain):
        for larger in helped:  # the one with the most memory first
            if outcome.solution is not None and larger.solution is not None and _holds(larger.point, outcome.point):
                outcome = _helped(outcome, outcome.solution, larger.solution)  # noqa: PLW2901
        helped.append(outcome)
    return tuple(reversed(helped))


def _holds(larger: SweepPoint, point: SweepPoint) -> bool:
    """Whether the two ask the same but for memory, of which the first has no less on any rank."""
    more, less = larger.problem.limit_bytes, point.problem.limit_bytes
    same = replace(larger.problem, memory_limit=None) == replace(point.problem, memory_limit=None)
    return same and all(a is None or (b is not None and b <= a) for a, b in zip(more, less, strict=True))


def _helped(outcome: SweepOutcome, own: Solution, larger: Solution) -> SweepOutcome:
    problem = outcome.point.problem
    if larger.value_ns < own.value_ns and all(
        limit is None or peak <= limit
        for peak, limit in zip(larger.metrics.peak_bytes, problem.limit_bytes, strict=True)
    ):
        timetable = replace(larger.timetable, problem=problem)
        own = replace(
            own, timetable=timetable, metrics=metrics(timetable), value_ns=larger.value_ns, method=larger.method
        )
    if larger.lower_bound_ns > own.lower_bound_ns:
        own = replace(own, lower_bound_ns=larger.lower_bound_ns, bound=larger.bound)
    status: Status = "optimal" if own.value_ns == own.lower_bound_ns else "feasible"
    gap = own.value_ns / own.lower_bound_ns - 1 if own.lower_bound_ns else own.gap
    own = replace(own, status=status, gap=gap)
    return replace(outcome, status=status, solution=own)


def _size(point: SweepPoint) -> tuple[float, int]:
    """Little memory before much, few microbatches before many."""
    limits = point.problem.limit_bytes
    return (float("inf") if None in limits else float(sum(limit or 0 for limit in limits)), point.problem.microbatches)


def _name(point: SweepPoint) -> str:
    return f"{point.placement}, {point.problem.microbatches} microbatches, memory {point.memory}"
