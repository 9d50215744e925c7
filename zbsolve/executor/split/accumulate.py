"""Adding a gradient to ``.grad`` the way autograd's own last node does.

::

    first microbatch    .grad = g          no copy, unless g is laid out otherwise than the parameter
    later ones          .grad += g         in place, in the order in which W's run
    hooks on it         through autograd   so that they see and change what they always do
"""

from __future__ import annotations

import torch

__all__ = ["accumulate"]


def accumulate(parameter: torch.Tensor, gradient: torch.Tensor) -> None:
    """Add `gradient` to ``parameter.grad``; call without grad mode.

    Parameters
    ----------
    parameter
        A leaf that requires a gradient.
    gradient
        Of the parameter's shape; a lower precision (autocast) is brought to the parameter's.
    """
    if gradient.dtype is not parameter.dtype:
        gradient = gradient.to(parameter.dtype)
    if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
        # the leaf itself as the root: only its accumulation runs, hooks included
        torch.autograd.backward((parameter,), (gradient,))
        return
    sofar = parameter.grad
    if sofar is not None:
        sofar.add_(gradient)
    elif gradient.stride() == parameter.stride():
        parameter.grad = gradient
    else:
        # optimizers rely on a gradient that lies in memory as its parameter does
        parameter.grad = torch.empty_like(parameter, requires_grad=False).copy_(gradient)
