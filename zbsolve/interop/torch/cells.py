"""The cells of torch's CSVs: an action each, ``{stage}{action}{microbatch}``.

===================================  ========================================================
cell                                 action
===================================  ========================================================
`3F0`, `3I0`, `3W0`, `3B0`           forward, input gradient, weight gradient, both in one
`3SEND_F0`, `3RECV_F0`               send the output of stage 3, receive the input of stage 3
`3SEND_B0`, `3RECV_B0`               send the gradient of stage 3's input, receive that of its output
`3UNSHARD`, `3RESHARD`               gather and drop the weights of a sharded stage
`3REDUCE_GRAD`                       scale and reduce the gradients of a stage
`(3F4;7B1)OVERLAP_F_B`               a forward and a backward run together
nothing                              idle; compute_only files only
===================================  ========================================================

(What zbsolve's pictures call B is torch's I.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from zbsolve.ops import Kind, Op

__all__ = ["COMPUTES", "LETTERS", "WHOLE_STAGE", "Cell", "cells_of"]

LETTERS = {Kind.FORWARD: "F", Kind.BACKWARD_INPUT: "I", Kind.BACKWARD_WEIGHT: "W", Kind.BACKWARD: "B"}
"""How torch writes a kind of operation."""

COMPUTES = {letter: kind for kind, letter in LETTERS.items()}

WHOLE_STAGE = ("UNSHARD", "RESHARD", "REDUCE_GRAD")
"""Actions on a stage that name no microbatch."""

_ACTION = re.compile(r"(\d{1,9})(F|I|W|B|SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)(\d{1,9})?", re.ASCII)
_TOGETHER = re.compile(r"\(([^;()]{1,64});([^;()]{1,64})\)OVERLAP_F_B", re.ASCII)


@dataclass(frozen=True, slots=True)
class Cell:
    """One action; `microbatch` is -1 where it has none; `beside` is what overlaps with it, written in the same cell."""

    stage: int
    action: str
    microbatch: int
    beside: Cell | None = None

    @property
    def kind(self) -> Kind | None:
        """The kind of operation, None for what computes nothing."""
        return COMPUTES.get(self.action)

    @property
    def halves(self) -> tuple[Cell, ...]:
        """The actions of the cell, each by itself."""
        return (self,) if self.beside is None else (Cell(self.stage, self.action, self.microbatch), self.beside)

    @classmethod
    def of(cls, op: Op) -> Cell:
        """The cell of an operation of a microbatch, or of two that run together."""
        assert op.microbatch is not None
        beside = None if op.beside is None else cls.of(op.beside)
        return cls(op.stage, LETTERS[op.kind], op.microbatch, beside)

    def __str__(self) -> str:
        if self.beside is not None:
            return f"({self.halves[0]};{self.beside})OVERLAP_F_B"
        return f"{self.stage}{self.action}{'' if self.microbatch < 0 else self.microbatch}"


def cells_of(text: str) -> tuple[Cell, ...] | None:
    """The actions of one cell: none where it is empty, two where they overlap; None if torch has no such cell.

    torch itself matches the beginning of a cell only and takes ``0F0abc`` for ``0F0``; here a cell is all of it.
    """
    text = text.strip()
    if not text:
        return ()
    if together := _TOGETHER.fullmatch(text):
        parts = tuple(_single(part) for part in together.groups())
        first, second = parts
        if first is None or second is None or first.action != "F" or second.action not in ("B", "I"):
            return None
        return (first, second)
    one = _single(text)
    return None if one is None else (one,)


def _single(text: str) -> Cell | None:
    match = _ACTION.fullmatch(text)
    if match is None or (match.group(2) in WHOLE_STAGE) != (match.group(3) is None):
        return None
    return Cell(int(match.group(1)), match.group(2), -1 if match.group(3) is None else int(match.group(3)))
