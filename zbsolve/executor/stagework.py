"""The operations of one stage, done the way the runtime does them, one microbatch at a time.

::

    forward          inputs -> outputs (-> loss on the last stage)
    backward         both gradients in one: plain autograd, as an order with fused backwards runs it
    backward_input   the gradients of the inputs; what the weights still need stays in the stage
    backward_weight  the gradients of the weights

A profile must foretell what the runtime will do, so this runs the runtime's own `SplitStage`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from zbsolve.errors import InvalidInput
from zbsolve.executor.carrying import with_carry
from zbsolve.executor.split import HeldBytes, SplitReport, SplitStage
from zbsolve.executor.target import LossFn, refuse_coroutine

__all__ = ["InFlight", "StageWork", "fresh_leaf", "tensors_of"]

Tensors = tuple[torch.Tensor, ...]
Gradients = tuple[torch.Tensor | None, ...]


@dataclass(slots=True)
class InFlight:
    """One microbatch between its forward and its last backward.

    Parameters
    ----------
    key
        Its name on the stage.
    outputs
        Detached; whether they want a gradient they say themselves. Of the last stage the loss alone.
    loss
        Of the last stage.
    """

    key: int
    outputs: Tensors
    loss: torch.Tensor | None = None


class StageWork:
    """One stage of a model with what its operations need.

    Parameters
    ----------
    number
        Of the stage.
    module
        Of the stage.
    loss_fn, target
        On the last stage; None elsewhere.
    watch
        Whether to note all that lives, for `held`; slows the stage down.
    """

    def __init__(
        self,
        number: int,
        module: torch.nn.Module,
        loss_fn: LossFn | None = None,
        target: torch.Tensor | None = None,
        *,
        watch: bool = False,
    ) -> None:
        self.number = number
        self.module = module
        self.loss_fn = loss_fn
        self.target = target
        # a profile is of a whole sequence, or of the first slice, so nothing is carried
        self._stage = with_carry(SplitStage(module, name=f"stage {number}", watch=watch), 1)
        self._keys = itertools.count()

    def watched(self) -> StageWork:
        """The same stage, noting what lives."""
        return StageWork(self.number, self.module, self.loss_fn, self.target, watch=True)

    def forward(
        self, inputs: Tensors, *, split: bool = True, checkpoint: bool = False, moves: bool = False
    ) -> InFlight:
        """Run the module, and the loss on the last stage; `split` is False ahead of `backward`.

        With `checkpoint` the inputs alone are kept, with `moves` `move_out` may come next.
        """
        key = next(self._keys)
        finish = None if self.loss_fn is None else self._finisher(self.loss_fn)
        outputs = self._stage.forward(
            key, *inputs, split=split, finish=finish, checkpoint=checkpoint, moves=moves, stays=(self.target,)
        )
        return InFlight(key, outputs, None if finish is None else outputs[0])

    def _finisher(self, loss_fn: LossFn) -> Callable[[Any], torch.Tensor]:
        def finish(output: Any) -> torch.Tensor:
            tensors_of(output, f"stage {self.number} returned")
            loss = loss_fn(output, self.target)
            refuse_coroutine(loss, "the loss function returned")
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
                raise InvalidInput("the loss function must return a tensor with one element")
            if loss.is_complex():
                raise InvalidInput(
                    f"the loss function must return a real number, got {loss.dtype}: take its .abs() or .real"
                )
            return loss.reshape(()) if loss.dim() else loss

        return finish

    def backward(self, flight: InFlight, output_grads: Gradients) -> Gradients:
        """Both gradients in one; returns those of the inputs."""
        return self._stage.backward(flight.key, output_grads)

    def backward_input(self, flight: InFlight, output_grads: Gradients) -> Gradients:
        """The gradients of the inputs; what the weights need stays in the stage."""
        return self._stage.backward_input(flight.key, output_grads)

    def backward_weight(self, flight: InFlight) -> None:
        """The gradients of the weights, added to ``.grad`` of the parameters."""
        self._stage.backward_weight(flight.key)

    def move_out(self, flight: InFlight) -> None:
        """Offload and release: what can be away in host memory is."""
        self._stage.offload(flight.key, lambda: None)
        self._stage.release(flight.key)

    def abandon(self) -> None:
        """Drop every microbatch in flight."""
        self._stage.abandon()

    def held(self) -> HeldBytes:
        """What microbatches in flight keep alive."""
        return self._stage.held_bytes()

    def report(self) -> SplitReport:
        """What of the weight gradients waits for W; after one has."""
        return self._stage.report()


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
