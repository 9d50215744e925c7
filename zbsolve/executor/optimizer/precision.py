"""How finely a dtype resolves, for error bounds."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["OPERATIONS", "Precision"]

OPERATIONS = 16
"""K of the error bounds: more floating-point operations than any step runs on the way to one number."""


@dataclass(frozen=True, slots=True)
class Precision:
    """What rounding to a dtype costs.

    Parameters
    ----------
    unit
        Largest relative error of one rounding.
    least
        Largest absolute error where numbers underflow.
    solving
        The dtype in which old values are computed back.
    """

    unit: float
    least: float
    solving: torch.dtype

    @classmethod
    def of(cls, dtype: torch.dtype) -> Precision:
        """Of a real floating dtype."""
        info = torch.finfo(dtype)
        # float16 is computed in float32 and keeps its subnormals; the others may flush theirs to zero
        least = info.tiny * info.eps if dtype is torch.float16 else info.tiny
        narrow = dtype in (torch.float16, torch.bfloat16)
        return cls(info.eps / 2, least, torch.float32 if narrow else torch.float64)

    def rounding(self, *terms: torch.Tensor) -> torch.Tensor:
        """K (u S + t) with S the sum of the terms' absolute values."""
        total = terms[0].abs()
        for term in terms[1:]:
            total = total + term.abs()
        return OPERATIONS * (self.unit * total + self.least)
