"""Lower bounds from relaxations that CP-SAT solves: rank subsets, rounded times, windows of microbatches.

Each is a relaxation of the problem with the choices of what to leave out in its name, so that anyone
can put the question again (`zbsolve.solver.certificate`):

- ``rank-subset[0,1,7]``: these ranks exactly, of the others only the order of F's and of gradients;
- ``quantised[u=473000]``: all ranks, times rounded down to multiples of 473000 ns;
- ``windows[9+10+5,at=0]``: value >= P(9) + P(10) + S(5), counted on rank 0, see `zbsolve.solver.windows`;

and ``u=...`` in any of them where times are rounded. They apply to one stage a rank on one route, for period
and makespan; the proofs are in `zbsolve.solver.line`, `line_model` and `windows`.

What pays where: windows where memory is tight, for they see ranks block each other; subsets where
one rank decides with the help of a few others; where memory is plentiful the analytic bounds are as good.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from zbsolve.problem import Problem
from zbsolve.solution import Bound
from zbsolve.solver.line import Line, exact_unit, good_unit, read_line, reads
from zbsolve.solver.line_model import Limits, Question, ask
from zbsolve.solver.windows import Windows, climb

__all__ = ["Relaxation", "improve_bound", "parse_name"]

_MOST_OPERATIONS = 6_000
"""Models beyond this are not over with their preparations in time."""

_NAME = re.compile(
    r"(?P<kind>rank-subset|quantised|windows)\["
    r"(?P<numbers>\d{1,9}(?:[,+]\d{1,9})*)?(?:,?at=(?P<at>\d{1,9}))?(?:,?u=(?P<unit>\d{1,18}))?\]",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxation:
    """What a bound leaves out; its name says it all.

    Parameters
    ----------
    kind
        ``"rank-subset"``, ``"quantised"`` or ``"windows"``.
    numbers
        Ranks of a subset; sizes of the windows, the suffix last.
    at
        The rank on which windows are counted; None for the other kinds.
    unit_ns
        The unit that times are rounded down to; None for the greatest that rounds nothing.
    """

    kind: str
    numbers: tuple[int, ...] = ()
    at: int | None = None
    unit_ns: int | None = None

    @property
    def name(self) -> str:
        """As it stands in files."""
        parts = [("+" if self.kind == "windows" else ",").join(map(str, self.numbers))] if self.numbers else []
        parts += [] if self.at is None else [f"at={self.at}"]
        parts += [] if self.unit_ns is None else [f"u={self.unit_ns}"]
        return f"{self.kind}[{','.join(parts)}]"


def parse_name(name: str) -> Relaxation | None:
    """The relaxation that a bound's name describes; None if it is no such name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    at, unit = match["at"], match["unit"]
    found = Relaxation(
        kind=match["kind"],
        numbers=tuple(int(n) for n in re.split("[,+]", match["numbers"] or "") if n),
        at=None if at is None else int(at),
        unit_ns=None if unit is None else int(unit),
    )
    needs = {"quantised": (False, False), "rank-subset": (True, False), "windows": (True, True)}
    has = (bool(found.numbers), at is not None)
    if found.name != name or has != needs[found.kind] or found.unit_ns == 0:
        return None
    return None if found.kind == "quantised" and unit is None else found


def improve_bound(
    problem: Problem,
    *,
    incumbent_ns: int,
    best: Bound,
    work_limit: float | None = None,
    time_limit_s: float,
    workers: int = 1,
    seed: int = 0,
    on_bound: Callable[[Bound], None] = lambda bound: None,
) -> Bound:
    """Improve a proven bound by relaxations until it meets the incumbent, nothing is left to try, or time is up.

    Parameters
    ----------
    problem
        What is asked. Where a rank holds several stages, `best` is returned as it is.
    incumbent_ns
        The value of a timetable of the problem.
    best
        The best bound known.
    work_limit
        In CP-SAT's deterministic time; with it the same seed and workers give the same bound on any
        machine, provided that the time limit is not reached. None for no limit.
    time_limit_s
        Wall time in seconds.
    workers
        Threads of CP-SAT for rank subsets; windows use one.
    seed
        Of CP-SAT's random choices.
    on_bound
        Told of each better bound.

    Returns
    -------
    The best bound, at most `incumbent_ns` unless `best` is above it.

    Raises
    ------
    Infeasible
        If no timetable fits the memory limit.
    """
    run = _Run(best, incumbent_ns, time.perf_counter() + time_limit_s, work_limit, workers, seed, on_bound)
    if reads(problem) and not run.over:
        arms = [_windows(problem, run), _subsets(problem, run)]
        spent = [0.0] * len(arms)
        while arms and not run.over:
            turn = min(range(len(arms)), key=lambda i: spent[i])
            before = run.work
            try:
                next(arms[turn])
            except StopIteration:
                del arms[turn], spent[turn]
            else:
                spent[turn] += run.work - before
    return run.best


@dataclass(eq=False)
class _Run:
    """The best bound so far and what is left to spend."""

    best: Bound
    incumbent_ns: int
    deadline: float
    work_limit: float | None
    workers: int
    seed: int
    on_bound: Callable[[Bound], None]
    work: float = 0.0

    @property
    def over(self) -> bool:
        left = self.work_limit is None or self.work < self.work_limit
        return self.best.value_ns >= self.incumbent_ns or not left or time.perf_counter() >= self.deadline

    def limits(self, patience: float, workers: int) -> Limits:
        """For one question."""
        if self.work_limit is not None:
            patience = min(patience, self.work_limit - self.work)
        seconds = self.deadline - time.perf_counter()
        return Limits(seconds=seconds, deterministic=patience, workers=workers, seed=self.seed)

    def offer(self, value_ns: int, name: str) -> bool:
        """Keep a bound if it is better; whether it was."""
        value_ns = min(value_ns, self.incumbent_ns)
        if value_ns <= self.best.value_ns:
            return False
        self.best = Bound(value_ns, name)
        self.on_bound(self.best)
        return True


def _windows(problem: Problem, run: _Run) -> Iterator[None]:
    """Windows of growing size, in rounds of growing patience."""
    unit = exact_unit(problem)
    line = read_line(problem, unit)
    ranks, mark, place = len(line.ranks), _slowest(line), problem.placement.routes[0]
    longest = min(line.microbatches, _MOST_OPERATIONS // (3 * ranks))
    if line.ranks[mark].in_flight >= longest:
        return
    windows = Windows(line, run.incumbent_ns // unit, tuple(range(ranks)), mark)
    for work in climb(windows, longest=longest, limits=lambda patience: run.limits(patience, 1)):
        run.work += work
        least, sizes = windows.best()
        run.offer(least * unit, Relaxation(kind="windows", numbers=sizes, at=place[mark]).name)
        yield


def _slowest(line: Line) -> int:
    """The rank on which K microbatches take longest to go round, for one of them."""

    def pace(s: int) -> float:
        rank = line.ranks[s]
        waits = (rank.room - rank.in_flight * rank.held) < rank.keep
        return (line.turn(s) + rank.gradient + (rank.weight if waits else 0)) / rank.in_flight

    return max(range(len(line.ranks)), key=lambda s: (pace(s), -s))


def _subsets(problem: Problem, run: _Run) -> Iterator[None]:
    """Growing subsets of ranks; all of them with rounded times where there are too many digits."""
    unit = good_unit(problem, run.incumbent_ns)
    given = None if unit == exact_unit(problem) else unit
    line = read_line(problem, unit)
    place = problem.placement.routes[0]
    order = _promising(line)
    sizes = [size for size in (2, 3, 4, 6, 8, 12, 16, 24, 32) if size < len(order)] + [len(order)]
    longest = line.microbatches * 3
    sizes = [size for size in sizes if size * longest <= _MOST_OPERATIONS]
    final: set[int] = set()
    patience = 2.0
    while len(final) < len(sizes):
        for size in sizes:
            if size in final:
                continue
            kept = order[:size]
            named = Relaxation(kind="rank-subset", numbers=tuple(sorted(place[s] for s in kept)), unit_ns=given)
            if size == len(order) and given is not None:
                named = Relaxation(kind="quantised", unit_ns=given)
            answer = ask(
                line,
                Question(
                    kind="whole",
                    microbatches=line.microbatches,
                    kept=kept,
                    least=run.best.value_ns // unit,
                    most=run.incumbent_ns // unit,
                ),
                run.limits(patience, run.workers),
            )
            run.work += answer.work
            paid = run.offer(answer.least * unit, named.name)
            if answer.final:
                final.add(size)
            yield
            if not paid and not answer.final:
                break
        patience *= 4


def _promising(line: Line) -> tuple[int, ...]:
    """Ranks in the order in which they join a subset: the most work, the tightest memory, then by memory again."""
    work = [r.forward + r.gradient + r.weight for r in line.ranks]
    tight = sorted(range(len(work)), key=lambda s: (-line.turn(s) / line.ranks[s].in_flight, s))
    first = max(range(len(work)), key=lambda s: (work[s], -s))
    return tuple(dict.fromkeys((first, *tight)))
