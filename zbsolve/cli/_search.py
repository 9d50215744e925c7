"""Running the solver for a verb, and telling what keeps it from an answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zbsolve.cli import _inputs
from zbsolve.cli._errors import limits_that_fit
from zbsolve.cli._jitter import Jitter, now_and_then
from zbsolve.cli._output import Output
from zbsolve.cli._problem import Search
from zbsolve.cli._progress import progress_on_stderr
from zbsolve.errors import Infeasible, NothingFound, OrderError
from zbsolve.units import counted

if TYPE_CHECKING:
    from zbsolve.analysis.robust import RobustSolution
    from zbsolve.problem import Problem
    from zbsolve.solution import Solution
    from zbsolve.timetable import Order, Violation

__all__ = ["no_answer_told", "run_robust_search", "run_search"]


@contextmanager
def no_answer_told(out: Output) -> Iterator[None]:
    """Where there is no answer, let `--json` say so on stdout too; the error goes on its way."""
    try:
        yield
    except Infeasible as error:
        _tell(out, "infeasible", limits_that_fit(error), smallest_limit_bytes=list(error.smallest_limit_bytes))
        raise
    except NothingFound as error:
        _tell(out, "nothing_found", str(error))
        raise


def _tell(out: Output, status: str, message: str, **fields: object) -> None:
    if out.as_json:
        out.data({"status": status, "message": message, **fields})


def _start(path: str, problem: Problem, out: Output) -> Order | None:
    """The order of a file as the solver can use it; None, with a note, where it cannot although it is sound.

    Raises
    ------
    OrderError
        If it is no order of the problem or can never finish.
    """
    from zbsolve.check import violations
    from zbsolve.solver.smaller import carried_over

    given = _inputs.read_timetable(path)
    order, asked = given.order, problem.microbatches
    name = "--start" if path == _inputs.STDIN else f"--start {path}"
    if given.problem.microbatches != asked:
        if given.problem.placement.routes != problem.placement.routes:
            raise OrderError(f"{name} is of another placement, {given.problem.placement.name}; give one of the same")
        _refuse(name, violations(replace(given.problem, memory_limit=None), order))
        carried = carried_over(problem, order)
        if carried is None:
            out.say(f"{name} is not used: it cannot be carried over to {counted(asked, 'microbatch')}")
            return None
        order = carried
    found = violations(problem, order)
    _refuse(name, tuple(v for v in found if v.code != "memory"))
    if found:
        out.say(f"{name} is not used: it does not fit the memory limit ({found[0].message})")
        return None
    return order


def _refuse(name: str, found: tuple[Violation, ...]) -> None:
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise OrderError(
            f"{name} is no order of this problem that can run: {found[0].code}: {found[0].message}{more}; "
            "zbsolve check judges it by its own problem"
        )


def run_search(problem: Problem, search: Search, out: Output) -> Solution:
    """Solve, with progress on stderr.

    Raises
    ------
    Infeasible
        If nothing can fit the memory limit.
    NothingFound
        If the limits ended the search before it found a timetable.
    OrderError
        If the timetable to start from is no order of the problem or can never finish.
    """
    from zbsolve.solver import solve

    with _arguments(problem, search, out) as arguments:
        return solve(problem, **arguments)


def run_robust_search(problem: Problem, search: Search, jitter: Jitter, within: float, out: Output) -> RobustSolution:
    """Solve for the best p95 under jitter; raises what `run_search` does."""
    from zbsolve.analysis.robust import solve_robust

    with _arguments(problem, search, out) as arguments:
        return solve_robust(
            problem,
            jitter.relative,
            within=within,
            trials=jitter.trials,
            iterations=jitter.iterations,
            on_choice=now_and_then(out, "candidate"),
            **arguments,
        )


@contextmanager
def _arguments(problem: Problem, search: Search, out: Output) -> Iterator[dict[str, Any]]:
    """What the solver is told, with progress on stderr."""
    start = None if search.start is None else _start(search.start, problem, out)
    with progress_on_stderr(out) as listener:
        yield {
            "time_limit_s": search.time_limit_s,
            "work_limit": search.work_limit,
            "gap": search.gap,
            "seed": search.seed,
            "workers": search.workers,
            "start": start,
            "on_progress": listener,
        }
