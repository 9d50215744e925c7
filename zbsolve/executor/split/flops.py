"""Counting the arithmetic of weight gradients, for the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from zbsolve.executor.split.convolution import convolution_flops, weigh_convolution
from zbsolve.executor.split.embedding import embedding_flops, weigh_embedding
from zbsolve.executor.split.linear import linear_flops, weigh_linear
from zbsolve.executor.split.norms import (
    norm_flops,
    weigh_group_norm,
    weigh_layer_norm,
    weigh_rms_norm,
    weigh_scale,
)
from zbsolve.executor.split.waiting import Entry

__all__ = ["deferred_flops", "fallback_flops", "positions_of"]

_COUNTS: dict[Callable[..., Any], Callable[..., int]] = {
    weigh_linear: linear_flops,
    weigh_embedding: embedding_flops,
    weigh_convolution: convolution_flops,
    weigh_layer_norm: norm_flops,
    weigh_group_norm: norm_flops,
    weigh_rms_norm: norm_flops,
    weigh_scale: norm_flops,
}


def deferred_flops(entries: Iterable[Entry]) -> int:
    """Floating-point operations that W will do for these entries."""
    return sum(_COUNTS[w](parameters, *arguments) for w, arguments, parameters in entries if w in _COUNTS)


def fallback_flops(parameter: torch.Tensor, positions: int) -> int:
    """Estimate for a parameter of unknown use: each element is multiplied and added at each position."""
    return 2 * parameter.numel() * positions


def positions_of(inputs: Sequence[Any]) -> int:
    """Positions (tokens) of one microbatch, read off the first input that has any dimension."""
    for value in inputs:
        if isinstance(value, torch.Tensor) and value.dim():
            wide = value.is_floating_point() and value.dim() > 1
            return value.numel() // max(value.shape[-1], 1) if wide else value.numel()
    return 1
