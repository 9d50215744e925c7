"""Lower bounds from relaxations that CP-SAT solves: rank subsets, rounded times, windows of microbatches.

Each is a relaxation of the problem with the choices of what to leave out in its name, so that anyone
can put the question again (`zbsolve.solver.certificate`):

- ``rank-subset[0,1,7]``: these ranks (or all) exactly, of the others only the order of F's and of gradients;
- ``quantised[u=473000]``: all ranks, times rounded down to multiples of 473000 ns;
- ``windows[9+10+5,at=0]``: value >= P(9) + P(10) + S(5), counted on rank 0, see `zbsolve.solver.windows`;

and ``u=...`` in any of them where times are rounded. They apply to any number of stages a rank, the first two also to
several routes if the first comes by every rank, for period and makespan; the proofs are in
`zbsolve.solver.line`, `line_model` and `windows`.

What pays where: all ranks where the question is small enough to be refuted; windows where memory is tight and
there are more microbatches; smaller subsets where one rank decides with the help of a few others. Where memory is
plentiful the formulas are as good.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from zbsolve.bounds.costs import read_costs, refuse_infeasible
from zbsolve.problem import Problem
from zbsolve.solution import Bound
from zbsolve.solver.line import Line, exact_unit, good_unit, read_line, reads
from zbsolve.solver.line_answers import Limits, ask, refute
from zbsolve.solver.line_model import Question
from zbsolve.solver.windows import Windows, climb

__all__ = ["KINDS", "Relaxation", "improve_bound", "parse_name"]

KINDS = frozenset({"rank-subset", "quantised", "windows"})

_MOST_OPERATIONS = 6_000
"""Models beyond this are not over with their preparations in time."""

_FIRST_STEP = 4
"""What part of the gap it is first tried to close."""

_LONG = 700
"""Operations beyond which the whole is seldom refuted in a minute, while its stretches are."""

_LATER = 5.0
"""Deterministic time for the windows of a long problem before anything else is tried."""

_SHARES, _SHARES_LONG = (1.0, 1.0, 1.0), (0.2, 1.0, 0.2)
"""How the work is shared between asking outright, windows and rank subsets."""

_SECONDS_A_UNIT = 2.0
"""Processor time of a unit of deterministic time, about: what is shared where no limit of work is given."""

_OUTRIGHT = (1.0, 8.0, 32.0, 128.0)
"""Deterministic time for asking, again and again, whether anything is below the incumbent."""

_FIRST_PATIENCE = 1.0
"""Deterministic time for one question about a subset in the first round."""

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
        What is asked. With forwards alone, or a first route that leaves ranks out, `best` is returned as it is.
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
        With 2 or more, and no work limit, windows and rank subsets are worked on at the same time, a thread each.
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
    refuse_infeasible(read_costs(problem))
    if not reads(problem):
        return best
    most_ns = min(incumbent_ns, read_line(problem, 1).serial)  # where no good timetable is known yet
    run = _Run(best, most_ns, time.perf_counter() + time_limit_s, work_limit, seed, on_bound)
    if run.over:
        return best
    arms = [_outright(problem, run), _windows(problem, run), _subsets(problem, run)]
    long = _operations(read_line(problem, 1)) > _LONG
    shares = _SHARES_LONG if long else _SHARES
    if workers > 1 and work_limit is None:
        with ThreadPoolExecutor(len(arms)) as pool:  # CP-SAT runs outside the interpreter's lock
            for done in [pool.submit(_exhaust, arm, run) for arm in arms]:
                done.result()
        return run.best
    spent = [_LATER, 0.0, _LATER] if long else [0.0] * len(arms)
    while min(spent) < math.inf and not run.over:
        turn = min(range(len(arms)), key=lambda i: spent[i])
        began = time.process_time()
        try:
            work = next(arms[turn])
            # building many small models takes time that CP-SAT's own measure does not see
            taken = (time.process_time() - began) / _SECONDS_A_UNIT if work_limit is None else work
            spent[turn] += taken / shares[turn]
        except StopIteration:
            arms[turn], spent[turn] = iter(()), math.inf
    return run.best


def _exhaust(arm: Iterator[float], run: _Run) -> None:
    for _ in arm:
        if run.over:
            return


@dataclass(eq=False)
class _Run:
    """The best bound so far and what is left to spend."""

    best: Bound
    incumbent_ns: int
    deadline: float
    work_limit: float | None
    seed: int
    on_bound: Callable[[Bound], None]
    work: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def over(self) -> bool:
        left = self.work_limit is None or self.work < self.work_limit
        return self.best.value_ns >= self.incumbent_ns or not left or time.perf_counter() >= self.deadline

    def limits(self, patience: float) -> Limits:
        """For one question."""
        if self.work_limit is not None:
            patience = min(patience, self.work_limit - self.work)
        return Limits(seconds=self.deadline - time.perf_counter(), deterministic=patience, seed=self.seed)

    def offer(self, value_ns: int, name: str) -> bool:
        """Keep a bound if it is better; whether it was."""
        value_ns = min(value_ns, self.incumbent_ns)
        with self.lock:
            if value_ns <= self.best.value_ns:
                return False
            self.best = Bound(value_ns, name)
            self.on_bound(self.best)
        return True


def _outright(problem: Problem, run: _Run) -> Iterator[float]:
    """All ranks exactly, asked outright whether anything is below the incumbent; yields the work of each question.

    Where the incumbent is the best, this is often refuted in seconds, while bounds that climb get there slowly.
    Where something is found in its place, the next question is whether anything is below that: the search, too, may
    have come so far meanwhile.
    """
    unit, given = exact_unit(problem), None
    line = read_line(problem, unit)
    if not line.handy:
        unit = given = good_unit(problem, run.incumbent_ns)
        line = read_line(problem, unit)
    if _operations(line) > _MOST_OPERATIONS:
        return
    kind, numbers = ("rank-subset", tuple(range(problem.placement.ranks))) if given is None else ("quantised", ())
    most = (run.incumbent_ns - 1) // unit
    question = Question(
        kind="whole",
        microbatches=problem.microbatches,
        kept=frozenset(range(len(line.stages))),
        most=most,
        only_exists=True,
    )
    share = math.inf if run.work_limit is None else run.work_limit / 3
    for patience in _OUTRIGHT:
        found = True
        while found:
            answer = ask(line, replace(question, most=most), run.limits(min(patience, share)))
            run.work += answer.work
            if answer.least > most:
                run.offer((most + 1) * unit, Relaxation(kind=kind, numbers=numbers, unit_ns=given).name)
            yield answer.work
            if answer.least > most or run.over:
                return
            found = answer.found
            if found:
                most = min(most, answer.value) - 1


def _windows(problem: Problem, run: _Run) -> Iterator[float]:
    """Windows of growing size, in rounds of growing patience; yields the work of each question."""
    unit, given = exact_unit(problem), None
    line = read_line(problem, unit)
    if not line.handy:
        unit = given = good_unit(problem, run.incumbent_ns)
        line = read_line(problem, unit)
    if line.routes > 1:
        return  # what runs between the microbatches of one route is not told by their number
    stages, mark, place = len(line.stages), _slowest(line), problem.placement.routes[0]
    longest = min(line.microbatches, _MOST_OPERATIONS // (3 * stages))
    if line.stages[mark].in_flight >= longest:
        return
    windows = Windows(line, run.incumbent_ns // unit, tuple(range(stages)), mark)
    for work in climb(windows, longest=longest, limits=run.limits):
        run.work += work
        least, sizes = windows.best()
        run.offer(least * unit, Relaxation(kind="windows", numbers=sizes, at=place[mark], unit_ns=given).name)
        yield work


def _operations(line: Line) -> int:
    """F's, gradients and W's of the line."""
    return 3 * sum(stage.microbatches for stage in line.stages)


def _slowest(line: Line) -> int:
    """The first stage of the rank on which K microbatches take longest to go round, for one of them."""

    def pace(s: int) -> float:
        stage = line.stages[s]
        waits = (stage.room - stage.in_flight * stage.held) < stage.keep
        return (line.turn(s) + stage.gradient + (stage.weight if waits else 0)) / stage.in_flight

    firsts = {stage.rank: s for s, stage in reversed(list(enumerate(line.stages)))}
    return max(sorted(firsts.values()), key=lambda s: (pace(s), -s))


def _subsets(problem: Problem, run: _Run) -> Iterator[float]:
    """All ranks, then smaller subsets, in exact and in rounded times, in rounds of growing patience.

    Yields the work of each question.
    """
    exact, rounded = exact_unit(problem), good_unit(problem, run.incumbent_ns)
    lines = {unit: read_line(problem, unit) for unit in (exact, rounded)}
    lines = {unit: line for unit, line in lines.items() if line.handy}
    order = _promising(read_line(problem, 1))
    sizes = (*(size for size in (2, 4, 8, 16, 32) if size < len(order)), len(order))
    operations = _operations(read_line(problem, 1))
    fitting = [size for size in sizes if size * operations <= _MOST_OPERATIONS * len(order)]
    open_ = [(size, unit) for unit in lines for size in reversed(fitting)]
    steps: dict[tuple[int, int], int] = {}
    patience = _FIRST_PATIENCE
    while open_:
        waiting = list(open_)
        while waiting:
            task = size, unit = waiting[0]
            question = Question(
                kind="whole",
                microbatches=problem.microbatches,
                kept=tuple(s for s, stage in enumerate(lines[unit].stages) if stage.rank in order[:size]),
                least=run.best.value_ns // unit,
                most=(run.incumbent_ns - 1) // unit,
            )
            step = steps.get(task, 1 + (question.most - question.least) // _FIRST_STEP)
            answer, steps[task] = refute(lines[unit], question, run.limits(patience), step)
            run.work += answer.work
            given = None if unit == exact else unit
            whole = size == len(order) and given is not None
            ranks = () if whole else tuple(sorted(order[:size]))
            named = Relaxation(kind="quantised" if whole else "rank-subset", numbers=ranks, unit_ns=given)
            paid = run.offer(answer.least * unit, named.name)
            if answer.final:
                open_.remove(task)
            if answer.final or not paid:
                del waiting[0]  # what pays goes on
            yield answer.work
        patience *= 4


def _promising(line: Line) -> tuple[int, ...]:
    """Ranks in the order in which they join a subset: the most work, the tightest memory, then by memory again."""
    work: dict[int, int] = {}
    pace: dict[int, float] = {}
    for s, stage in enumerate(line.stages):
        rank = stage.rank
        work[rank] = work.get(rank, 0) + stage.microbatches * (stage.forward + stage.gradient + stage.weight)
        pace[rank] = max(pace.get(rank, 0.0), line.turn(s) / stage.in_flight)
    tight = sorted(work, key=lambda rank: -pace[rank])
    first = max(work, key=work.__getitem__)
    return tuple(dict.fromkeys((first, *tight)))
