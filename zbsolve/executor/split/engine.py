"""Calls into autograd on the way of every microbatch, without what torch's own Python puts around them.

For a small stage the checks around a call cost more than the call::

    torch.autograd.backward      shapes by way of symbolic ones       the stage and the engine check them as well
    ..._engine_run_backward      a context for threads of devices     without a device there are none
    Function.apply               is functorch at work?                whoever calls `direct` has asked
    BackwardCFunction.apply      which backward is it?                one of a known class

None of these names is public: where a version of torch lacks one, the public way does the same, more slowly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cache
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

__all__ = ["any_autocast", "direct", "plain_precision", "run_backward"]


@cache
def _engine() -> Callable[..., Any]:
    """The engine to call; asked at the first backward, as to ask for devices earlier would spoil a fork."""
    bare: Callable[..., Any] | None = getattr(
        getattr(torch.autograd.Variable, "_execution_engine", None), "run_backward", None
    )
    if bare is not None and not torch.accelerator.is_available():
        return bare
    return getattr(torch.autograd.graph, "_engine_run_backward", None) or _publicly


def _publicly(
    edges: Sequence[GradientEdge], gradients: Sequence[torch.Tensor], *_settings: object, **_options: object
) -> None:
    torch.autograd.backward(edges, gradients)


any_autocast: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)
"""Whether autocast may be on for some device; False is certain."""

_NOTHING: AbstractContextManager[Any] = nullcontext()


def run_backward(edges: Sequence[GradientEdge], gradients: Sequence[torch.Tensor]) -> None:
    """Run the graph behind edges from their gradients, adding to ``.grad`` of leaves; the graph is freed."""
    _engine()(tuple(edges), tuple(gradients), False, False, (), allow_unreachable=True, accumulate_grad=True)


def direct(function: type[torch.autograd.Function]) -> Callable[..., torch.Tensor]:
    """``function.apply`` for calls outside functorch; its backward is then called without a search for it."""
    backward = getattr(function, "_backward_cls", None)
    if backward is not None:
        backward.apply = function.backward
    apply: Callable[..., torch.Tensor] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply


def plain_precision() -> AbstractContextManager[Any]:
    """Autocast off: a backward runs in the precisions its forward has chosen."""
    if not any_autocast():
        return _NOTHING
    stack = ExitStack()
    for device in ("cpu", "cuda", "xpu", "mps"):
        if torch.is_autocast_enabled(device):
            stack.enter_context(torch.autocast(device, enabled=False))
    return stack
