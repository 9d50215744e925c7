"""What to choose around the search: stages that are computed again, stages that are moved away, or more room.

A choice says of which stages every forward is computed again, of which everything is moved away, and by how
many times more room than there is the search may count on, since what does not fit is then moved away.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from zbsolve.opgraph.away import copies_ns
from zbsolve.ops import Kind
from zbsolve.problem import Problem
from zbsolve.solver import again
from zbsolve.solver.away import folded_away, left_out, movable, moved, roomier
from zbsolve.timetable import Order

__all__ = ["Choice", "bare", "choices", "folded", "neighbours", "unfolded"]

_ROOMS = (Fraction(3, 2), Fraction(2), Fraction(3))


@dataclass(frozen=True, slots=True)
class Choice:
    """Stages computed again, stages moved away, copies that have room beside the rest, and times the room there is."""

    again: frozenset[int] = frozenset()
    away: frozenset[int] = frozenset()
    under_way: int = 0
    room: Fraction = Fraction(1)


def choices(problem: Problem) -> tuple[Choice, ...]:
    """What to try first, that with nothing ahead of all."""
    recompute = again.choices(problem) if again.may_gain(problem) else (frozenset[int](),)
    found = [Choice(again=stages) for stages in recompute]
    if "offload" in problem.allow:
        can = frozenset(movable(problem))
        quick = frozenset(stage for stage in can if _hidden(problem, stage))
        lean = _on_full_ranks(problem, can)
        found += [Choice(away=lean, under_way=2), Choice(away=can, under_way=1)]
        found += [Choice(away=stages) for stages in (lean, quick, can)]
        found += [Choice(room=times) for times in _ROOMS]
        if quick < can:
            found += [Choice(again=stages - quick, away=quick) for stages in recompute if stages - quick]
    return tuple(dict.fromkeys(found))


def _hidden(problem: Problem, stage: int) -> bool:
    """Whether the copies of a stage take no longer than what its rank computes meanwhile."""
    cost, rank = problem.profile.stages[stage], problem.placement.routes[0][stage]
    own = problem.placement.stages_of(rank)
    work = sum(problem.profile.stages[s].forward_ns + problem.profile.stages[s].backward_ns for s in own)
    return bool(cost.offloadable) and max(copies_ns(problem, stage, 0)) * len(own) <= work


def _on_full_ranks(problem: Problem, can: frozenset[int]) -> frozenset[int]:
    """The stages of ranks that have no room for what 1F1B has in flight there."""
    stages, ranks = problem.placement.stages, problem.placement.ranks
    full: set[int] = set()
    for rank, limit in enumerate(problem.limit_bytes):
        own = problem.placement.stages_of(rank)
        in_flight = {s: min(problem.microbatches, -(-ranks * (stages - s) // stages)) for s in own}
        costs = problem.profile.stages
        need = problem.static_bytes(rank) + sum(in_flight[s] * costs[s].activation_bytes for s in own)
        if limit is not None and need + max((costs[s].workspace_bytes for s in own), default=0) > limit:
            full |= can & set(own)
    return frozenset(full)


def neighbours(problem: Problem, choice: Choice) -> tuple[Choice, ...]:
    """Choices with one stage more or less, or moved away in place of computed again and the other way round."""
    found: list[Choice] = []
    if again.may_gain(problem):
        found += [replace(choice, again=stages - choice.away) for stages in again.neighbours(problem, choice.again)]
    if "offload" in problem.allow:
        found += _otherwise_away(problem, choice)
    return tuple(one for one in dict.fromkeys(found) if one != choice)


def _otherwise_away(problem: Problem, choice: Choice) -> Iterator[Choice]:
    if choice.room != 1:
        yield replace(choice, room=choice.room * Fraction(3, 4))
        yield replace(choice, room=choice.room * Fraction(5, 4))
        return
    if choice.away:
        yield replace(choice, under_way=choice.under_way + 1)
    for stage in movable(problem):
        one = frozenset({stage})
        yield replace(choice, again=choice.again - one, away=choice.away ^ one)
    for stage in choice.away if again.may_gain(problem) else ():
        yield replace(choice, again=choice.again | {stage}, away=choice.away - {stage})


def folded(problem: Problem, choice: Choice, reading: Kind) -> Problem:
    """The problem without any of it that the search sees; see `zbsolve.solver.again` and `zbsolve.solver.away`."""
    inner = again.folded(problem, choice.again, reading)
    if "offload" not in problem.allow:
        return inner
    return folded_away(inner, choice.away, choice.under_way) if choice.room == 1 else roomier(inner, choice.room)


def unfolded(problem: Problem, order: Order, choice: Choice) -> Order:
    """The order of a folded problem as one of what was asked."""
    made = again.unfolded(order, choice.again)
    if "offload" not in problem.allow:
        return made
    return moved(made, choice.away if choice.room == 1 else movable(problem))


def bare(order: Order) -> Order:
    """The order with nothing computed again or moved away."""
    return left_out(again.stripped(order))
