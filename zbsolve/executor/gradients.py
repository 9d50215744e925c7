"""Gradients of the plain model in one process, and how far others are from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch

from zbsolve.errors import InvalidInput
from zbsolve.executor.target import LossFn, Sample, users_code

__all__ = ["Named", "largest_relative_error", "plain_gradients", "split_batch"]

Named: TypeAlias = "dict[tuple[int, str], torch.Tensor]"
"""Gradients by stage and name of the parameter."""


def split_batch(batch: Sample, microbatches: int) -> list[tuple[tuple[torch.Tensor, ...], torch.Tensor]]:
    """Cut ``(inputs, target)`` into equal microbatches along the first dimension.

    Raises
    ------
    InvalidInput
        If the tensors cannot be cut into that many equal parts.
    """
    inputs, target = batch
    tensors = inputs if isinstance(inputs, tuple) else (inputs,)
    for tensor in (*tensors, target):
        if not tensor.dim() or not len(tensor) or len(tensor) % microbatches:
            size = len(tensor) if tensor.dim() else 0
            raise InvalidInput(f"a batch of {size} cannot be cut into {microbatches} equal microbatches")
    cut = [tensor.chunk(microbatches) for tensor in tensors]
    return [(tuple(c[j] for c in cut), t) for j, t in enumerate(target.chunk(microbatches))]


def plain_gradients(
    stages: Sequence[torch.nn.Module], batch: Sample, loss_fn: LossFn, microbatches: int
) -> tuple[Named, float]:
    """Run the model as one module on each microbatch and accumulate the gradients of the mean loss.

    Returns
    -------
    The gradients, and the mean loss. The parameters' own ``.grad`` is left as it was.
    """
    parameters = {(s, n): p for s, m in enumerate(stages) for n, p in m.named_parameters() if p.requires_grad}
    before = {key: p.grad for key, p in parameters.items()}
    total = 0.0
    try:
        for parameter in parameters.values():
            parameter.grad = None
        with users_code("the plain model failed"):
            for inputs, target in split_batch(batch, microbatches):
                output = inputs
                for stage in stages:
                    result = stage(*output)
                    output = tuple(result) if isinstance(result, tuple | list) else (result,)
                loss = loss_fn(result, target)
                (loss / microbatches).backward()  # type: ignore[no-untyped-call]
                total += float(loss.detach()) / microbatches
        return {key: p.grad for key, p in parameters.items() if p.grad is not None}, total
    finally:
        for key, parameter in parameters.items():
            parameter.grad = before[key]


def largest_relative_error(found: Mapping[tuple[int, str], torch.Tensor], reference: Named) -> float:
    """The largest over parameters of max |found - reference| / max |reference|; infinite where one is missing."""
    if found.keys() != reference.keys():
        return float("inf")
    worst = 0.0
    for key, wanted in reference.items():
        difference = float((found[key] - wanted).abs().max()) if wanted.numel() else 0.0
        scale = float(wanted.abs().max()) if wanted.numel() else 0.0
        error = 0.0 if difference == 0 else difference / scale if scale else float("inf")
        # a NaN compares as smaller than anything, so ask the other way round
        worst = worst if error <= worst else error
    return worst
