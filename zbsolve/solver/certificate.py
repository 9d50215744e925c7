"""Checking a bound anew from its name: formulas are computed again, relaxations are solved again.

What a solver wrote into a file is not believed. The name of a bound says what proves it; here that
is done once more, from the problem alone, and compared with the value.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from zbsolve.bounds import lower_bounds
from zbsolve.bounds.lighter import lighter
from zbsolve.problem import Problem
from zbsolve.solution import Bound
from zbsolve.solver.line import Line, exact_unit, read_line, reads
from zbsolve.solver.line_answers import Limits, ask
from zbsolve.solver.line_model import Question
from zbsolve.solver.relaxation import KINDS, Relaxation, parse_name
from zbsolve.solver.windows import Windows, climb

__all__ = ["Verdict", "verify_bound"]

Status = Literal["verified", "not verified in time", "wrong"]

_ANALYTIC = frozenset(
    {"load", "chain", "head-tail", "link-load", "two-phase", "memory-time", "recompute", "relay", "counting"}
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a bound holds.

    Parameters
    ----------
    status
        ``"verified"``; ``"not verified in time"``: neither shown nor refuted; ``"wrong"``: what the name says does
        not prove the value.
    message
        In words.
    """

    status: Status
    message: str

    @property
    def ok(self) -> bool:
        """Whether it is verified."""
        return self.status == "verified"


def verify_bound(
    problem: Problem,
    bound: Bound | str,
    value_ns: int | None = None,
    *,
    time_limit_s: float = 60.0,
) -> Verdict:
    """Prove a bound again.

    Parameters
    ----------
    problem
        What was asked.
    bound
        The bound, or its name.
    value_ns
        The value it is said to have; default that of `bound`.
    time_limit_s
        Wall time in seconds.

    Notes
    -----
    A formula is computed again; if it gives less than the value, the bound is wrong. Of a relaxation it is asked
    whether it has a timetable with a value of at most ``value_ns - 1``: if none exists the bound is verified,
    if one is found it is wrong (the bound may be true, but this does not prove it). Windows are solved again, each
    from the shorter ones; the bound is verified once their sum reaches the value, and wrong if it cannot. For a name
    that says nothing of what proves it, formulas and the line with all its ranks are tried.

    Raises
    ------
    Infeasible
        If no timetable fits the memory limit.
    """
    name = bound.name if isinstance(bound, Bound) else bound
    if value_ns is None:
        value_ns = bound.value_ns if isinstance(bound, Bound) else 0
    deadline = time.perf_counter() + time_limit_s

    def limits(patience: float | None) -> Limits:
        return Limits(seconds=deadline - time.perf_counter(), deterministic=patience)

    if name in _ANALYTIC:
        return _formula(problem, name, value_ns)
    lower_bounds(problem)  # refuses a limit that nothing fits
    problem = lighter(problem)
    relaxation = parse_name(name)
    if relaxation is None:
        return _anyhow(problem, name, value_ns, limits)
    if not reads(problem):
        return Verdict("wrong", f"{name} is for training, with a first route that comes by every rank")
    if relaxation.kind == "windows":
        return _windows(problem, relaxation, value_ns, limits, lambda: time.perf_counter() >= deadline)
    return _whole(problem, relaxation, value_ns, limits)


def _anyhow(problem: Problem, name: str, value_ns: int, limits: Callable[[float | None], Limits]) -> Verdict:
    """A name that says nothing: whether formulas, or the line with all its ranks, prove the value."""
    if name.partition("[")[0] in KINDS:
        return Verdict("wrong", f"{name[:80]!r} is no name of a relaxation that could be solved")
    unknown = f"{name[:80]!r} does not say what proves it"
    best = lower_bounds(problem)[0]
    if best.value_ns >= value_ns:
        return Verdict("verified", f"{unknown}, but {best.name} gives {best.value_ns} ns")
    if reads(problem):
        everything = Relaxation(kind="rank-subset", numbers=tuple(range(problem.placement.ranks)))
        verdict = _whole(problem, everything, value_ns, limits)
        if verdict.ok:
            return Verdict("verified", f"{unknown}, but {verdict.message}")
    return Verdict("not verified in time", f"{unknown}, and nothing else reached {value_ns} ns")


def _formula(problem: Problem, name: str, value_ns: int) -> Verdict:
    found = {bound.name: bound.value_ns for bound in lower_bounds(problem)}.get(name, 0)
    if found >= value_ns:
        return Verdict("verified", f"{name}, computed again, gives {found} ns")
    return Verdict("wrong", f"{name}, computed again, gives {found} ns, not {value_ns} ns")


def _whole(
    problem: Problem, relaxation: Relaxation, value_ns: int, limits: Callable[[float | None], Limits]
) -> Verdict:
    everything = tuple(range(problem.placement.ranks))
    numbers = relaxation.numbers if relaxation.kind == "rank-subset" else everything
    if len(set(numbers)) != len(numbers) or not set(numbers) <= set(everything):
        return Verdict("wrong", f"{relaxation.name} names ranks that the problem does not have, or one twice")
    unit = relaxation.unit_ns or exact_unit(problem)
    line = read_line(problem, unit)
    if not line.handy:
        return _too_fine(relaxation)
    if value_ns // unit > _surely_enough(line):
        return Verdict("wrong", f"one microbatch at a time takes less than {value_ns} ns")
    question = Question(
        kind="whole",
        microbatches=problem.microbatches,
        kept=frozenset(s for s, stage in enumerate(line.stages) if stage.rank in numbers),
        most=(value_ns - 1) // unit,
        only_exists=True,
    )
    answer = ask(line, question, limits(None))
    if answer.found:
        return Verdict("wrong", f"{relaxation.name} has a timetable of less than {value_ns} ns")
    if answer.least > question.most:
        return Verdict("verified", f"{relaxation.name} has no timetable of less than {value_ns} ns")
    return Verdict("not verified in time", f"{relaxation.name} was neither proved nor refuted in time")


def _surely_enough(line: Line) -> int:
    """Units in which one microbatch at a time is over, with one more for each time that is rounded by itself."""
    return line.serial + 3 * (line.microbatches + 2) * (len(line.stages) + 2)


def _too_fine(relaxation: Relaxation) -> Verdict:
    return Verdict("not verified in time", f"the times of {relaxation.name} have too many digits to be solved")


def _windows(
    problem: Problem,
    relaxation: Relaxation,
    value_ns: int,
    limits: Callable[[float | None], Limits],
    over: Callable[[], bool],
) -> Verdict:
    sizes = relaxation.numbers
    if sum(sizes) != problem.microbatches or not all(sizes):
        return Verdict("wrong", f"{relaxation.name} does not cover the {problem.microbatches} microbatches")
    route = problem.placement.routes[0]
    if len(problem.placement.routes) > 1:
        return Verdict("wrong", f"{relaxation.name} is for one route")
    if relaxation.at not in route:
        return Verdict("wrong", f"{relaxation.name} counts on a rank that the problem does not have")
    unit = relaxation.unit_ns or exact_unit(problem)
    line = read_line(problem, unit)
    if not line.handy:
        return _too_fine(relaxation)
    if value_ns // unit > _surely_enough(line):
        return Verdict("wrong", f"one microbatch at a time takes less than {value_ns} ns")
    windows = Windows(line, -(-value_ns // unit), tuple(range(len(line.stages))), route.index(relaxation.at))
    for _ in climb(windows, longest=max(sizes), limits=limits):
        if windows.total(sizes) * unit >= value_ns:
            return Verdict("verified", f"{relaxation.name}, solved again, gives at least {value_ns} ns")
        if over():
            return Verdict("not verified in time", f"{relaxation.name} did not reach {value_ns} ns in time")
    return Verdict(
        "wrong", f"{relaxation.name}, solved again, gives {windows.total(sizes) * unit} ns, not {value_ns} ns"
    )
