"""Cutting a batch into microbatches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from zbsolve.errors import InvalidInput

__all__ = ["cut_batch"]

Tensors = tuple[torch.Tensor, ...]


def cut_batch(batch: Any, microbatches: int, device: torch.device, what: str) -> list[Tensors]:
    """Cut tensors into equal microbatches along their first dimension, on a device.

    Parameters
    ----------
    batch
        A tensor, or a tuple or list of tensors.
    microbatches
        How many.
    device
        Where they go.
    what
        Names the batch in messages.

    Raises
    ------
    InvalidInput
        If it is something else, or cannot be cut into that many equal parts.
    """
    tensors: Sequence[Any] = batch if isinstance(batch, tuple | list) else (batch,)
    if not tensors:
        raise InvalidInput(f"{what} holds no tensor")
    cut = []
    for i, tensor in enumerate(tensors):
        name = what if len(tensors) == 1 else f"tensor {i} of {what}"
        if not isinstance(tensor, torch.Tensor):
            raise InvalidInput(f"{name} is a {type(tensor).__name__}; give a tensor, or a tuple of tensors")
        size = len(tensor) if tensor.dim() else 0
        if not size or size % microbatches:
            raise InvalidInput(f"{name} has {size} rows, which cannot be cut into {microbatches} equal microbatches")
        cut.append(tensor.to(device).detach().chunk(microbatches))
    return [tuple(chunks[j] for chunks in cut) for j in range(microbatches)]
