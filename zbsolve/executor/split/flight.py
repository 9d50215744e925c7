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
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from zbsolve.errors import InvalidInput
from zbsolve.executor.split.arriving import arrived
from zbsolve.executor.split.held import Storages
from zbsolve.executor.split.waiting import WeightQueue

__all__ = ["Flight", "Root"]


class Root:
    """Where a backward starts for one output: its edge into the graph, and the shape of its gradient."""

    __slots__ = ("device", "dtype", "edge", "is_loss", "shape")

    def __init__(self, output: torch.Tensor, is_loss: bool) -> None:
        self.is_loss = is_loss and not output.shape
        self.edge: GradientEdge = get_gradient_edge(output)
        self.shape = output.shape
        self.dtype = output.dtype
        self.device = output.device

    def gradient(self, given: torch.Tensor | None) -> torch.Tensor | None:
        """The gradient to start with: the given one, 1 for a loss without, None for others."""
        if given is None:
            return torch.ones((), dtype=self.dtype, device=self.device) if self.is_loss else None
        if given.shape != self.shape:
            raise InvalidInput(f"the gradient has shape {tuple(given.shape)}, its output {tuple(self.shape)}")
        return given


class Flight:
    """The state of one microbatch between its forward and its W.

    Parameters
    ----------
    wanted
        Which inputs want a gradient.
    queue
        For W; None where the forward was not prepared for a split.

    Attributes
    ----------
    caught
        The gradients of the wanted inputs, once B has run.
    inputs
        Weak references to the memory of the inputs, where the stage is watched.
    """

    __slots__ = ("caught", "inputs", "queue", "roots", "wanted", "weights_wait")

    def __init__(self, wanted: Sequence[bool], queue: WeightQueue | None) -> None:
        self.wanted = wanted
        self.queue = queue
        self.caught: list[torch.Tensor | None] = []
        self.roots: tuple[Root | None, ...] = ()
        self.inputs: Storages | None = None
        self.weights_wait = False

    def set_outputs(self, outputs: Sequence[Any], *, are_losses: bool) -> None:
        """Note where a backward will start, and whether the scalars are losses."""
        self.roots = tuple(
            Root(o, are_losses) if isinstance(o, torch.Tensor) and o.requires_grad else None for o in outputs
        )

    def start(self, gradients: Sequence[torch.Tensor | None]) -> tuple[list[GradientEdge], list[torch.Tensor]]:
        """Take the edges and gradients of the outputs that have both; the graph is let go of."""
        if len(gradients) != len(self.roots):
            raise InvalidInput(f"{len(gradients)} gradients were given for {len(self.roots)} outputs")
        edges, starts = [], []
        for root, given in zip(self.roots, gradients, strict=True):
            gradient = None if root is None else root.gradient(given)
            if root is not None and gradient is not None:
                edges.append(root.edge)
                starts.append(gradient)
        self.roots = ()
        return edges, starts

    def take_input_gradients(self) -> tuple[torch.Tensor | None, ...]:
        """The gradients of the inputs, None where none is wanted or none came."""
        caught, self.caught, self.inputs = iter(self.caught), [], None
        return tuple(arrived(next(caught, None)) if want else None for want in self.wanted)
