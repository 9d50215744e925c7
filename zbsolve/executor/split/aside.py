"""Keeping B's hands off ``.grad``.

Autograd adds the gradient of a parameter that it knows to ``.grad`` when B runs, although the
gradient belongs to W. So B finds every ``.grad`` empty, what it leaves there is taken away for W,
and the sums of earlier microbatches come back::

               before B      during B            after B
    p.grad     sum 0..k-1    empty -> g of k     sum 0..k-1     and the queue holds g
    q.grad     sum 0..k-1    empty               sum 0..k-1     (q was split: nothing came)

Most parameters are of the second sort; looking costs a tenth of a microsecond each. Hooks that want
to see ``.grad`` after an addition are put aside, too: W runs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch

__all__ = ["GradientsAside"]


class GradientsAside:
    """Context in which parameters have no ``.grad`` but what is computed in it.

    Attributes
    ----------
    found
        Once left: the parameters that got a gradient, each with it.
    """

    __slots__ = ("_before", "_hooks", "_parameters", "found")

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._parameters = parameters
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._hooks: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self.found: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __enter__(self) -> GradientsAside:
        for parameter in self._parameters:
            gradient = parameter.grad
            if gradient is not None:
                self._before.append((parameter, gradient))
                parameter.grad = None
            hooks = parameter._post_accumulate_grad_hooks
            if hooks:
                # autograd looks into this very dictionary, so it has to be emptied, not replaced
                self._hooks.append((hooks, dict(hooks)))
                hooks.clear()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for parameter in self._parameters:
            gradient = parameter.grad
            if gradient is not None:
                self.found.append((parameter, gradient))
                # a tied parameter stands here twice
                parameter.grad = None
        for parameter, gradient in self._before:
            parameter.grad = gradient
        for hooks, kept in self._hooks:
            hooks.update(kept)
