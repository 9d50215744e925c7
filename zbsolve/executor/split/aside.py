"""Keeping B's hands off ``.grad``.

Autograd adds the gradient of a parameter that it knows to ``.grad`` when B runs, although the
gradient belongs to W. So B finds every ``.grad`` empty, what it leaves there is taken away for W,
and the sums of earlier microbatches come back::

               before B      during B            after B
    p.grad     sum 0..k-1    empty -> g of k     sum 0..k-1     and the queue holds g
    q.grad     sum 0..k-1    empty               sum 0..k-1     (q was split: nothing came)

Most parameters are of the second sort; looking costs a tenth of a microsecond each.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

import torch

__all__ = ["GradientsAside"]


class GradientsAside:
    """Context in which parameters have no ``.grad`` but what is computed in it.

    Attributes
    ----------
    found
        Once left without an error: the parameters that got a gradient, each with it.
    """

    __slots__ = ("_before", "_parameters", "found")

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._parameters = parameters
        self._before: list[torch.Tensor | None] = []
        self.found: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __enter__(self) -> GradientsAside:
        for parameter in self._parameters:
            gradient = parameter.grad
            self._before.append(gradient)
            if gradient is not None:
                parameter.grad = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for parameter, before in zip(self._parameters, self._before, strict=True):
            gradient = parameter.grad
            if gradient is not None:
                self.found.append((parameter, gradient))
                parameter.grad = before
            elif before is not None:
                parameter.grad = before
