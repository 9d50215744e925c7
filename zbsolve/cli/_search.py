"""Running the solver for a verb, and telling what keeps it from an answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from zbsolve.cli import _inputs
from zbsolve.cli._errors import limits_that_fit
from zbsolve.cli._output import Output
from zbsolve.cli._problem import Search
from zbsolve.cli._progress import progress_on_stderr, termination_is_interruption
from zbsolve.errors import Infeasible, NothingFound

if TYPE_CHECKING:
    from zbsolve.problem import Problem
    from zbsolve.solution import Solution

__all__ = ["no_answer_told", "run_search"]


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


def run_search(problem: Problem, search: Search, out: Output) -> Solution:
    """Solve, with progress on stderr.

    Raises
    ------
    Infeasible
        If nothing can fit the memory limit.
    NothingFound
        If the limits ended the search before it found a timetable.
    """
    from zbsolve.solver import solve

    start = None if search.start is None else _inputs.read_timetable(search.start).order
    with termination_is_interruption(), progress_on_stderr(out) as listener:
        return solve(
            problem,
            time_limit_s=search.time_limit_s,
            work_limit=search.work_limit,
            gap=search.gap,
            seed=search.seed,
            workers=search.workers,
            start=start,
            on_progress=listener,
        )
