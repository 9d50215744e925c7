"""One step of SGD, solved for the values before it.

With d the decay, mu the momentum, tau the dampening, g the gradient (negated when maximizing)::

    g~ = g + d p
    b' = mu b + (1 - tau) g~        (b' = g~ at the first step)
    p' = p - lr b'                  without Nesterov
    p' = p - lr (g~ + mu b')        with it
    p' = p - lr g~                  without momentum

    p  = p' + lr b'                                without Nesterov
    p  = (p' + lr (g + mu b')) / (1 - lr d)        with it (mu b' absent without momentum)
    b  = (b' - (1 - tau) (g + d p)) / mu
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from zbsolve.executor.optimizer.precision import Precision

__all__ = ["STATE", "reason", "solve"]

STATE = ("momentum_buffer",)

_SMALLEST_DIVISOR = 0.5


def reason(group: Mapping[str, Any]) -> str | None:
    """Why a step with these settings cannot be solved, or None."""
    implicit = float(group["momentum"]) == 0 or group["nesterov"]
    if implicit and abs(1 - float(group["lr"]) * float(group["weight_decay"])) < _SMALLEST_DIVISOR:
        return "lr x weight_decay is so near to 1 that the step forgets the old weights"
    if 0 < abs(float(group["momentum"])) < _SMALLEST_DIVISOR:
        return "a momentum below 0.5 forgets its buffer"
    narrow = any(p.device.type == "cpu" and p.dtype in (torch.float16, torch.bfloat16) for p in group["params"])
    if group["fused"] and narrow:
        return "torch's fused SGD leaves out most 16-bit elements on the CPU (pytorch issue 191763)"
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
        Unused: SGD counts no steps.
    fresh
        There was no momentum buffer before the step.
    precision
        Of the dtype the step ran in.
    """
    del step
    rate, decay = float(group["lr"]), float(group["weight_decay"])
    momentum, dampening = float(group["momentum"]), float(group["dampening"])
    gradient = -gradient if group["maximize"] else gradient
    buffer = state.get("momentum_buffer") if momentum else None
    if buffer is not None and not group["nesterov"]:
        moved, divisor = rate * buffer, 1.0
    else:
        moved, divisor = rate * (gradient if buffer is None else gradient + momentum * buffer), 1 - rate * decay
    old = (parameter + moved) / divisor
    terms = [old, parameter, rate * gradient, rate * decay * old]
    if buffer is not None:
        terms.append(rate * (1 + momentum) * buffer)
    old_bound = precision.rounding(*terms) / abs(divisor)
    found = {"parameter": (old, old_bound)}
    if buffer is not None and not fresh:
        share = 1 - dampening
        decayed = gradient + decay * old
        before = (buffer - share * decayed) / momentum
        bound = precision.rounding(buffer, before, gradient, decay * old) + abs(share * decay) * old_bound
        found["momentum_buffer"] = (before, bound / abs(momentum))
    return found
