"""`LayerNorm`, `GroupNorm` and `RMSNorm`, if their gradients are to wait for W.

A norm's weight gradient is a sum over what B has in cache, and as small as the parameter. Leaving it
to W means to keep two activations instead, and to read them a second time::

                      queued, for n positions of width d      reads x and dy
    norms wait        x, dy: 2 n d                            in B and in W
    they do not       dscale, dbias: 2 d                      in B

So by default norms are left to autograd, B computes the small gradients, and W adds them to ``.grad``.
Where the time of B is dearer than memory, they wait::

    F    y  = (x - mean) * rstd * scale + bias    keeps x, mean, rstd: what autograd keeps too
    B    dx from dy, x, mean, rstd, scale         queues (x, dy, mean, rstd)
    W    dscale = sum dy * (x - mean) * rstd,  dbias = sum dy

As with convolutions, torch's backward operators take a mask of what to compute. On the CPU torch
composes `rms_norm` of primitive operations, the last of which multiplies by the scale. There only
that product is split; what comes before it has no parameter and is left to autograd::

    x --- autograd ---> normed --- ScaleSplit ---> y
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from zbsolve.executor.split.engine import direct
from zbsolve.executor.split.waiting import Gradients, WeightQueue

__all__ = [
    "GroupNormCall",
    "LayerNormCall",
    "RMSNormCall",
    "ScaleCall",
    "norm_flops",
    "split_group_norm",
    "split_layer_norm",
    "split_rms_norm",
    "split_scale",
    "weigh_group_norm",
    "weigh_layer_norm",
    "weigh_rms_norm",
    "weigh_scale",
]

Affine = tuple["torch.Tensor | None", "torch.Tensor | None"]

_layer_norm_backward = torch.ops.aten.native_layer_norm_backward.default
_group_norm = torch.ops.aten.native_group_norm.default
_group_norm_backward = torch.ops.aten.native_group_norm_backward.default


def that_train(scale: torch.Tensor | None, bias: torch.Tensor | None) -> Affine:
    """Scale and bias, each None where it is absent or frozen."""
    return (
        scale if scale is not None and scale.requires_grad else None,
        bias if bias is not None and bias.requires_grad else None,
    )


class LayerNormCall(NamedTuple):
    """One call of a `LayerNorm`, apart from its input."""

    scale: torch.Tensor | None
    bias: torch.Tensor | None
    queue: WeightQueue
    shape: Sequence[int]
    """The normalised one."""
    eps: float


class LayerNormSplit(torch.autograd.Function):
    """`native_layer_norm` whose backward leaves scale and bias to the queue."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, _ticket: torch.Tensor, call: LayerNormCall) -> torch.Tensor:
        """Run F: compute y, and keep what B and W need."""
        ctx.set_materialize_grads(False)
        ctx.call = call
        ctx.hands_back = x.requires_grad
        scale, bias, _, shape, eps = call
        y, mean, rstd = torch.native_layer_norm(x, shape, scale, bias, eps)
        ctx.save_for_backward(x.detach(), mean, rstd, scale)
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor | None) -> Any:
        """Run B: hand back dx, and queue what W needs."""
        if dy is None:
            return None, None, None
        x, mean, rstd, weight = ctx.saved_tensors
        scale, bias, queue, shape, _ = ctx.call
        dx = None
        if ctx.hands_back:
            dx = _layer_norm_backward(dy, x, shape, mean, rstd, weight, None, (True, False, False))[0]
        queue.add((weigh_layer_norm, (x, dy, mean, rstd, shape), that_train(scale, bias)))
        return dx, None, None


split_layer_norm = direct(LayerNormSplit)


def weigh_layer_norm(
    parameters: Affine,
    x: torch.Tensor,
    dy: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    shape: Sequence[int],
) -> Gradients:
    """Compute the gradients of scale and bias, each of the normalised shape."""
    scale, bias = parameters
    mask = (False, scale is not None, bias is not None)
    return _layer_norm_backward(dy, x, shape, mean, rstd, scale, bias, mask)[1:]  # type: ignore[no-any-return]


class GroupNormCall(NamedTuple):
    """One call of a `GroupNorm`, apart from its input."""

    scale: torch.Tensor | None
    bias: torch.Tensor | None
    queue: WeightQueue
    groups: int
    eps: float
    layout: torch.memory_format
    """Of the input."""


class GroupNormSplit(torch.autograd.Function):
    """`native_group_norm` whose backward leaves scale and bias to the queue."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, _ticket: torch.Tensor, call: GroupNormCall) -> torch.Tensor:
        """Run F: compute y, and keep what B and W need."""
        ctx.set_materialize_grads(False)
        ctx.call = call
        ctx.hands_back = x.requires_grad
        scale, bias, _, groups, eps, _ = call
        batch, channels = x.shape[:2]
        ctx.sizes = (batch, channels, x[0, 0].numel(), groups)
        y: torch.Tensor
        y, mean, rstd = _group_norm(x, scale, bias, *ctx.sizes, eps)
        ctx.save_for_backward(x.detach(), mean, rstd, scale)
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor | None) -> Any:
        """Run B: hand back dx, and queue what W needs."""
        if dy is None:
            return None, None, None
        x, mean, rstd, weight = ctx.saved_tensors
        scale, bias, queue, _, _, layout = ctx.call
        dy = dy.contiguous(memory_format=layout)
        dx = None
        if ctx.hands_back:
            dx = _group_norm_backward(dy, x, mean, rstd, weight, *ctx.sizes, (True, False, False))[0]
        plain = layout is torch.contiguous_format
        queue.add((weigh_group_norm, (x, dy, mean, rstd, weight, ctx.sizes, plain), that_train(scale, bias)))
        return dx, None, None


split_group_norm = direct(GroupNormSplit)


def weigh_group_norm(
    _parameters: Affine,
    x: torch.Tensor,
    dy: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    scale: torch.Tensor | None,
    sizes: tuple[int, int, int, int],
    plain: bool,
) -> Gradients:
    """Compute the gradients of scale and bias, of shape (channels,)."""
    # with channels last, torch 2.13's kernel writes the input gradient whether asked for or not
    mask = (not plain, True, True)
    return _group_norm_backward(dy, x, mean, rstd, scale, *sizes, mask)[1:]  # type: ignore[no-any-return]


class RMSNormCall(NamedTuple):
    """One call of an `RMSNorm` that a device runs in one kernel, apart from its input."""

    scale: torch.Tensor
    queue: WeightQueue
    shape: Sequence[int]
    """The normalised one."""
    eps: float | None


class RMSNormSplit(torch.autograd.Function):
    """`_fused_rms_norm` whose backward leaves the scale to the queue."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, _ticket: torch.Tensor, call: RMSNormCall) -> torch.Tensor:
        """Run F: compute y, and keep what B and W need."""
        ctx.set_materialize_grads(False)
        ctx.call = call
        ctx.hands_back = x.requires_grad
        y, rstd = torch.ops.aten._fused_rms_norm(x, call.shape, call.scale, call.eps)
        ctx.save_for_backward(x.detach(), rstd, call.scale)
        return y  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor | None) -> Any:
        """Run B: hand back dx, and queue what W needs."""
        if dy is None:
            return None, None, None
        x, rstd, weight = ctx.saved_tensors
        scale, queue, shape, _ = ctx.call
        dx = None
        if ctx.hands_back:
            dx = torch.ops.aten._fused_rms_norm_backward(dy, x, shape, rstd, weight, (True, False))[0]
        queue.add((weigh_rms_norm, (x, dy, rstd, shape), (scale,)))
        return dx, None, None


split_rms_norm = direct(RMSNormSplit)


def weigh_rms_norm(
    parameters: tuple[torch.Tensor], x: torch.Tensor, dy: torch.Tensor, rstd: torch.Tensor, shape: Sequence[int]
) -> Gradients:
    """Compute the gradient of the scale, of the normalised shape."""
    return (torch.ops.aten._fused_rms_norm_backward(dy, x, shape, rstd, parameters[0], (False, True))[1],)


class ScaleCall(NamedTuple):
    """One product with a scale, apart from the other factor."""

    scale: torch.Tensor
    queue: WeightQueue


class ScaleSplit(torch.autograd.Function):
    """A product with a broadcast scale whose backward leaves the scale's gradient to the queue."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, _ticket: torch.Tensor, call: ScaleCall) -> torch.Tensor:
        """Run F: compute y, and keep what B and W need."""
        ctx.set_materialize_grads(False)
        ctx.call = call
        ctx.hands_back = x.requires_grad
        ctx.save_for_backward(x.detach(), call.scale)
        return x * call.scale

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor | None) -> Any:
        """Run B: hand back dx, and queue what W needs."""
        if dy is None:
            return None, None, None
        x, weight = ctx.saved_tensors
        scale, queue = ctx.call
        queue.add((weigh_scale, (x, dy), (scale,)))
        return dy * weight if ctx.hands_back else None, None, None


split_scale = direct(ScaleSplit)


def weigh_scale(parameters: tuple[torch.Tensor], x: torch.Tensor, dy: torch.Tensor) -> Gradients:
    """Compute the gradient of the scale: dy * x summed over what was broadcast."""
    return ((dy * x).sum_to_size(parameters[0].shape),)


def norm_flops(_parameters: object, _x: torch.Tensor, dy: torch.Tensor, *_statistics: object) -> int:
    """Multiplications and additions of a scale's and a bias's gradient, three an element."""
    return 3 * dy.numel()
