"""`Linear`: the input gradient at once, the weight gradient when W asks for it.

::

    F    y  = x W' + b        keeps x (W is a parameter: it costs nothing)
    B    dx = dy W            queues (x, dy)
    W    dW = dy' x,  db = sum of dy over all positions

Bitwise equality with autograd needs its choice of kernels, not its formulas alone: a contiguous
input of any rank with a bias goes through one `addmm` on rows, everything else through `matmul`
and an addition; and each product is taken in the order that suits the layout of what it is for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from zbsolve.executor.split.queue import Gradients, WeightQueue

__all__ = ["LinearSplit", "linear_flops", "weigh_linear"]


class LinearSplit(torch.autograd.Function):
    """`functional.linear` whose backward leaves the weight gradient to the queue."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        x: torch.Tensor,
        _ticket: torch.Tensor,
        parameters: tuple[torch.Tensor, torch.Tensor | None],
        queue: WeightQueue,
        dtype: torch.dtype | None,
    ) -> torch.Tensor:
        weight, bias = parameters
        ctx.set_materialize_grads(False)
        ctx.queue = queue
        ctx.parameters = parameters
        ctx.dtype = dtype
        # detached: x must not keep the graph behind it alive until W
        if x.requires_grad:
            ctx.save_for_backward(x.detach(), weight)
        else:
            ctx.save_for_backward(x)
        if dtype is not None:
            weight = lower(weight, dtype)
            bias = None if bias is None else lower(bias, dtype)
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor | None) -> Any:  # type: ignore[override]
        if dy is None:
            return None, None, None, None, None
        weight, bias = ctx.parameters
        if not ctx.needs_input_grad[0]:
            (x,) = ctx.saved_tensors
            dx = None
        else:
            x, weight = ctx.saved_tensors
            if ctx.dtype is not None:
                weight = weight.to(ctx.dtype)
            dx = input_gradient(x, dy, weight)
        wanted = bias if bias is not None and bias.requires_grad else None
        ctx.queue.add(weigh_linear, (x, dy, weight.is_contiguous(), wanted is not None), (ctx.parameters[0], wanted))
        return dx, None, None, None, None


def lower(parameter: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The parameter in autocast's precision."""
    # matmul picks its kernel by whether a gradient is wanted, so say that one is
    return parameter.detach().to(dtype).requires_grad_()


def rows(tensor: torch.Tensor) -> torch.Tensor:
    """All positions as rows."""
    return tensor if tensor.dim() == 2 else tensor.reshape(-1, tensor.shape[-1])


def input_gradient(x: torch.Tensor, dy: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """dx of y = x W' + b, of the shape of x."""
    if x.dim() != 2:
        return rows(dy).mm(weight).view(x.shape)
    if x.stride() == (1, x.shape[0]):
        # x is the transpose of something contiguous, so make its gradient one too
        return weight.t().mm(dy.t()).t()
    return dy.mm(weight)


def weigh_linear(x: torch.Tensor, dy: torch.Tensor, row_major: bool, with_bias: bool) -> Gradients:
    """DW of shape (out, in), and db of shape (out,) if wanted."""
    flat_x, flat_dy = rows(x), rows(dy)
    weight = flat_dy.t().mm(flat_x) if row_major else flat_x.t().mm(flat_dy).t()
    if not with_bias:
        return weight, None
    # what the forward added as one row after `matmul` is summed over every dimension at once
    summed = flat_dy if x.is_contiguous() or x.dim() == 2 else dy
    return weight, summed.sum_to_size(dy.shape[-1:])


def linear_flops(arguments: tuple[Any, ...]) -> int:
    """Multiplications and additions of `weigh_linear`."""
    x, dy, _, with_bias = arguments
    return int(dy.numel() * (2 * x.shape[-1] + with_bias))
