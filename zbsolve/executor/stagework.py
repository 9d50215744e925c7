"""The operations of one stage, done the way `torch.distributed.pipelining` does them.

::

    forward          inputs -> outputs (-> loss on the last stage); inputs are leaves that want a gradient
    backward         both gradients in one: torch's B
    backward_input   torch's I: the gradients of the inputs, keeping what the weights still need
    backward_weight  torch's W

torch splits the backward by walking the autograd graph (`_backward.py`), except on stage 0, where
I does nothing and W runs the whole backward. A profile must foretell what torch's runtime will
do, so this does the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.pipelining._backward import (
    stage_backward,
    stage_backward_input,
    stage_backward_weight,
)

from zbsolve.errors import InvalidInput
from zbsolve.executor.target import LossFn, refuse_coroutine

__all__ = ["InFlight", "StageWork", "fresh_leaf", "tensors_of"]

Tensors = tuple[torch.Tensor, ...]
Gradients = tuple[torch.Tensor | None, ...]


@dataclass(slots=True)
class InFlight:
    """What a runtime keeps for one microbatch on one stage between its forward and its last backward."""

    inputs: Tensors
    outputs: Tensors = ()
    loss: torch.Tensor | None = None
    output_grads: Gradients = ()
    param_groups: list[dict[str, Any]] = field(default_factory=list)

    def held(self) -> Iterable[torch.Tensor]:
        """Every tensor that it refers to directly (what autograd saved is apart)."""
        yield from self.inputs
        yield from self.outputs
        if self.loss is not None:
            yield self.loss
        yield from (g for g in self.output_grads if g is not None)
        for group in self.param_groups:
            for gradients in group.get("grads") or ():
                yield from (g for g in gradients or () if g is not None)


@dataclass(frozen=True, slots=True)
class StageWork:
    """One stage of a model with what its operations need.

    Parameters
    ----------
    number
        Of the stage; 0 takes the model's inputs, which want no gradient.
    module
        Of the stage.
    loss_fn, target
        On the last stage; None elsewhere.
    """

    number: int
    module: torch.nn.Module
    loss_fn: LossFn | None = None
    target: torch.Tensor | None = None

    def forward(self, inputs: Tensors) -> InFlight:
        """Run the module, and the loss on the last stage."""
        flight = InFlight(inputs)
        output = self.module(*inputs)
        flight.outputs = tensors_of(output, f"stage {self.number} returned")
        if self.loss_fn is not None:
            flight.loss = self.loss_fn(output, self.target)
            refuse_coroutine(flight.loss, "the loss function returned")
            if not isinstance(flight.loss, torch.Tensor) or flight.loss.numel() != 1:
                raise InvalidInput("the loss function must return a tensor with one element")
        return flight

    def backward(self, flight: InFlight, output_grads: Gradients) -> Gradients:
        """Both gradients in one; returns those of the inputs."""
        if not self._differentiable(flight):
            return (None,) * len(flight.inputs)
        if flight.loss is not None:
            return tuple(stage_backward(flight.loss, None, flight.inputs))
        return tuple(stage_backward(flight.outputs, output_grads, flight.inputs))

    def backward_input(self, flight: InFlight, output_grads: Gradients) -> Gradients:
        """The gradients of the inputs; what the weights need stays in `flight`."""
        flight.output_grads = output_grads
        if self.number == 0 or not self._differentiable(flight):
            return (None,) * len(flight.inputs)
        roots = [flight.loss] if flight.loss is not None else list(flight.outputs)
        gradients, flight.param_groups = stage_backward_input(
            roots,
            None if flight.loss is not None else list(output_grads),  # type: ignore[arg-type]
            list(flight.inputs),
            self.module.parameters(),
        )
        if flight.loss is not None:
            for output in flight.outputs:
                if not output._is_view():
                    output.detach_()
        return tuple(gradients)

    def backward_weight(self, flight: InFlight) -> None:
        """The gradients of the weights, added to ``.grad`` of the parameters."""
        if self.number == 0:
            self.backward(flight, flight.output_grads)
        else:
            stage_backward_weight(self.module.parameters(), flight.param_groups)

    def _differentiable(self, flight: InFlight) -> bool:
        roots = flight.outputs if flight.loss is None else (flight.loss,)
        return any(root.requires_grad for root in roots)


def fresh_leaf(tensor: torch.Tensor, *, wants_grad: bool) -> torch.Tensor:
    """A copy with its own storage, as a receive buffer has, that is a leaf of autograd."""
    return tensor.detach().clone().requires_grad_(wants_grad and tensor.is_floating_point())


def tensors_of(value: object, what: str) -> Tensors:
    """A module's output as a tuple of tensors; `what` begins the message if it is something else."""
    if isinstance(value, torch.Tensor):
        return (value,)
    if isinstance(value, tuple | list) and value and all(isinstance(v, torch.Tensor) for v in value):
        return tuple(value)
    refuse_coroutine(value, what)
    raise InvalidInput(f"{what} a {type(value).__name__}; stages pass tensors or tuples of tensors on")
