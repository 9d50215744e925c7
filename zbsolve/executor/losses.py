"""The loss function: what it may be, and what it gives.

It runs within the graph of the last stage, so parameters of its own get gradients, but no rank has them: no
optimizer would move them, no norm count them, no state hold them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from zbsolve.errors import InvalidInput, RunError
from zbsolve.executor.desk import Desk, StageWork

__all__ = ["loss_of", "refuse_foreign_parameters"]


def refuse_foreign_parameters(loss_fn: Callable[..., Any], stages: Mapping[int, StageWork], last_stage: int) -> None:
    """Refuse a loss that has something to learn which the last stage does not hold; where that stage is.

    Raises
    ------
    InvalidInput
        With the parameter, and what to do.
    """
    if last_stage not in stages:
        return
    held = {id(p) for p in stages[last_stage].module.parameters()}
    for name, parameter in _parameters(loss_fn):
        if parameter.requires_grad and id(parameter) not in held:
            raise InvalidInput(
                f"loss_fn has a parameter that learns ({name}), but belongs to no stage, so no optimizer would see it: "
                "make it a submodule of the last stage as well (stage.loss = loss_fn will do), or freeze it"
            )


def _parameters(loss_fn: Any) -> list[tuple[str, torch.nn.Parameter]]:
    """Those of a module, of the module whose method it is, or of what has been bound to it."""
    if isinstance(loss_fn, torch.nn.Module):
        return list(loss_fn.named_parameters())
    if isinstance(loss_fn, partial):
        bound = (loss_fn.func, *loss_fn.args, *loss_fn.keywords.values())
        return [found for part in bound for found in _parameters(part)]
    if isinstance(loss_fn, torch.nn.Parameter):
        return [("bound to it", loss_fn)]
    owner = getattr(loss_fn, "__self__", None)
    return [] if owner is None else _parameters(owner)


def loss_of(desk: Desk, key: int, loss_fn: Callable[..., torch.Tensor]) -> Callable[[Any], Any]:
    """The last stage's output to what the backward starts from; notes the plain loss."""
    told = key > 0

    def finish(output: Any) -> torch.Tensor:
        target = desk.targets[key]
        loss = loss_fn(output, target)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise RunError(f"the loss function must return one number, got {got}")
        if loss.is_complex():
            raise RunError(f"the loss function must return a real number, got {loss.dtype}: take its .abs() or .real")
        if loss.dim():
            loss = loss.reshape(())
        if not loss.requires_grad:
            raise RunError(
                "the loss has no gradient, so nothing would learn: is the output or the loss detached, turned into a "
                "plain number, computed under no_grad, or is every parameter frozen?"
            )
        nonlocal told
        if not told and _stretches(output, target):
            told = True
            warnings.warn(
                f"loss_fn is given an output of shape {tuple(output.shape)} and a target of shape "
                f"{tuple(target.shape)}, and arithmetic may stretch one over the other: has the target as many rows "
                "as the batch?",
                stacklevel=2,
            )
        desk.losses[key] = _kept_small(loss.detach())
        if desk.divisor != 1:
            loss = loss / desk.divisor
        return loss if desk.scale == 1.0 else loss * desk.scale

    return finish


def _kept_small(loss: torch.Tensor) -> torch.Tensor:
    """The number without the memory around it: `mse_loss` makes it in place of as many numbers as the output has."""
    roomy = type(loss) is torch.Tensor and loss.untyped_storage().nbytes() > loss.nbytes
    return loss.clone() if roomy else loss


def _stretches(output: Any, target: Any) -> bool:
    """Whether their rows differ and arithmetic between them would go through all the same."""
    if not isinstance(output, torch.Tensor) or not isinstance(target, torch.Tensor):
        return False
    a, b = output.shape, target.shape
    if not a or not b or a[0] == b[0]:
        return False
    return all(x == y or 1 in (x, y) for x, y in zip(reversed(a), reversed(b), strict=False))
