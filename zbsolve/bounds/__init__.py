"""Proven lower bounds of period and makespan, and the smallest memory limits.

Each bound stands in a module with its proof in the docstring; `docs/bounds.md` tells them in
plain words. A bound holds for every order that is allowed, in whatever sequence of microbatches and
whatever is split, fused, computed again, moved away or run together, and for the memory limits of the problem.

| bound | placement | argues with |
|---|---|---|
| load, chain, head-tail | any | work of a rank, path of one microbatch, what precedes and follows (makespan) |
| link-load | any | what a link must carry, where transfers queue |
| two-phase | one route | idle time before the first and the last backward |
| memory-time | one stage a rank, one route | bytes x time that microbatches occupy |
| recompute | the same | that, and the time of computing forwards again that memory cannot keep |
| relay | the same | a later rank's work inside an earlier rank's span |
| counting | the same | earliest times of all counts of F, B and W, rank by rank |

`counting` is at least as good as two-phase and relay, but its effort grows with microbatches times
microbatches in flight; beyond `MAX_EFFORT` it looks at the most promising ranks alone, or at none.
"""

from __future__ import annotations

from collections.abc import Sequence

from zbsolve.bounds.costs import read_costs, refuse_infeasible
from zbsolve.bounds.counting import counting, effort
from zbsolve.bounds.links import link_load
from zbsolve.bounds.memory_time import memory_time
from zbsolve.bounds.recomputing import recomputing
from zbsolve.bounds.relay import relay
from zbsolve.bounds.single import SingleRank, single_ranks, visits
from zbsolve.bounds.two_phase import two_phase, two_phase_of_chunks
from zbsolve.bounds.work import chain, head_tail, load
from zbsolve.problem import Problem
from zbsolve.solution import Bound

__all__ = ["MAX_EFFORT", "lower_bound", "lower_bounds", "smallest_limits"]

MAX_EFFORT = 40_000
"""Rows of counts that `counting` may go through, about a second of work."""


def lower_bounds(problem: Problem, *, most_effort: int = MAX_EFFORT) -> tuple[Bound, ...]:
    """All bounds that apply to the problem's objective, best first; equal ones in the order of the table above.

    Parameters
    ----------
    problem
        What is asked.
    most_effort
        Rows of counts that `counting` may go through; less is faster and may be weaker.

    Returns
    -------
    At least one bound, in whole ns, rounded up as objectives are.

    Raises
    ------
    Infeasible
        If no timetable fits the memory limit; names the smallest limits.
    ProblemError
        If durations or bytes of the iteration exceed 2^62.
    """
    costs = read_costs(problem)
    refuse_infeasible(costs)
    makespan = problem.objective == "makespan"
    bounds = [Bound(load(costs), "load"), Bound(chain(costs), "chain"), Bound(link_load(costs), "link-load")]
    if makespan:
        bounds.append(Bound(head_tail(costs), "head-tail"))
    if costs.single:
        ranks = single_ranks(costs)
        ahead = [rank.head if makespan else 0 for rank in ranks]
        # what ends the iteration on a rank comes after all that these two speak of
        phases = [at + two_phase(rank) + rank.after for at, rank in zip(ahead, ranks, strict=True)]
        spans = [(at + rank.after, memory_time(rank)) for at, rank in zip(ahead, ranks, strict=True)]
        areas = [beside + span if span else 0 for beside, span in spans]
        bounds.append(Bound(max(phases), "two-phase"))
        bounds.append(Bound(max(areas), "memory-time"))
        redone = [(at + rank.after, recomputing(rank)) for at, rank in zip(ahead, ranks, strict=True)]
        bounds.append(Bound(max(beside + span if span else 0 for beside, span in redone), "recompute"))
        bounds.append(Bound(relay(ranks, makespan=makespan), "relay"))
        promise = [max(pair) for pair in zip(phases, areas, strict=True)]
        bounds.append(Bound(_count(ranks, promise, most_effort, makespan=makespan), "counting"))
    elif len(problem.placement.routes) == 1 and not problem.forward_only:
        bounds.append(Bound(_two_phase_of_all(visits(costs), makespan=makespan), "two-phase"))
    apply = [bound for bound in bounds if bound.value_ns > 0 or bound.name == "load"]
    return tuple(sorted(apply, key=lambda bound: -bound.value_ns))


def _two_phase_of_all(stages: Sequence[SingleRank], *, makespan: bool) -> int:
    """The best of all ranks, each with its chunks; what ends the iteration for one of them at least comes after."""
    best = 0
    for number in {stage.number for stage in stages}:
        at = [s for s, stage in enumerate(stages) if stage.number == number]
        chunks = [stages[s] for s in at]
        way = sum(stages[s].forward + stages[s].down for s in range(at[0], at[-1]))
        back = sum(stages[s + 1].gradient + stages[s].up for s in range(at[0], at[-1]))
        span = two_phase_of_chunks(chunks, way, back) + min(chunk.after for chunk in chunks)
        best = max(best, span + (chunks[0].head if makespan else 0))
    return best


def _count(ranks: Sequence[SingleRank], promise: Sequence[int], most_effort: int, *, makespan: bool) -> int:
    """The counting bound over all ranks; where that is too much work, of the most promising ranks, each alone."""
    if effort(ranks) <= most_effort:
        return counting(ranks, makespan=makespan, most_effort=most_effort)
    best = spent = 0
    for s in sorted(range(len(ranks)), key=lambda s: -promise[s]):
        alone = ranks[s : s + 1]
        spent += effort(alone)
        if spent > most_effort:
            break
        best = max(best, counting(alone, makespan=makespan, most_effort=most_effort))
    return best


def lower_bound(problem: Problem, *, most_effort: int = MAX_EFFORT) -> Bound:
    """The best of `lower_bounds`; the arguments are the same.

    Raises
    ------
    Infeasible
        If no timetable fits the memory limit; names the smallest limits.
    ProblemError
        If durations or bytes of the iteration exceed 2^62.
    """
    return lower_bounds(problem, most_effort=most_effort)[0]


def smallest_limits(problem: Problem) -> tuple[int, ...]:
    """The least memory limit of each rank, in bytes, with which some timetable exists; exact on any placement.

    The problem's own limits play no part.

    Notes
    -----
    Needed: while the forward or the backward of stage s runs, the forwards of the same microbatch on
    the earlier stages of that rank have started, and their backwards cannot have: each follows that
    of stage s. So the rank holds its static bytes, what these forwards and that of stage s hold, the
    workspace of s, and, if the backward is split and keeps more than F held, the difference; the
    cheaper of split and fused counts where both are allowed. Where forwards may be computed again, or what
    they made moved away, those of the earlier stages hold their checkpoints, or what cannot be moved, at
    least, and that of stage s all it has, since its backward needs that.

    Of a sequence in slices, all slices are held when the first of its backwards runs; where a rank
    holds several stages, what the way back needs is found step by step (`zbsolve.bounds.slices.way_back`), for each
    rank by itself: with slices that need different workspaces two ranks may then not be at their least at once.

    Enough: one microbatch (or sequence) after the other, every B at once followed by its W (or fused where
    that takes less), needs at no moment more; every
    forward is computed again or moved away at once, whichever leaves less, where that is
    allowed. It keeps all ranks at their least at once.

    Own proof.

    Raises
    ------
    ProblemError
        If durations or bytes of the iteration exceed 2^62.
    """
    return read_costs(problem).smallest_limits
