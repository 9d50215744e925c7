"""Adding a gradient to ``.grad`` the way autograd's own last node does.

::

    first microbatch    .grad = g          no copy, unless g is laid out otherwise than the parameter
    later ones          .grad += g         in place, in the order in which W's run

A parameter can have hooks: some see the gradient before it is added (`register_hook`), some the
parameter after (`register_post_accumulate_grad_hook`). A gradient that W computed goes through both.
One that autograd computed in B has met the first sort there; the second waits for W.
"""

from __future__ import annotations

import torch

__all__ = ["accumulate"]


def accumulate(parameter: torch.Tensor, gradient: torch.Tensor, *, hooked: bool = False) -> None:
    """Add `gradient` to ``parameter.grad``; call without grad mode.

    Parameters
    ----------
    parameter
        A leaf that requires a gradient.
    gradient
        Of the parameter's shape; a lower precision (autocast) is brought to the parameter's.
    hooked
        Whether the hooks that see the gradient have seen it.
    """
    sofar, after = parameter.grad, parameter._post_accumulate_grad_hooks
    if (
        sofar is None
        or after
        or sofar.is_sparse
        or gradient.dtype is not parameter.dtype
        or (parameter._backward_hooks and not hooked)
    ):
        with_care(parameter, gradient, hooked=hooked)
    else:
        sofar.add_(gradient)


def with_care(parameter: torch.Tensor, gradient: torch.Tensor, *, hooked: bool) -> None:
    """The same for a first gradient, sparse ones, and parameters with hooks."""
    if gradient.dtype is not parameter.dtype:
        gradient = gradient.to(parameter.dtype)
    after = parameter._post_accumulate_grad_hooks
    if not hooked and (after or parameter._backward_hooks):
        # the leaf itself as the root: only its accumulation runs, with all its hooks
        torch.autograd.backward((parameter,), (gradient,))
        return
    sofar = parameter.grad
    if sofar is not None:
        if sofar.is_sparse and not gradient.is_sparse:
            # nothing dense fits into what is sparse
            parameter.grad = gradient + sofar
        else:
            sofar.add_(gradient)
    elif gradient.is_sparse or gradient.stride() == parameter.stride() or lies_alike(gradient, parameter):
        parameter.grad = gradient
    else:
        # optimizers rely on a gradient that lies in memory as its parameter does
        parameter.grad = torch.empty_like(parameter, requires_grad=False).copy_(gradient)
    if after:
        for hook in tuple(after.values()):
            hook(parameter)


def lies_alike(gradient: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Whether their strides agree wherever a dimension has more than one entry."""
    strides = zip(parameter.shape, gradient.stride(), parameter.stride(), strict=True)
    return all(size == 1 or mine == its for size, mine, its in strides)
