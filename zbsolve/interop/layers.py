"""How many of a model's layers each stage holds: durations do not say, but other tools want to know."""

from __future__ import annotations

from collections.abc import Sequence

from zbsolve.errors import InvalidInput
from zbsolve.units import counted, whole_amount

__all__ = ["layers_by_stage"]

MOST_LAYERS = 1_000_000


def layers_by_stage(layers: Sequence[int], stages: int) -> list[range]:
    """The numbers of the layers of each stage, from 0.

    Raises
    ------
    InvalidInput
        If there is not one count for each stage, or there are no layers at all.
    """
    if len(layers) != stages:
        told = f"layers were given for {counted(len(layers), 'stage')}, the timetable has {stages}"
        raise InvalidInput(f"{told}; give one number a stage")
    ranges, first = [], 0
    for stage, count in enumerate(layers):
        after = first + whole_amount(count, f"the layers of stage {stage}", error=InvalidInput)
        ranges.append(range(first, after))
        first = after
    if not 0 < first <= MOST_LAYERS:
        raise InvalidInput(f"a model has 1 to {MOST_LAYERS} layers, got {first}")
    return ranges
