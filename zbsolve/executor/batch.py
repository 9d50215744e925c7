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


def cut_batch(
    batch: Any, microbatches: int, device: torch.device, what: str, *, wants: bool = False, slices: int = 1
) -> list[Tensors]:
    """Cut tensors into equal microbatches along their first dimension, on a device.

    With slices, into sequences along the first and these into slices along the second::

                    positions -->
        rows   seq 0 | 0 | 1 | 2 |        microbatches 0 1 2 are the slices of sequence 0,
               seq 1 | 3 | 4 | 5 |        3 4 5 those of sequence 1

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
    slices
        Of a sequence.

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
        sequences = microbatches // slices
        if not size or size % sequences:
            parts = "microbatches" if slices == 1 else "sequences"
            raise InvalidInput(f"{name} has {size} rows, which cannot be cut into {sequences} equal {parts}")
        if slices > 1 and (tensor.dim() < 2 or not tensor.shape[1] or tensor.shape[1] % slices):
            raise InvalidInput(
                f"{name} has shape {tuple(tensor.shape)}, whose second dimension cannot be cut into {slices} equal "
                "slices"
            )
        if wants and tensor.requires_grad:
            if not tensor.is_leaf:
                raise InvalidInput(
                    f"{name} was computed from something that wants a gradient, and would not hand it on: let stage 0 "
                    "compute it, or detach it"
                )
            with torch.enable_grad():
                cut.append(_pieces(tensor.to(device), sequences, slices))
        else:
            cut.append(_pieces(tensor.detach().to(device), sequences, slices))
    return [tuple(chunks[j] for chunks in cut) for j in range(microbatches)]


def _pieces(tensor: torch.Tensor, sequences: int, slices: int) -> Sequence[torch.Tensor]:
    rows = tensor.chunk(sequences)
    return rows if slices == 1 else [piece for row in rows for piece in row.chunk(slices, dim=1)]


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
