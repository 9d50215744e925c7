"""Lazy modules: parameters that get their shape when they first run."""

from __future__ import annotations

import torch
from torch.nn.parameter import UninitializedParameter

from zbsolve.errors import InvalidInput

__all__ = ["refuse_lazy"]


def refuse_lazy(stage: int, module: torch.nn.Module) -> None:
    """Refuse a stage of which several processes or ranks have copies, if those would begin with other numbers.

    Raises
    ------
    InvalidInput
        If some parameter has no shape yet.
    """
    for name, parameter in module.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise InvalidInput(
                f"stage {stage} has copies, but its lazy parameter {name} has no shape yet, so they would not start "
                "alike: run the model once before the pipeline is made"
            )
