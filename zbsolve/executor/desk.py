"""What the ready-made functions of a rank work with: its desk, and the stages that they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from zbsolve.lowering import Do, Lowered

__all__ = ["AfterForward", "Call", "Desk", "Mark", "StageWork", "empty_desk"]

Call = Callable[[], None]
Mark = Callable[[], Any]
AfterForward = Callable[[int, Sequence[Any], Sequence[Any], bool], None]
"""Is given the microbatch, the inputs, the outputs or the loss, and whether those are the loss."""


class StageWork(Protocol):
    """A stage that can run its backward in two halves; `zbsolve.executor.split.SplitStage` is one."""

    module: torch.nn.Module

    def forward(
        self,
        key: int,
        *inputs: Any,
        split: bool = True,
        finish: Callable[[Any], Any] | None = None,
        checkpoint: bool = False,
        moves: bool = False,
        stays: Sequence[Any] = (),
    ) -> tuple[Any, ...]:
        """Run the module on a microbatch; outputs are detached and say whether they want a gradient."""

    def recompute(self, key: int) -> None:
        """Run it once more, where it has kept a checkpoint alone."""

    def offload(self, key: int, mark: Mark) -> tuple[Any, Any]:
        """Start to move away what its forward has saved; the marks of start and end."""

    def release(self, key: int) -> None:
        """Let go of it, once it is copied."""

    def reload(self, key: int, mark: Mark) -> tuple[Any, Any]:
        """Start to bring it back; the marks of start and end."""

    def arrive(self, key: int) -> None:
        """Wait until it is back."""

    def backward_input(self, key: int, grad_outputs: Sequence[Any]) -> tuple[Any, ...]:
        """The gradients of the inputs."""

    def backward_weight(self, key: int) -> None:
        """The gradients of the weights, added to ``.grad``."""

    def backward(self, key: int, grad_outputs: Sequence[Any]) -> tuple[Any, ...]:
        """Both in one."""

    def abandon(self) -> None:
        """Drop every microbatch in flight."""


@dataclass(slots=True)
class Desk:
    """What the closures of one rank read and write.

    Parameters
    ----------
    mail
        Tensors by message.
    inputs, targets
        By microbatch, where this rank has stage 0 and the last stage.
    losses
        By microbatch, detached, as the loss function gave them.
    input_gradients
        By microbatch, what stage 0 found for its inputs, where those want a gradient.
    marks
        Start and end of every operation, by its place among the computes of the row.
    passing
        Three marks a message: sent, waited for from, taken; a rank fills in its own.
    divisor
        What the loss is divided by.
    scale
        What the loss is multiplied by after that.
    """

    mail: list[Any]
    inputs: list[Any]
    targets: list[Any]
    losses: list[Any]
    input_gradients: list[Any]
    marks: list[Any]
    passing: list[Any]
    divisor: int = 1
    scale: float = 1.0


def empty_desk(lowered: Lowered, rank: int, microbatches: int) -> Desk:
    """A desk with a place for everything."""
    computes = sum(action.do is Do.COMPUTE for action in lowered.rows[rank])
    return Desk(
        mail=[None] * len(lowered.messages),
        inputs=[None] * microbatches,
        targets=[None] * microbatches,
        losses=[None] * microbatches,
        input_gradients=[None] * microbatches,
        marks=[None] * (2 * computes),
        passing=[None] * (3 * len(lowered.messages)),
    )
