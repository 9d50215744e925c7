"""Telling that a gradient ends where nobody may have meant it to.

Plain training says nothing where a model is cut by ``.detach()``: what stands before the cut learns
nothing. In a pipeline that is a whole stage's work, so it is told, once for each place::

    F of stage 1    wants gradients in, or has parameters that train, but no output wants one
    B of stage 1    was given a gradient, but has none for any input that wants one

A first part of the model that is frozen, parameters and all, is no such place.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["stops", "warn_if_cut_off", "warn_of_stop"]


def warn_if_cut_off(number: int, module: torch.nn.Module, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Warn if a stage could hand back gradients but its outputs want none."""
    if any(isinstance(o, torch.Tensor) and o.requires_grad for o in outputs):
        return
    reached = any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)
    trains = sum(p.requires_grad for p in module.parameters())
    if reached or trains:
        parts = [f"its own {trains} parameters"] if trains else []
        parts += ["the stages before it"] if reached else []
        warnings.warn(
            f"no output of stage {number} wants a gradient, so {' and '.join(parts)} learn nothing. {_ADVICE}",
            stacklevel=2,
        )


def stops(returning: Sequence[Any], given: Sequence[Any], of_the_loss: Sequence[Any]) -> bool:
    """Whether a stage that was given a gradient returns none at all."""
    started = given is of_the_loss or any(gradient is not None for gradient in given)
    return started and all(gradient is None for gradient in returning)


def warn_of_stop(number: int) -> None:
    """Warn that a stage hands no gradient back."""
    warnings.warn(
        f"stage {number} has no gradient for its inputs, so the stages before it learn nothing. {_ADVICE}",
        stacklevel=2,
    )


_ADVICE = (
    "If that is not meant, look for .detach(), .item(), no_grad or new tensors made from old values there; if it is, "
    "freeze those parameters with requires_grad_(False), which also saves their backward"
)
