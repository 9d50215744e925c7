"""One microbatch in flight on one stage: what must live from its forward to its W.

::

                 forward          B                W
    inputs       leaves           gone (their .grad is handed back)
    edges        into the graph   gone: the graph dies with them
    queue        empty            x, dy ...        gone

The outputs themselves are not among it. Autograd can start from the *edge* that an output hangs on,
so the tensor that was sent to the next stage is free as soon as the receiver has it (unless some
operation saved it for its own backward).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from zbsolve.errors import InvalidInput, RunError
from zbsolve.executor.split.queue import WeightQueue

__all__ = ["Flight", "Root"]


class Root:
    """Where a backward starts for one output: its edge into the graph, and the shape of its gradient."""

    __slots__ = ("device", "dtype", "edge", "shape")

    def __init__(self, output: torch.Tensor) -> None:
        self.edge: GradientEdge = get_gradient_edge(output)
        self.shape = output.shape
        self.dtype = output.dtype
        self.device = output.device

    def gradient(self, given: torch.Tensor | None) -> torch.Tensor | None:
        """The gradient to start with: the given one, 1 for a scalar without, None for others."""
        if given is None:
            return torch.ones(self.shape, dtype=self.dtype, device=self.device) if not self.shape else None
        if given.shape != self.shape:
            raise InvalidInput(f"the gradient has shape {tuple(given.shape)}, its output {tuple(self.shape)}")
        return given


class Flight:
    """The state of one microbatch between its forward and its W.

    Attributes
    ----------
    inputs
        What the stage was called with; those that want a gradient are leaves of the graph.
    roots
        One for each output; None where it has no gradient.
    queue
        For W; None where the forward was not prepared for a split.
    """

    __slots__ = ("inputs", "queue", "roots", "weights_wait")

    def __init__(self, inputs: Sequence[Any], queue: WeightQueue | None) -> None:
        self.inputs: tuple[Any, ...] | None = tuple(inputs)
        self.queue = queue
        self.roots: tuple[Root | None, ...] | None = None
        self.weights_wait = False

    def set_outputs(self, outputs: Sequence[Any]) -> None:
        """Note where a backward will start."""
        self.roots = tuple(Root(o) if isinstance(o, torch.Tensor) and o.requires_grad else None for o in outputs)

    def start(self, gradients: Sequence[torch.Tensor | None]) -> tuple[list[GradientEdge], list[torch.Tensor]]:
        """Take the edges and gradients of the outputs that have both; the graph is let go of."""
        if self.roots is None:
            raise RunError("its forward has not ended")
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
        """The gradients of the inputs, None where none is wanted or none came; the inputs are let go of."""
        inputs, self.inputs = self.inputs or (), None
        return tuple(x.grad if isinstance(x, torch.Tensor) and x.requires_grad else None for x in inputs)
