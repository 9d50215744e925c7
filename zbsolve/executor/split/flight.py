"""One microbatch in flight on one stage: what must live from its forward to its W.

::

                 forward          B                W
    edges        into the graph   gone: the graph dies with them
    caught       empty            gradients of the inputs, handed back
    queue        empty            x, dy ...        gone

Neither inputs nor outputs are among it. Autograd can start from the *edge* that an output hangs on,
so the tensor that was sent to the next stage is free as soon as the receiver has it (unless some
operation saved it for its own backward), and the input as soon as no operation needs it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from zbsolve.errors import InvalidInput
from zbsolve.executor.split.arriving import arrived
from zbsolve.executor.split.held import Storages
from zbsolve.executor.split.waiting import WeightQueue

__all__ = ["Flight", "Root"]


class Root:
    """Where a backward starts for one output: its edge into the graph, and the shape of its gradient."""

    __slots__ = ("edge", "loss", "shape")

    def __init__(self, output: torch.Tensor, is_loss: bool) -> None:
        node = output.grad_fn
        self.edge = get_gradient_edge(output) if node is None else GradientEdge(node, output.output_nr)
        self.shape = output.shape
        # of a loss: type and device of the 1 that its backward starts with
        self.loss = (output.dtype, output.device) if is_loss and not self.shape else None

    def gradient(self, given: torch.Tensor | None) -> torch.Tensor | None:
        """The gradient to start with: the given one, 1 for a loss without, None for others."""
        if given is None:
            return None if self.loss is None else torch.ones((), dtype=self.loss[0], device=self.loss[1])
        if given.shape != self.shape:
            raise InvalidInput(f"the gradient has shape {tuple(given.shape)}, its output {tuple(self.shape)}")
        return given


class Flight:
    """The state of one microbatch between its forward and its W.

    Parameters
    ----------
    inputs
        How many the stage is called with.
    queue
        For W; None where the forward was not prepared for a split.

    Attributes
    ----------
    caught
        The gradients of the inputs, once B has run: None for those that want none or got none.
    inputs
        Weak references to the memory of the inputs, where the stage is watched.
    """

    __slots__ = ("caught", "inputs", "queue", "roots", "weights_wait")

    def __init__(self, inputs: int, queue: WeightQueue | None) -> None:
        self.queue = queue
        self.caught: list[torch.Tensor | None] = [None] * inputs
        self.roots: list[Root | None] = []
        self.inputs: Storages | None = None
        self.weights_wait = False

    def hand_out(self, outputs: Sequence[torch.Tensor | None], *, are_losses: bool) -> tuple[torch.Tensor | None, ...]:
        """Note where a backward will start; the outputs, detached, which say themselves whether they want a gradient.

        Parameters
        ----------
        are_losses
            The scalars among them are losses.
        """
        handed: list[torch.Tensor | None] = []
        for output in outputs:
            root, out = None, None
            if output is not None:
                out = output.detach()
                if output.requires_grad:
                    root = Root(output, are_losses)
                    out.requires_grad_()
                out = arrived(out)
            self.roots.append(root)
            handed.append(out)
        return tuple(handed)

    def start(self, gradients: Sequence[torch.Tensor | None]) -> tuple[list[GradientEdge], list[torch.Tensor]]:
        """Take the edges and gradients of the outputs that have both; the graph is let go of."""
        if len(gradients) != len(self.roots):
            raise InvalidInput(f"{len(gradients)} gradients were given for {len(self.roots)} outputs")
        edges, starts = [], []
        for root, given in zip(self.roots, gradients, strict=True):
            if root is not None:
                gradient = root.gradient(given)
                if gradient is not None:
                    edges.append(root.edge)
                    starts.append(gradient)
        self.roots = []
        return edges, starts

    def take_input_gradients(self) -> tuple[torch.Tensor | None, ...]:
        """The gradients of the inputs, None where none is wanted or none came."""
        caught, self.caught, self.inputs = self.caught, [], None
        return tuple(map(arrived, caught))
