"""`Linear`: the input gradient at once, the weight gradient when W asks for it.

::

    F    y  = x W' + b        keeps x (W is a parameter: it costs nothing)
    B    dx = dy W            queues (x, dy)
    W    dW = dy' x,  db = sum of dy over all positions

Bitwise equality with autograd needs its choice of kernels, not its formulas alone: a contiguous
input of any rank with a bias goes through one `addmm` on rows, everything else through `matmul`
and an addition; and each product is taken in the order that suits the layout of what it is for::

    x as rows      (n, in), or (in, n) seen from its side        dx = dy W,   or (W' dy')'
    W              (out, in), or (in, out) seen from its side    dW = dy' x,  or (x' dy)'

Under autocast B casts the weight again, where autograd would keep the cast one from F to B: a copy of
all weights for every microbatch in flight.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch.nn import functional

from zbsolve.executor.split.engine import direct
from zbsolve.executor.split.waiting import Gradients, WeightQueue

__all__ = ["LinearCall", "linear_flops", "lower", "split_linear", "weigh_linear"]


LinearCall: TypeAlias = "tuple[torch.Tensor, torch.Tensor | None, WeightQueue, torch.dtype | None]"
"""One call of a `Linear`, apart from its input: weight, bias, queue, and autocast's precision if it is on."""


class LinearSplit(torch.autograd.Function):
    """`functional.linear` whose backward leaves the weight gradient to the queue."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, _ticket: torch.Tensor, call: LinearCall) -> torch.Tensor:
        """Run F: compute y, and keep what B and W need."""
        ctx.set_materialize_grads(False)
        weight, bias, _, dtype = call
        shape = x.shape
        # detached: x must not keep the graph behind it alive until W
        kept = x.detach()
        if len(shape) == 2:
            sums_rows = True
        else:
            sums_rows = x.is_contiguous()
            if len(shape) == 1 and bias is None:
                kept = kept.unsqueeze(0)
            else:
                kept = kept.view(-1, shape[-1]) if sums_rows else rows_if_free(kept)
        ctx.of = call, shape, sums_rows
        if x.requires_grad:
            ctx.save_for_backward(kept, weight)
        else:
            ctx.save_for_backward(kept)
        if dtype is not None:
            weight = lower(weight, dtype)
            bias = None if bias is None else lower(bias, dtype)
        y = functional.linear(x, weight, bias)
        # `linear` makes rows and views them; autograd lets nobody write into a view made in here, `relu_` say
        return y.detach() if y._is_view() else y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor | None) -> Any:
        """Run B: hand back dx, and queue what W needs."""
        if dy is None:
            return None, None, None
        (parameter, bias, queue, dtype), shape, sums_rows = ctx.of
        saved = ctx.saved_tensors
        x, dx = saved[0], None
        flat = len(shape) == 2
        if flat:
            rows = dy
        elif len(shape) == 1 and bias is None:
            rows = dy.unsqueeze(0)
        else:
            rows = dy.reshape(-1, dy.shape[-1])
        if len(saved) == 2:
            weight = saved[1] if dtype is None else saved[1].to(dtype)
            # where x is the transpose of something contiguous, its gradient is made one too
            dx = weight.t().mm(rows.t()).t() if x.stride() == (1, len(rows)) else rows.mm(weight)
            if not flat:
                dx = dx.reshape(shape)
        if bias is None or not bias.requires_grad:
            queue.add((weigh_linear, (x, rows, None), (parameter, None)))
        else:
            # what the forward added by itself after `matmul` is summed over every dimension at once
            queue.add((weigh_linear, (x, rows, rows if sums_rows else dy), (parameter, bias)))
        return dx, None, None


split_linear = direct(LinearSplit)
"""``split_linear(x, ticket, call)``: `LinearSplit` on x; the ticket is None where x wants a gradient itself."""


def rows_if_free(x: torch.Tensor) -> torch.Tensor:
    """The same memory with two dimensions; x itself where that takes a copy, which W makes for itself."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.data_ptr() == x.data_ptr() else x


def lower(parameter: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The parameter in autocast's precision."""
    # matmul picks its kernel by whether a gradient is wanted, so say that one is
    return parameter.detach().to(dtype).requires_grad_()


def weigh_linear(
    parameters: tuple[torch.Tensor, torch.Tensor | None],
    x: torch.Tensor,
    dy: torch.Tensor,
    summed: torch.Tensor | None,
) -> Gradients:
    """Compute dW of shape (out, in), and db of shape (out,) if wanted.

    Parameters
    ----------
    parameters
        Weight and bias.
    x, dy
        Input and output gradient as rows; x still with all its dimensions where rows would be a copy.
    summed
        The output gradient with the dimensions over which db is summed; None for no db.
    """
    if x.dim() != 2:
        x = x.reshape(-1, x.shape[-1])
    weight = dy.t().mm(x) if parameters[0].stride() == (x.shape[1], 1) else x.t().mm(dy).t()
    if summed is None:
        return weight, None
    if summed is dy:
        return weight, dy.sum(0)
    # of one position there is nothing to sum, and a gradient must not share dy's memory
    return weight, summed.clone() if summed.dim() == 1 else summed.sum_to_size(summed.shape[-1:])


def linear_flops(_parameters: object, x: torch.Tensor, dy: torch.Tensor, summed: torch.Tensor | None) -> int:
    """Multiplications and additions of `weigh_linear`."""
    return int(dy.numel() * (2 * x.shape[-1] + (summed is not None)))
