"""An order for other numbers of microbatches: run its loops more often, or leave some out.

In the middle of a long iteration an order comes back, again and again, to where it was: h microbatches
later every rank has as many forwards, input gradients and weight gradients under way as before. What
stands between two such places is a *loop* of h microbatches. It can be run any number of times, since
it leaves behind what it found. Where memory is plentiful h is 1; where it is tight the best orders send
as many microbatches as fit down the pipeline one after the other, wait for them to come back, and
h is that many.

Rows are nodes of the network (`zbsolve.solver.network`), ghosts of fused backwards behind their B.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zbsolve.timetable import Order

__all__ = ["Loop", "Plan", "leave_out", "loops", "plans", "run_loops"]

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Loop:
    """A part of an order after which every rank is where it was, some microbatches later.

    Parameters
    ----------
    first
        The input gradient that is the next one at its beginning.
    size
        Microbatches in it, h.
    cuts
        By rank, where it begins and ends in the row; empty on a rank that has nothing to do.
    """

    first: int
    size: int
    cuts: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Which loops run how often besides the once that they stand there; -1 leaves a loop out."""

    runs: tuple[tuple[Loop, int], ...]


def loops(rows: Sequence[Int64], microbatches: int, sizes: Iterable[int]) -> list[Loop]:
    """The loops of an order.

    Parameters
    ----------
    rows
        Nodes of each rank in their order.
    microbatches
        Of the problem that the rows are of.
    sizes
        Which sizes to look for.

    Returns
    -------
    By size as given, then by place. On each rank the last place between two gradients that fits is taken.
    """
    marks = [_marks(row, microbatches) for row in rows if len(row)]
    found = []
    for size in sizes:
        cuts_of = [_returns(count, state, size) for count, state in marks]
        for first in sorted(set.intersection(*(set(cuts) for cuts in cuts_of))) if cuts_of else ():
            cuts = iter([cuts[first] for cuts in cuts_of])
            found.append(Loop(first, size, tuple(next(cuts) if len(row) else (0, 0) for row in rows)))
    return found


def _marks(row: Int64, microbatches: int) -> tuple[Int64, Int64]:
    """Before each place of a row, and at its end: gradients done on one of its stages; what else is under way."""
    letter = row // microbatches
    kinds = np.unique(letter)
    # the middle third of the letters are gradients, one a stage of this rank
    lead = kinds[len(kinds) // 3]
    done = np.zeros(len(row) + 1, dtype=np.int64)
    np.cumsum(letter == lead, out=done[1:])
    state = np.zeros(len(row) + 1, dtype=np.int64)
    for kind in kinds.tolist():
        ahead = np.zeros(len(row) + 1, dtype=np.int64)
        np.cumsum(letter == kind, out=ahead[1:])
        # differences lie between -m and m, so each state has its own number while these fit
        state = state * (2 * microbatches + 1) + (ahead - done)
    return done, state


def _returns(done: Int64, state: Int64, size: int) -> dict[int, tuple[int, int]]:
    """By gradients done before: where a row begins a loop of a size, and where it ends."""
    places: dict[tuple[int, int], int] = {}
    cuts: dict[int, tuple[int, int]] = {}
    for at, key in enumerate(zip(done.tolist(), state.tolist(), strict=True)):
        begin = places.get((key[0] - size, key[1]))
        if begin is not None:
            cuts[key[0] - size] = (begin, at)
        places[key] = at
    return cuts


def plans(found: Sequence[Loop], more: int) -> list[Plan]:
    """Ways to come to `more` microbatches, or fewer if negative, with one loop, or one more for what is left over.

    They stand in the order of their first loops, so give the promising ones first.
    """
    made = []
    for loop in found:
        times, rest = divmod(more, loop.size)
        if times == 0 or (more < 0 and more != -loop.size):
            continue
        runs = [(loop, times)]
        if rest:
            other = next((each for each in found if rest % each.size == 0 and each is not loop), None)
            if other is None:
                continue
            runs.append((other, rest // other.size))
        made.append(Plan(tuple(runs)))
    return made


def run_loops(
    rows: Sequence[Int64], fused: Sequence[int], microbatches: int, plan: Plan
) -> tuple[list[list[int]], list[int], int] | None:
    """The rows and forms of an order with its loops run as planned, and its microbatches.

    Returns
    -------
    None where microbatches run so much out of turn that some would run twice.
    """
    wanted = microbatches + sum(loop.size * times for loop, times in plan.runs)
    forms = np.asarray(fused, dtype=np.int64)
    new_forms = np.full(len(forms) // microbatches * wanted, -1, dtype=np.int64)
    new_rows, count = [], 0
    for rank, row in enumerate(rows):
        pieces, at, shift = [], 0, 0
        for loop, times in sorted(plan.runs, key=lambda run: run[0].cuts[rank][1]):
            begin, end = loop.cuts[rank]
            if times < 0:
                pieces.append((at, begin, shift))
                shift -= loop.size
            else:
                pieces.append((at, end, shift))
                pieces += [(begin, end, shift + turn * loop.size) for turn in range(1, times + 1)]
                shift += times * loop.size
            at = end
        pieces.append((at, len(row), shift))
        nodes = np.concatenate([row[low:high] for low, high, _ in pieces])
        turn = nodes % microbatches + np.repeat([s for *_, s in pieces], [h - low for low, h, _ in pieces])
        if len(turn) and not (turn.min() >= 0 and turn.max() < wanted):
            return None
        new = nodes // microbatches * wanted + turn
        count += len(new)
        new_forms[new] = forms[nodes]
        new_rows.append(new.tolist())
    if count != len(new_forms) or (new_forms < 0).any():
        return None
    return new_rows, new_forms.tolist(), wanted


def leave_out(order: Order, microbatches: int) -> Order:
    """The order without the last microbatches."""
    return Order(tuple(tuple(op for op in row if (op.microbatch or 0) < microbatches) for row in order.rows))
