"""Names of ranges that tell of an operation: those of torch's pipelining runtime, and those of our executor."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from zbsolve.interop.torch.cells import COMPUTES
from zbsolve.ops import Kind

__all__ = ["Named", "operation_of"]

_TORCH = re.compile(r"(?:.{0,200}:)?PP:(\d{1,4})([FIWB])(\d{1,9})(?:,.{0,200})?", re.ASCII)
_OURS = re.compile(r"(?:.{0,200}:)?(F|BW|B|W)(\d{1,9}) of stage (\d{1,4})(?:,.{0,200})?", re.ASCII)

_KINDS = {kind.letter: kind for kind in Kind if kind.letter in ("F", "B", "W", "BW")}


@dataclass(frozen=True, slots=True)
class Named:
    """The operation that a range is of, and whose range it is."""

    stage: int
    kind: Kind
    microbatch: int
    by: Literal["torch", "zbsolve"]


def operation_of(name: str) -> Named | None:
    """What a range tells of; None for all other ranges.

    A domain ahead of the name (``:PP:0F1``) and an operation number behind it (``PP:0F1, op_id = 7``), as
    NVTX tools write them, are allowed.
    """
    if len(name) > 400:
        return None
    if match := _TORCH.fullmatch(name):
        return Named(int(match.group(1)), COMPUTES[match.group(2)], int(match.group(3)), "torch")
    if match := _OURS.fullmatch(name):
        return Named(int(match.group(3)), _KINDS[match.group(1)], int(match.group(2)), "zbsolve")
    return None
