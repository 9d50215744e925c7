"""Where a stage's inputs enter its graph, and where their gradients come out.

The obvious way, to make each input a leaf, would forbid to write into it, and a model cut before a
`ReLU(inplace=True)` could not run. So each input enters through a function, whose backward is the last
thing that happens to its gradient in B::

    received x ---> Entrance ---> x' ---> the module       x' has the memory of x, a backward, and
                       |                                    may be written to
    B:  dx  <----------+                                    caught as it comes out

x itself is not kept: it lives on only if an operation saved it, or its owner keeps it. x and x' also
share the count of changes, so if the module writes into x', autograd finds out should the stage that
made x need it again (stages of one process hand over memory, not copies).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from zbsolve.executor.split.engine import direct

__all__ = ["Entrance", "enter"]


class Entrance(torch.autograd.Function):
    """Identity, whose backward puts the gradient into a list."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, _ticket: torch.Tensor, caught: list[torch.Tensor | None], place: int
    ) -> torch.Tensor:
        """Give the input a twin of the same memory; detached, since autograd protects views made in here."""
        ctx.set_materialize_grads(False)
        ctx.caught, ctx.place = caught, place
        return x.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        """Catch the gradient."""
        ctx.caught[ctx.place] = gradient
        return None, None, None, None


_pass = direct(Entrance)


def enter(
    inputs: Sequence[Any], wanted: Sequence[bool], ticket: torch.Tensor, caught: list[torch.Tensor | None]
) -> list[Any]:
    """Detach all inputs, and let those with a wanted gradient in through the entrance.

    Parameters
    ----------
    inputs
        Tensors and others.
    wanted
        One flag each.
    ticket
        A leaf that requires a gradient.
    caught
        One place each, where B puts the gradient of a wanted input.
    """
    entering = [x.detach() if isinstance(x, torch.Tensor) else x for x in inputs]
    for place, want in enumerate(wanted):
        if want:
            entering[place] = _pass(entering[place], ticket, caught, place)
    return entering
