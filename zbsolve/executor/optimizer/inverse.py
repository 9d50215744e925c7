"""Undo by inverse arithmetic: compute the old values back from the new ones and the gradients.

It needs no memory beyond the gradients, which a repair needs anyway, and is not exact: what
rounding threw away does not come back. So every undo returns a bound on its error, elementwise
rigorous and reported as the largest per kind of tensor.

The bound. Write u for half the spacing of the dtype at 1 and t for its least positive number that
hardware keeps. Each floating-point operation of the step adds an error of at most u x |result| + t,
and every intermediate result is at most the sum S of the absolute values of its terms. A step runs
at most a dozen operations on the way to one number, in any of torch's plain, foreach and fused
flavours, so its error is at most K (u S + t) with K = 16. Solving the step's equation for the old
value multiplies this by what the old value is divided by; the solving itself runs in float64 (in
float32 for 16-bit dtypes), and its result is rounded once, u x |old|, covered by K too.

Defined where the step can be solved for the old values: SGD, Adam and AdamW of torch.optim itself
(a subclass may do anything), real dtypes, no amsgrad (a maximum forgets), no capturable or
differentiable steps. Elsewhere it is refused with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from zbsolve.errors import InvalidInput, RunError
from zbsolve.executor.optimizer import inverse_adam, inverse_sgd
from zbsolve.executor.optimizer.gradients import local
from zbsolve.executor.optimizer.precision import Precision

__all__ = ["InverseUndo", "UndoError", "refuse_unless_invertible"]

Solve = Callable[..., dict[str, tuple[torch.Tensor, torch.Tensor]]]

_CHUNK = 1 << 20
_USE = "use undo='snapshot'"
# per optimizer: its solver, and the tensors it keeps
_KINDS: dict[type[torch.optim.Optimizer], tuple[Solve, tuple[str, ...]]] = {
    torch.optim.SGD: (inverse_sgd.solve, inverse_sgd.STATE),
    torch.optim.Adam: (inverse_adam.solve, inverse_adam.STATE),
    torch.optim.AdamW: (inverse_adam.solve, inverse_adam.STATE),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoError:
    """How far the undone values can be from the old ones, at most.

    Parameters
    ----------
    parameter
        Largest absolute error of a parameter's element.
    state
        The same for each tensor of the optimizer state, by name.
    """

    parameter: float
    state: Mapping[str, float] = field(default_factory=dict)


def refuse_unless_invertible(optimizer: torch.optim.Optimizer) -> None:
    """Say why a step of this optimizer, with its present settings, cannot be undone by arithmetic.

    Raises
    ------
    InvalidInput
        With the reason and what to use.
    """
    kind = type(optimizer)
    if kind not in _KINDS:
        raise InvalidInput(
            f"a step of {kind.__name__} cannot be undone by inverse arithmetic, which is defined for SGD, Adam and "
            f"AdamW of torch.optim: {_USE}"
        )
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise InvalidInput(f"{kind.__name__} has step hooks, whose effect inverse arithmetic cannot undo: {_USE}")
    for index, group in enumerate(optimizer.param_groups):
        reason = _group_reason(kind, group)
        if reason:
            raise InvalidInput(
                f"group {index} of {kind.__name__} cannot be undone by inverse arithmetic: {reason}: {_USE}"
            )


def _group_reason(kind: type[torch.optim.Optimizer], group: Mapping[str, Any]) -> str | None:
    for parameter in group["params"]:
        if parameter.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            return f"a parameter is {parameter.dtype}"
    if group.get("differentiable") or group.get("capturable"):
        return "it is capturable or differentiable, which rounds the bias correction to the parameter's dtype"
    reasons = inverse_sgd.reason if kind is torch.optim.SGD else inverse_adam.reason
    return reasons(group)


class InverseUndo:
    """Takes a step back by solving its equations; made just before the step.

    Parameters
    ----------
    optimizer
        Accepted by `refuse_unless_invertible`.
    gradients
        What the step used, by parameter.
    """

    parameter_bytes = state_bytes = host_bytes = 0

    def __init__(self, optimizer: torch.optim.Optimizer, gradients: Mapping[torch.Tensor, torch.Tensor]) -> None:
        refuse_unless_invertible(optimizer)
        self._optimizer = optimizer
        self._gradients = gradients
        self._solve, self._names = _KINDS[type(optimizer)]
        # a parameter that has no state yet starts from zero, which comes back exactly
        self._fresh = {id(p) for p in gradients if not _has(optimizer, p, self._names)}
        self._known = set(optimizer.state)

    @staticmethod
    def holds(optimizer: torch.optim.Optimizer, square_sum: float) -> bool:
        """Whether gradients with this sum of squares leave numbers that can be computed back.

        Gradients so large that their squares, or what they move, overflow would leave infinities.
        """
        largest = math.sqrt(square_sum)
        for group in optimizer.param_groups:
            reach = largest * max(1.0, float(group["lr"]))
            need = reach if isinstance(optimizer, torch.optim.SGD) else max(reach, square_sum)
            if any(not need < torch.finfo(p.dtype).max / 16 for p in group["params"]):
                return False
        return True

    @torch.no_grad()
    def restore(self) -> UndoError:
        """Compute parameters and state back; the groups must hold the settings of the step.

        Raises
        ------
        RunError
            If the step left infinities or NaN, from which nothing comes back.
        """
        worst: dict[str, float] = {"parameter": 0.0}
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                gradient = self._gradients.get(parameter)
                if gradient is not None:
                    self._undo(group, parameter, gradient, worst)
        for key in [key for key in self._optimizer.state if key not in self._known]:
            del self._optimizer.state[key]
        return UndoError(parameter=worst.pop("parameter"), state=worst)

    def _undo(
        self, group: Mapping[str, Any], parameter: torch.Tensor, gradient: torch.Tensor, worst: dict[str, float]
    ) -> None:
        state = self._optimizer.state[parameter]
        fresh = id(parameter) in self._fresh
        tensors = {name: local(state[name]) for name in self._names if state.get(name) is not None}
        step = float(state["step"]) if "step" in state else 0.0
        parameter, gradient = local(parameter), local(gradient)
        precision = Precision.of(parameter.dtype)
        for cut in _cuts(parameter):
            old = self._solve(
                group,
                cut(parameter).to(precision.solving),
                cut(gradient).to(precision.solving),
                {name: cut(tensor).to(precision.solving) for name, tensor in tensors.items()},
                step=step,
                fresh=fresh,
                precision=precision,
            )
            for name, (values, bound) in old.items():
                if not bool(torch.isfinite(values).all()):
                    raise RunError(
                        f"the {name} of a parameter of shape {tuple(parameter.shape)} cannot be computed back: the "
                        f"step left infinities or NaN in it; {_USE}"
                    )
                cut(parameter if name == "parameter" else tensors[name]).copy_(values)
                if bound.numel():
                    worst[name] = max(worst.get(name, 0.0), float(bound.max()))
        if fresh:
            state.clear()
        elif "step" in state:
            state["step"] -= 1


def _has(optimizer: torch.optim.Optimizer, parameter: torch.Tensor, names: Collection[str]) -> bool:
    # reading optimizer.state[p] would create an entry
    state = optimizer.state.get(parameter, {})
    return any(state.get(name) is not None for name in names)


def _cuts(like: torch.Tensor) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """Slices along the first dimension, so that the float64 copies stay small."""
    if like.dim() == 0 or like.numel() <= _CHUNK:
        yield lambda tensor: tensor
        return
    rows = max(1, _CHUNK * len(like) // like.numel())
    for start in range(0, len(like), rows):
        yield lambda tensor, start=start: tensor[start : start + rows]  # type: ignore[misc]
