"""Convolutions of one to three dimensions, transposed ones too.

::

    F    y  = conv(x, w) + b          keeps x
    B    dx = conv_transpose(dy, w)   queues (x, dy)
    W    dw = correlation of x and dy,  db = sum of dy

One operator of torch computes all three gradients and takes a mask that says which: B asks it for
the first, W for the others, and it runs the kernels it would have run for all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from zbsolve.executor.split.linear import lower
from zbsolve.executor.split.queue import Gradients, WeightQueue

__all__ = ["ConvolutionSplit", "Geometry", "convolution_flops", "weigh_convolution"]


class Geometry(NamedTuple):
    """How the kernel moves, in the operator's own order."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int


class ConvolutionSplit(torch.autograd.Function):
    """`torch.convolution` whose backward leaves the kernel's gradient to the queue."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        x: torch.Tensor,
        _ticket: torch.Tensor,
        parameters: tuple[torch.Tensor, torch.Tensor | None],
        queue: WeightQueue,
        geometry: Geometry,
        dtype: torch.dtype | None,
    ) -> torch.Tensor:
        weight, bias = parameters
        ctx.set_materialize_grads(False)
        ctx.queue = queue
        ctx.parameters = parameters
        ctx.geometry = geometry
        ctx.dtype = dtype
        ctx.save_for_backward(x.detach(), weight)
        if dtype is not None:
            weight = lower(weight, dtype)
            bias = None if bias is None else lower(bias, dtype)
        return torch.convolution(x, weight, bias, *geometry)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor | None) -> Any:  # type: ignore[override]
        if dy is None:
            return None, None, None, None, None, None
        x, weight = ctx.saved_tensors
        parameter, bias = ctx.parameters
        dx = None
        if ctx.needs_input_grad[0]:
            at_work = weight if ctx.dtype is None else weight.to(ctx.dtype)
            dx = torch.ops.aten.convolution_backward(dy, x, at_work, None, *ctx.geometry, (True, False, False))[0]
        wanted = bias if bias is not None and bias.requires_grad else None
        arguments = (x, dy, weight, wanted is not None, ctx.geometry, ctx.dtype)
        ctx.queue.add(weigh_convolution, arguments, (parameter, wanted))
        return dx, None, None, None, None, None


def weigh_convolution(
    x: torch.Tensor,
    dy: torch.Tensor,
    weight: torch.Tensor,
    with_bias: bool,
    geometry: Geometry,
    dtype: torch.dtype | None,
) -> Gradients:
    """Dw of the kernel's shape, and db of shape (channels out,) if wanted."""
    # only the shape and the layout of the kernel matter here, not its values
    kernel = weight if dtype is None else torch.empty_like(weight, dtype=dtype)
    channels = weight.shape[1] * geometry.groups if geometry.transposed else weight.shape[0]
    _, dw, db = torch.ops.aten.convolution_backward(dy, x, kernel, (channels,), *geometry, (False, True, with_bias))
    return dw, db if with_bias else None


def convolution_flops(arguments: tuple[Any, ...]) -> int:
    """Multiplications and additions of `weigh_convolution`."""
    x, dy, weight, with_bias, geometry, _ = arguments
    moved = x if geometry.transposed else dy
    return int(2 * moved.numel() * weight[0].numel() + (dy.numel() if with_bias else 0))
