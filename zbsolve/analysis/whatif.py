"""What would one more microbatch of memory, a faster link, a lighter stage gain? Answered by solving again.

The problem as it is comes first, from the timetable at hand; each change then starts from the best
order found, so that a gain is never the search's luck alone, and never negative where the change
only helps. Each answer keeps its own bound: what is left between them, nobody knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from zbsolve.analysis.critical import CriticalPath
from zbsolve.analysis.network import Network
from zbsolve.errors import Infeasible, NothingFound
from zbsolve.problem import Problem
from zbsolve.profile import Link, StageCost
from zbsolve.solution import Solution, Status
from zbsolve.timetable import Order
from zbsolve.units import MAX_AMOUNT, format_bytes

if TYPE_CHECKING:
    from zbsolve.solver import Progress

__all__ = ["Effort", "Question", "WhatIf", "ask", "questions"]

LIGHTER = Fraction(9, 10)
FASTER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long each question may be searched for; as the arguments of `zbsolve.solve`."""

    time_limit_s: float = 10.0
    work_limit: int | None = None
    seed: int = 0
    workers: int | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A changed problem.

    Parameters
    ----------
    change
        What is changed, in words; of the problem as it is, ``"as it is"``.
    problem
        What is asked then.
    """

    change: str
    problem: Problem


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The answer to one question, found by solving again.

    Parameters
    ----------
    change
        What was changed.
    value_ns
        The best found then; None where nothing was found in time.
    lower_bound_ns
        What it cannot get below.
    status
        Whether the two meet.
    gain_ns
        How much less than the best found as it is; of the problem as it is, how much less than the timetable at hand.
    """

    change: str
    value_ns: int | None
    lower_bound_ns: int | None
    status: Status | None
    gain_ns: int | None


def questions(network: Network, path: CriticalPath) -> tuple[Question, ...]:
    """The questions that make sense here: memory where it is limited, the link where something travels, a stage always.

    Parameters
    ----------
    network
        Of the timetable.
    path
        What is critical: the stage with most of it is the one made lighter.
    """
    problem = network.timetable.problem
    found = [Question("as it is", replace(problem))]
    if any(limit is not None for limit in problem.limit_bytes):
        found.append(_more_memory(problem))
    if network.graph.arc_lag_ns.any():
        found.append(Question(f"links {FASTER} times as fast", _faster_links(problem)))
    if any(sent.behind is not None for sent in network.transfers):
        link = problem.profile.link.without_queueing()
        found.append(
            Question("links that serve all at once", replace(problem, profile=replace(problem.profile, link=link)))
        )
    stage = _heaviest(network, path)
    if stage is not None:
        name = problem.profile.stages[stage].name
        called = f"stage {stage} ({name})" if name else f"stage {stage}"
        found.append(Question(f"{called} {float(1 - LIGHTER):.0%} lighter", _lighter_stage(problem, stage)))
    return tuple(found)


def ask(
    network: Network,
    asked: tuple[Question, ...],
    effort: Effort,
    on_progress: Callable[[str, Progress], None] | None = None,
) -> tuple[WhatIf, ...]:
    """Solve each question in turn.

    Parameters
    ----------
    network
        Of the timetable to start from.
    asked
        From `questions`: the first is the problem as it is.
    effort
        For each of them.
    on_progress
        Told the question and what the solver found.
    """
    return tuple(_answers(network, asked, effort, on_progress))


def _answers(
    network: Network,
    asked: tuple[Question, ...],
    effort: Effort,
    on_progress: Callable[[str, Progress], None] | None,
) -> Iterator[WhatIf]:
    order: Order = network.timetable.order
    reference = network.value_ns
    for at, question in enumerate(asked):
        solution = _solved(question, order, effort, on_progress)
        if solution is None:
            yield WhatIf(question.change, None, None, None, None)
            continue
        value = solution.value_ns
        yield WhatIf(question.change, value, solution.lower_bound_ns, solution.status, reference - value)
        if at == 0:
            order, reference = solution.timetable.order, value


def _solved(
    question: Question, start: Order, effort: Effort, on_progress: Callable[[str, Progress], None] | None
) -> Solution | None:
    from zbsolve.solver import solve

    def listen(progress: Progress) -> None:
        assert on_progress is not None
        on_progress(question.change, progress)

    try:
        return solve(
            question.problem,
            time_limit_s=effort.time_limit_s,
            work_limit=effort.work_limit,
            seed=effort.seed,
            workers=effort.workers,
            start=start,
            on_progress=None if on_progress is None else listen,
        )
    except (Infeasible, NothingFound):
        return None


def _more_memory(problem: Problem) -> Question:
    """Room for one more microbatch on every rank that has a limit: what the fullest holds there after its forwards."""
    assert problem.route_of is not None
    held = [[0] * problem.microbatches for _ in range(problem.placement.ranks)]
    for microbatch, route in enumerate(problem.route_of):
        for stage, rank in enumerate(problem.placement.routes[route]):
            held[rank][microbatch] += problem.cost(stage, microbatch).activation_bytes
    more = [max(row) for row in held]
    limits = tuple(
        None if limit is None else min(limit + extra, MAX_AMOUNT)
        for limit, extra in zip(problem.limit_bytes, more, strict=True)
    )
    limited = [extra for limit, extra in zip(problem.limit_bytes, more, strict=True) if limit is not None]
    size = format_bytes(max(limited))
    upto = "up to " if min(limited) < max(limited) else ""
    return Question(f"memory for one more microbatch, {upto}{size} a rank", replace(problem, memory_limit=limits))


def _faster_links(problem: Problem) -> Problem:
    def faster(link: Link) -> Link:
        return replace(
            link,
            latency_ns=link.latency_ns // FASTER,
            bytes_per_second=_times(link.bytes_per_second),
            overrides=tuple(
                replace(o, latency_ns=o.latency_ns // FASTER, bytes_per_second=_times(o.bytes_per_second))
                for o in link.overrides
            ),
        )

    profile = problem.profile
    return replace(problem, profile=replace(profile, link=faster(profile.link)), memory_limit=problem.limit_bytes)


def _times(speed: int | None) -> int | None:
    return None if speed is None else min(speed * FASTER, MAX_AMOUNT)


def _heaviest(network: Network, path: CriticalPath) -> int | None:
    """The stage with the most work on the critical path."""
    work: dict[int, int] = {}
    for step in path.steps:
        if network.transfer(step.node) is not None:
            continue
        stage = network.op(step.node).stage
        work[stage] = work.get(stage, 0) + int(network.graph.duration_ns[step.node])
    return max(sorted(work), key=lambda stage: work[stage], default=None) if any(work.values()) else None


def _lighter_stage(problem: Problem, stage: int) -> Problem:
    def lighter(cost: StageCost) -> StageCost:
        times = ("forward_ns", "backward_input_ns", "backward_weight_ns", "backward_ns")
        less: dict[str, Any] = {name: int(getattr(cost, name) * LIGHTER) for name in times}
        return replace(cost, **less)

    profile = problem.profile
    stages = tuple(lighter(cost) if s == stage else cost for s, cost in enumerate(profile.stages))
    return replace(problem, profile=replace(profile, stages=stages), memory_limit=problem.limit_bytes)
