"""A steady state made an order of the whole problem: CP-SAT for the window, annealing for the ramps around it."""

from __future__ import annotations

from collections.abc import Callable

from zbsolve.solver.budget import PUNCTUAL, Budget
from zbsolve.solver.case import Case
from zbsolve.solver.local_search import anneal
from zbsolve.solver.network import SHAPE
from zbsolve.solver.rhythm import Rhythm, find_rhythm, read_beat, unroll
from zbsolve.solver.tasks import Anneal, Find, Length, Repeat

__all__ = ["repeat"]

_RHYTHM, _RHYTHM_OF_CHUNKS = 0.5, 0.75
"""The part of the time for a steady state that CP-SAT has, more where stages share ranks; the rest is for the ramps."""

_RAMPS = (0.1, 0.5, 1.0)
"""Starting temperatures for the ramps, in mean operations of a rank: the steady part is not to melt."""


def repeat(task: Repeat, case: Case, budget: Budget, hand: Callable[[Find], None]) -> None:
    """Find a window, unroll it, and anneal its ramps."""
    fused = case.forms.flags(lambda s, j: s in case.forms.cheap)
    beat = read_beat(case.arrays, fused)
    if beat is None:
        return
    rhythms: list[Rhythm] = []
    part = budget.part(_RHYTHM if case.arrays[SHAPE][4] else _RHYTHM_OF_CHUNKS)
    work = find_rhythm(
        beat,
        task.size,
        most=task.value_ns * task.size // (case.problem.microbatches * beat.unit_ns),
        seconds=PUNCTUAL * part.seconds_left,
        deterministic=part.deterministic_left,
        seed=task.seed,
        on_rhythm=rhythms.append,
    )
    budget.spend_deterministic(work)
    # of the shortest windows the one with the best ramps
    shortest = [rhythm for rhythm in rhythms if rhythm.length == rhythms[-1].length]
    unrolled = (case.read_open(unroll(rhythm, beat, case.problem.microbatches), fused) for rhythm in shortest)
    found = min((each for each in unrolled if each is not None), key=lambda each: each.value_ns, default=None)
    if found is None:
        return
    budget.spend(len(shortest))
    hand(found)
    for left, first in zip(range(len(_RAMPS), 0, -1), _RAMPS, strict=True):
        anneal(
            Anneal(
                sequence=found.sequence,
                fused=found.fused,
                first=first * case.problem.placement.ranks / case.nodes,
                ratio=1 / 30,
                target_ns=task.target_ns,
                length=Length(),
                seed=task.seed + left,
            ),
            case,
            budget.part(1 / left),
            hand,
        )
