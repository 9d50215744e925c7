"""One step of Adam or AdamW, solved for the values before it.

With g the gradient (negated when maximizing), d the decay, n the number of the step::

    Adam   g~ = g + d p,  p~ = p                 AdamW  g~ = g,  p~ = (1 - lr d) p
    m' = b1 m + (1 - b1) g~
    v' = b2 v + (1 - b2) g~^2
    p' = p~ - D,   D = lr / (1 - b1^n) x m' / (sqrt(v' / (1 - b2^n)) + eps)

    p~ = p' + D        D follows from m' and v', which are there
    m  = (m' - (1 - b1) g~) / b1
    v  = max(0, (v' - (1 - b2) g~^2) / b2)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from zbsolve.executor.optimizer.precision import OPERATIONS, Precision

__all__ = ["STATE", "reason", "solve"]

STATE = ("exp_avg", "exp_avg_sq")

_SMALLEST_DIVISOR = 0.5


def reason(group: Mapping[str, Any]) -> str | None:
    """Why a step with these settings cannot be solved, or None."""
    if group["amsgrad"]:
        return "amsgrad keeps a maximum, which forgets what it was"
    if any(float(beta) < _SMALLEST_DIVISOR for beta in group["betas"]):
        return "a beta below 0.5 forgets the old average"
    if group["decoupled_weight_decay"] and 1 - float(group["lr"]) * float(group["weight_decay"]) < _SMALLEST_DIVISOR:
        return "lr x weight_decay is so near to 1 that the step forgets the old weights"
    if any(p.dtype is torch.float16 for p in group["params"]):
        return "float16 holds neither the squares of small gradients nor eps, so the step itself may lose them"
    return None


def solve(
    group: Mapping[str, Any],
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    state: Mapping[str, torch.Tensor],
    *,
    step: float,
    fresh: bool,
    precision: Precision,
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Old values and bounds on their errors, elementwise.

    Parameters
    ----------
    group
        Settings of the step.
    parameter, gradient, state
        As the step left them, in the dtype to solve in.
    step
        The count that the step left.
    fresh
        There was no state before the step.
    precision
        Of the dtype the step ran in.
    """
    rate, decay, eps = float(group["lr"]), float(group["weight_decay"]), float(group["eps"])
    beta1, beta2 = (float(beta) for beta in group["betas"])
    decoupled = bool(group["decoupled_weight_decay"])
    gradient = -gradient if group["maximize"] else gradient
    mean, square = state["exp_avg"], state["exp_avg_sq"]

    root = (square / (1 - beta2**step)).sqrt()
    moved = rate / (1 - beta1**step) * mean / (root + eps)
    divisor = 1 - rate * decay if decoupled else 1.0
    old = (parameter + moved) / divisor
    # what underflows in the mean or under the root weighs as much more as root plus eps is small
    lost = (rate / (1 - beta1**step) * precision.least + moved.abs() * precision.least**0.5) / (root + eps)
    old_bound = (precision.rounding(old, parameter, moved) + OPERATIONS * lost) / divisor
    found = {"parameter": (old, old_bound)}
    if fresh:
        return found

    pulled = 0.0 if decoupled else decay
    decayed = gradient + pulled * old
    slack = pulled * old_bound
    before = (mean - (1 - beta1) * decayed) / beta1
    bound = precision.rounding(mean, before, gradient, pulled * old) + (1 - beta1) * slack
    found["exp_avg"] = (before, bound / beta1)

    squared = (1 - beta2) * decayed * decayed
    slack = slack + precision.rounding(gradient, pulled * old)
    # the square cannot have been negative, so setting it to zero only brings it nearer
    before = ((square - squared) / beta2).clamp(min=0.0)
    bound = precision.rounding(square, before, squared) + (1 - beta2) * (2 * decayed.abs() + slack) * slack
    found["exp_avg_sq"] = (before, bound / beta2)
    return found
