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

from zbsolve.executor.split.engine import direct
from zbsolve.executor.split.linear import lower
from zbsolve.executor.split.waiting import Gradients, WeightQueue

__all__ = ["ConvolutionCall", "Geometry", "convolution_flops", "split_convolution", "weigh_convolution"]

_backward = torch.ops.aten.convolution_backward.default


class Geometry(NamedTuple):
    """How the kernel moves, in the operator's own order."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int


class ConvolutionCall(NamedTuple):
    """One call of a convolution, apart from its input."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    queue: WeightQueue
    geometry: Geometry
    dtype: torch.dtype | None
    """Autocast's precision, if it is on."""


class ConvolutionSplit(torch.autograd.Function):
    """`torch.convolution` whose backward leaves the kernel's gradient to the queue."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, _ticket: torch.Tensor, call: ConvolutionCall) -> torch.Tensor:
        """Run F: compute y, and keep what B and W need."""
        ctx.set_materialize_grads(False)
        ctx.call = call
        ctx.hands_back = x.requires_grad
        weight, bias, _, geometry, dtype = call
        if ctx.hands_back:
            ctx.save_for_backward(x.detach(), weight)
        else:
            ctx.save_for_backward(x.detach())
        if dtype is not None:
            weight = lower(weight, dtype)
            bias = None if bias is None else lower(bias, dtype)
        return torch.convolution(x, weight, bias, *geometry)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor | None) -> Any:
        """Run B: hand back dx, and queue what W needs."""
        if dy is None:
            return None, None, None
        parameter, bias, queue, geometry, dtype = ctx.call
        dx = None
        if ctx.hands_back:
            x, weight = ctx.saved_tensors
            if dtype is not None:
                weight = weight.to(dtype)
            dx = _backward(dy, x, weight, None, *geometry, (True, False, False))[0]
        else:
            (x,) = ctx.saved_tensors
        if bias is not None and not bias.requires_grad:
            bias = None
        queue.add((weigh_convolution, (x, dy, geometry, dtype), (parameter, bias)))
        return dx, None, None


split_convolution = direct(ConvolutionSplit)


def weigh_convolution(
    parameters: tuple[torch.Tensor, torch.Tensor | None],
    x: torch.Tensor,
    dy: torch.Tensor,
    geometry: Geometry,
    dtype: torch.dtype | None,
) -> Gradients:
    """Compute dw of the kernel's shape, and db of shape (channels out,) if wanted."""
    weight, bias = parameters
    # only the shape and the layout of the kernel matter here, not its values
    kernel = weight if dtype is None else torch.empty_like(weight, dtype=dtype)
    channels = (weight.shape[1] * geometry.groups if geometry.transposed else weight.shape[0],)
    return _backward(dy, x, kernel, channels, *geometry, (False, True, bias is not None))[1:]  # type: ignore[no-any-return]


def convolution_flops(
    parameters: tuple[torch.Tensor, torch.Tensor | None],
    x: torch.Tensor,
    dy: torch.Tensor,
    geometry: Geometry,
    _dtype: torch.dtype | None,
) -> int:
    """Multiplications and additions of `weigh_convolution`."""
    weight, bias = parameters
    moved = x if geometry.transposed else dy
    return 2 * moved.numel() * weight[0].numel() + (0 if bias is None else dy.numel())
