"""`LayerNorm`, `GroupNorm` and `RMSNorm`: scale and bias are weighed later, statistics are shared.

::

    F    y  = (x - mean) * rstd * scale + bias    keeps x, mean, rstd: what autograd keeps too
    B    dx from dy, x, mean, rstd, scale         queues (x, mean, rstd, dy)
    W    dscale = sum dy * (x - mean) * rstd,  dbias = sum dy

As with convolutions, torch's backward operators take a mask of what to compute.

On the CPU torch composes `rms_norm` of primitive operations, the last of which multiplies by the
scale. There only that product is split; what comes before it has no parameter and is left to
autograd::

    x --- autograd ---> normed --- ScaleSplit ---> y        queues (normed, dy)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from zbsolve.executor.split.queue import Gradients, WeightQueue

__all__ = [
    "GroupNormSplit",
    "LayerNormSplit",
    "RMSNormSplit",
    "ScaleSplit",
    "norm_flops",
    "weigh_group_norm",
    "weigh_layer_norm",
    "weigh_rms_norm",
    "weigh_scale",
]

Affine = tuple["torch.Tensor | None", "torch.Tensor | None"]


def wanted_of(parameters: Affine) -> Affine:
    """The scale and the bias, each None where it is absent or frozen."""
    scale, bias = parameters
    return (
        scale if scale is not None and scale.requires_grad else None,
        bias if bias is not None and bias.requires_grad else None,
    )


class LayerNormSplit(torch.autograd.Function):
    """`native_layer_norm` whose backward leaves scale and bias to the queue."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        x: torch.Tensor,
        _ticket: torch.Tensor,
        parameters: Affine,
        queue: WeightQueue,
        shape: Sequence[int],
        eps: float,
    ) -> torch.Tensor:
        scale, bias = parameters
        ctx.set_materialize_grads(False)
        y, mean, rstd = torch.native_layer_norm(x, shape, scale, bias, eps)
        ctx.queue = queue
        ctx.parameters = parameters
        ctx.shape = shape
        ctx.save_for_backward(x.detach(), mean, rstd, scale, bias)
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor | None) -> Any:  # type: ignore[override]
        if dy is None:
            return None, None, None, None, None, None
        x, mean, rstd, scale, bias = ctx.saved_tensors
        dx = None
        if ctx.needs_input_grad[0]:
            dx = torch.ops.aten.native_layer_norm_backward(
                dy, x, ctx.shape, mean, rstd, scale, bias, (True, False, False)
            )[0]
        ctx.queue.add(weigh_layer_norm, (x, dy, mean, rstd, ctx.shape, scale, bias), wanted_of(ctx.parameters))
        return dx, None, None, None, None, None


def weigh_layer_norm(
    x: torch.Tensor,
    dy: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    shape: Sequence[int],
    scale: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> Gradients:
    """The gradients of scale and bias, each of the normalised shape."""
    mask = (False, scale is not None, bias is not None)
    return torch.ops.aten.native_layer_norm_backward(dy, x, shape, mean, rstd, scale, bias, mask)[1:]  # type: ignore[no-any-return]


class GroupNormSplit(torch.autograd.Function):
    """`native_group_norm` whose backward leaves scale and bias to the queue."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        x: torch.Tensor,
        _ticket: torch.Tensor,
        parameters: Affine,
        queue: WeightQueue,
        groups: int,
        eps: float,
    ) -> torch.Tensor:
        scale, bias = parameters
        ctx.set_materialize_grads(False)
        batch, channels = x.shape[:2]
        area = x[0, 0].numel()
        y, mean, rstd = torch.native_group_norm(x, scale, bias, batch, channels, area, groups, eps)
        ctx.queue = queue
        ctx.parameters = parameters
        ctx.sizes = (batch, channels, area, groups)
        ctx.save_for_backward(x.detach(), mean, rstd, scale)
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor | None) -> Any:  # type: ignore[override]
        if dy is None:
            return None, None, None, None, None, None
        x, mean, rstd, scale = ctx.saved_tensors
        dy = laid_out_as(dy, x)
        dx = None
        if ctx.needs_input_grad[0]:
            dx = torch.ops.aten.native_group_norm_backward(dy, x, mean, rstd, scale, *ctx.sizes, (True, False, False))[
                0
            ]
        ctx.queue.add(weigh_group_norm, (x, dy, mean, rstd, scale, *ctx.sizes), wanted_of(ctx.parameters))
        return dx, None, None, None, None, None


def laid_out_as(dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Dy in the memory format of x on the CPU, plain elsewhere, as the operator wants it."""
    if x.device.type == "cpu" and not x.is_contiguous():
        return dy.contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
    return dy.contiguous()


def weigh_group_norm(
    x: torch.Tensor,
    dy: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    scale: torch.Tensor | None,
    batch: int,
    channels: int,
    area: int,
    groups: int,
) -> Gradients:
    """The gradients of scale and bias, of shape (channels,)."""
    # with channels last, torch 2.13's kernel writes the input gradient whether asked for or not
    mask = (not x.is_contiguous(), True, True)
    return torch.ops.aten.native_group_norm_backward(  # type: ignore[no-any-return]
        dy, x, mean, rstd, scale, batch, channels, area, groups, mask
    )[1:]


class RMSNormSplit(torch.autograd.Function):
    """`_fused_rms_norm` (devices that have it) whose backward leaves the scale to the queue."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        x: torch.Tensor,
        _ticket: torch.Tensor,
        scale: torch.Tensor,
        queue: WeightQueue,
        shape: Sequence[int],
        eps: float | None,
    ) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        y, rstd = torch.ops.aten._fused_rms_norm(x, shape, scale, eps)
        ctx.queue = queue
        ctx.scale = scale
        ctx.shape = shape
        ctx.save_for_backward(x.detach(), rstd, scale)
        return y  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor | None) -> Any:  # type: ignore[override]
        if dy is None:
            return None, None, None, None, None, None
        x, rstd, scale = ctx.saved_tensors
        dx = None
        if ctx.needs_input_grad[0]:
            dx = torch.ops.aten._fused_rms_norm_backward(dy, x, ctx.shape, rstd, scale, (True, False))[0]
        ctx.queue.add(weigh_rms_norm, (x, dy, rstd, ctx.shape, scale), (ctx.scale,))
        return dx, None, None, None, None, None


def weigh_rms_norm(
    x: torch.Tensor, dy: torch.Tensor, rstd: torch.Tensor, shape: Sequence[int], scale: torch.Tensor
) -> Gradients:
    """The gradient of the scale, of the normalised shape."""
    return (torch.ops.aten._fused_rms_norm_backward(dy, x, shape, rstd, scale, (False, True))[1],)


class ScaleSplit(torch.autograd.Function):
    """A product with a broadcast scale whose backward leaves the scale's gradient to the queue."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: torch.Tensor, _ticket: torch.Tensor, scale: torch.Tensor, queue: WeightQueue
    ) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.queue = queue
        ctx.scale = scale
        ctx.save_for_backward(x.detach(), scale)
        return x * scale

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor | None) -> Any:  # type: ignore[override]
        if dy is None:
            return None, None, None, None
        x, scale = ctx.saved_tensors
        ctx.queue.add(weigh_scale, (x, dy, scale.shape), (ctx.scale,))
        return dy * scale if ctx.needs_input_grad[0] else None, None, None, None


def weigh_scale(x: torch.Tensor, dy: torch.Tensor, shape: Sequence[int]) -> Gradients:
    """The gradient of the scale: dy * x summed over what was broadcast."""
    return ((dy * x).sum_to_size(shape),)


def norm_flops(arguments: tuple[Any, ...]) -> int:
    """Multiplications and additions of a scale's and a bias's gradient, three an element."""
    return int(3 * arguments[1].numel())
