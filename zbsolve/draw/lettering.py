"""How letters and microbatch numbers stand in boxes: how large, and on one line, stacked or turned.

One size for the whole picture and one way for each kind look calmer than the best for each box.
Widths are those of DejaVu Sans, which matplotlib brings along; common fallbacks are narrower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from zbsolve.ops import Kind

__all__ = ["Lettering", "choose_lettering", "fits"]

SIZES = (7.5, 7.0, 6.5, 6.0, 5.5, 5.0)  # points
UPRIGHT = ("line", "stack")
WAYS = (*UPRIGHT, "turned")
_EM = {"F": 0.58, "B": 0.69, "W": 0.99}
_DIGIT_EM = 0.64


@dataclass(frozen=True, slots=True)
class Lettering:
    """The size of all labels in points, and for each kind its way; a kind without one has no labels."""

    size: float = 0.0
    ways: Mapping[Kind, str] = field(default_factory=dict)


def choose_lettering(rooms: Mapping[Kind, Sequence[float]], digits: int, tall: float) -> Lettering:
    """Choose the size that letters the most kinds, then the most of them upright, then the largest.

    Parameters
    ----------
    rooms
        The widths in points of all boxes of each kind; nine in ten must have room.
    digits
        Of the longest microbatch number.
    tall
        The height of the lowest box in points.
    """
    narrow = {kind: sorted(widths)[len(widths) // 10] for kind, widths in rooms.items()}
    best, chosen = (0, 0), Lettering()
    for size in SIZES:
        ways = {}
        for kind, room in narrow.items():
            way = next((way for way in WAYS if fits(way, kind.letter, "0" * digits, size, room, tall)), None)
            if way is not None:
                ways[kind] = way
        score = (len(ways), sum(way in UPRIGHT for way in ways.values()))
        if score > best:
            best, chosen = score, Lettering(size, ways)
    return chosen


def fits(way: str, letter: str, number: str, size: float, room: float, tall: float) -> bool:
    """Whether a label of this size has room in a box of this width and height; all in points."""
    long = _em(letter + number) * size
    if way == "line":
        return long <= room and size <= tall
    if way == "stack":
        return max(_em(letter), _em(number)) * size <= room and 2.1 * size <= tall
    return 0.8 * size <= room and long <= tall  # digits are 0.73 em high


def _em(text: str) -> float:
    return sum(_EM.get(letter, _DIGIT_EM) for letter in text)
