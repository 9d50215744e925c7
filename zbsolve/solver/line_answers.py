"""Questions about the line put to CP-SAT: what is the least answer, or that there is none so small."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from zbsolve.solver.line import Line
from zbsolve.solver.line_model import Question, build

__all__ = ["Answer", "Limits", "ask", "refute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When to stop.

    Parameters
    ----------
    seconds
        Wall time.
    deterministic
        CP-SAT's own measure of work; None for no limit.
    seed
        Of its random choices.
    """

    seconds: float
    deterministic: float | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a run proved.

    Parameters
    ----------
    least
        No timetable of the line has less, in units; more than `most` if none has so little.
    final
        True if some assignment of the model has just that, or none exists: more time proves no more.
    found
        Whether an assignment within the limits was found.
    work
        Deterministic time spent.
    value
        What was found.
    """

    least: int
    final: bool
    found: bool
    work: float
    value: int = 0


def refute(line: Line, question: Question, limits: Limits, step: int) -> tuple[Answer, int]:
    """Raise the least answer by asking in steps whether there is any a little above what is proven.

    A tight upper limit fixes much before the search begins, so "none up to here" is shown far sooner than
    a bound of the same height for answers of any size.

    Parameters
    ----------
    step
        How far above the least to ask first; doubled whenever that is refuted.

    Returns
    -------
    What is proven, as `ask` says it, and the step to go on with another time.
    """
    end = time.perf_counter() + limits.seconds
    least, cap, work = question.least, question.most + 1, 0.0
    while least < cap:
        left = None if limits.deterministic is None else limits.deterministic - work
        most = min(cap - 1, least + max(1, step) - 1)
        answer = ask(
            line,
            replace(question, least=0, most=most, only_exists=True),
            replace(limits, seconds=end - time.perf_counter(), deterministic=left),
        )
        work += answer.work
        if answer.found:
            cap, step = answer.value, max(1, (answer.value - least) // 2)
        elif answer.final:
            least, step = most + 1, 2 * step
        else:
            return Answer(least=least, final=False, found=False, work=work), max(1, step // 2)
        if time.perf_counter() >= end or (limits.deterministic is not None and work >= limits.deterministic):
            break
    return Answer(least=least, final=least >= cap, found=cap <= question.most, work=work), step


def ask(line: Line, question: Question, limits: Limits) -> Answer:
    """Put a question to CP-SAT; what it has proved counts even if it is not finished."""
    from ortools.sat.python import cp_model

    if question.least > question.most:
        return Answer(least=question.least, final=True, found=False, work=0.0)
    built = build(line, question)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(0.01, limits.seconds)
    solver.parameters.num_workers = 1  # more search for good answers, which are not wanted here
    solver.parameters.random_seed = limits.seed % 2**31
    # from below: "is there less than this?" is refuted fast, while good answers are hard to find
    solver.parameters.use_objective_lb_search = True
    if not line.single:
        solver.parameters.linearization_level = 0  # memory shared by stages makes the linear model large and weak
    if limits.deterministic is not None:
        solver.parameters.max_deterministic_time = max(0.001, limits.deterministic)
    status = solver.solve(built.model)
    work = float(solver.response_proto.deterministic_time)
    if status == cp_model.INFEASIBLE:
        return Answer(least=question.most + 1, final=True, found=False, work=work)
    bound = 0.0 if question.only_exists else solver.best_objective_bound
    proven = math.ceil(bound - 1e-6) if status != cp_model.MODEL_INVALID and math.isfinite(bound) else 0
    return Answer(
        least=min(max(question.least, proven), question.most),
        final=status == cp_model.OPTIMAL and not question.only_exists,
        found=status in (cp_model.OPTIMAL, cp_model.FEASIBLE),
        work=work,
        value=int(solver.value(built.answer)) if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else 0,
    )
