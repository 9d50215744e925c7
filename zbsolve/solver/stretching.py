"""An order for other numbers of microbatches: repeat its steady stretch, or leave microbatches out.

In the middle of a long iteration every rank repeats the same few operations for one microbatch after
another. Between the backward of one microbatch and the backward of the next each rank runs as many
forwards, input gradients and weight gradients as there are chunks: that stretch can be repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from zbsolve.ops import Kind, Op
from zbsolve.timetable import Order

__all__ = ["stretch"]

Letter = tuple[Kind, int]
"""A kind and a stage: an operation without its microbatch."""


def stretch(order: Order, microbatches: int) -> Order | None:
    """The order with another number of microbatches; None if it has no stretch that could be repeated.

    What ends the iteration is left out.

    Parameters
    ----------
    order
        An order in which each rank runs the microbatches first in, first out.
    microbatches
        How many the result has.
    """
    order = Order(tuple(tuple(op for op in row if op.microbatch is not None) for row in order.rows))
    present = 1 + max((op.microbatch or 0 for row in order.rows for op in row), default=0)
    if microbatches <= present:
        kept = (tuple(op for op in row if (op.microbatch or 0) < microbatches) for row in order.rows)
        return Order(tuple(kept))
    for middle in _from_the_middle(present - 1):
        rows = [_repeat(row, middle, microbatches - present) for row in order.rows]
        if all(row is not None for row in rows):
            return Order(tuple(row for row in rows if row is not None))
    return None


def _from_the_middle(count: int) -> list[int]:
    """0..count-1, the middle first."""
    return sorted(range(count), key=lambda k: (abs(2 * k + 1 - count), k))


def _repeat(row: Sequence[Op], middle: int, times: int) -> tuple[Op, ...] | None:
    """A row with what stands from the first backward of one microbatch up to that of the next, repeated."""
    letters = [(op.kind, op.stage) for op in row]
    starts = [
        next((at for at, op in enumerate(row) if op.microbatch == j and _is_gradient(op)), None)
        for j in (middle, middle + 1)
    ]
    if starts[0] is None or starts[1] is None or starts[0] >= starts[1]:
        return None
    part = letters[starts[0] : starts[1]]
    # once each, or the stretch would pile something up
    if Counter(part) != Counter(dict.fromkeys(set(letters), 1)):
        return None
    return _numbered([*letters[: starts[1]], *(part * times), *letters[starts[1] :]])


def _is_gradient(op: Op) -> bool:
    return op.kind in (Kind.BACKWARD_INPUT, Kind.BACKWARD)


def _numbered(letters: Sequence[Letter]) -> tuple[Op, ...]:
    """Operations numbered first in, first out."""
    count: Counter[Letter] = Counter()
    row = []
    for kind, stage in letters:
        row.append(Op(kind, stage, count[kind, stage]))
        count[kind, stage] += 1
    return tuple(row)
