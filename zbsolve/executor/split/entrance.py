"""Where a stage's inputs enter its graph, and where their gradients come out.

The obvious way, to make each input a leaf, would forbid to write into it, and a model cut before a
`ReLU(inplace=True)` could not run. So inputs enter through one function, whose backward is the last
thing that happens in B::

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

__all__ = ["Entrance", "enter"]


class Entrance(torch.autograd.Function):
    """Identity, whose backward puts the gradients into a list."""

    @staticmethod
    def forward(ctx: Any, _ticket: torch.Tensor, caught: list[Any], *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Give every input a twin of the same memory; detached, since autograd protects views made in here."""
        ctx.set_materialize_grads(False)
        ctx.caught = caught
        return tuple(x.detach() for x in inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        """Catch the gradients."""
        ctx.caught[:] = gradients
        return (None,) * (2 + len(gradients))


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
        Is filled by B with the gradients of the wanted inputs, in their order.
    """
    entering = [x.detach() if isinstance(x, torch.Tensor) else x for x in inputs]
    places = [i for i, want in enumerate(wanted) if want]
    if places:
        twins = Entrance.apply(ticket, caught, *(entering[i] for i in places))  # type: ignore[no-untyped-call]
        for i, twin in zip(places, twins, strict=True):
            entering[i] = twin
    return entering
