"""Cutting a batch into microbatches, and giving it back the gradient that it wants.

A batch that wants a gradient (for reentrant checkpoints, which do nothing without; or for its own sake)
is cut into views of itself, and after the step the gradients of the microbatches go back through the cut::

    batch (.grad) <--- cut <--- x0, x1, x2 ---> stage 0
                               dx0 dx1 dx2 <---
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from zbsolve.errors import InvalidInput

__all__ = ["cut_batch", "give_back"]

Tensors = tuple[torch.Tensor, ...]


def cut_batch(batch: Any, microbatches: int, device: torch.device, what: str, *, wants: bool = False) -> list[Tensors]:
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
    wants
        Whether tensors keep their wish for a gradient.

    Raises
    ------
    InvalidInput
        If it is something else, cannot be cut into that many equal parts, or has come out of another graph,
        to which no gradient would go back.
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
        if wants and tensor.requires_grad:
            if not tensor.is_leaf:
                raise InvalidInput(
                    f"{name} was computed from something that wants a gradient, and would not hand it on: let stage 0 "
                    "compute it, or detach it"
                )
            with torch.enable_grad():
                cut.append(tensor.to(device).chunk(microbatches))
        else:
            cut.append(tensor.detach().to(device).chunk(microbatches))
    return [tuple(chunks[j] for chunks in cut) for j in range(microbatches)]


def give_back(inputs: Sequence[Any], gradients: Sequence[Any]) -> None:
    """Add the gradients of microbatches to ``.grad`` of the batch.

    Parameters
    ----------
    inputs
        The microbatches as they were cut; None for those that another rank has.
    gradients
        For each of them one entry a tensor, None where there is no gradient; or None for all.
    """
    pairs = [
        (tensor, gradient)
        for tensors, found in zip(inputs, gradients, strict=True)
        if tensors is not None and found is not None
        for tensor, gradient in zip(tensors, found, strict=True)
        if gradient is not None and tensor.requires_grad
    ]
    if pairs:
        torch.autograd.backward([t for t, _ in pairs], [g for _, g in pairs])
