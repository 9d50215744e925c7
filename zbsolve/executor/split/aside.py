"""Keeping B's hands off ``.grad``.

Autograd adds the gradient of a parameter that it knows to ``.grad`` when B runs, although the
gradient belongs to W. So B finds every ``.grad`` empty, what it leaves there is taken away for W,
and the sums of earlier microbatches come back::

               before B      during B            after B
    p.grad     sum 0..k-1    empty -> g of k     sum 0..k-1     and the queue holds g
    q.grad     sum 0..k-1    empty               sum 0..k-1     (q was split: nothing came)

Most parameters are of the second sort; looking costs a tenth of a microsecond each. Hooks that want
to see ``.grad`` after an addition are put aside, too: W runs them.

Within B a reentrant checkpoint starts a run of autograd of its own, which adds to ``.grad`` by itself. Where
there are several runs, each addition is caught as it happens, by a hook.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch

__all__ = ["GradientsAside"]


class GradientsAside:
    """Context in which parameters have no ``.grad`` but what is computed in it.

    Parameters
    ----------
    parameters
        Which; a tied one may stand there twice.
    each
        Called with parameter and gradient at each addition, from within the run of autograd that makes it; by
        default what is there in the end is in `found`.

    Attributes
    ----------
    found
        Once left: the parameters that got a gradient, each with it.
    """

    __slots__ = ("_before", "_catchers", "_each", "_hooks", "_parameters", "found")

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        each: Callable[[torch.Tensor, torch.Tensor], None] | None = None,
    ) -> None:
        self._parameters = parameters
        self._each = each
        self._catchers: list[tuple[torch.Tensor, Any, bool]] = []
        self._before: list[torch.Tensor | None] = []
        self._hooks: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self.found: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __enter__(self) -> GradientsAside:
        parameters = self._parameters
        self._before = [p.grad for p in parameters]
        for parameter, gradient in zip(parameters, self._before, strict=True):
            if gradient is not None:
                parameter.grad = None
        for parameter in [p for p in parameters if p._post_accumulate_grad_hooks]:
            hooks = parameter._post_accumulate_grad_hooks
            # autograd looks into this very dictionary, so it has to be emptied, not replaced
            self._hooks.append((hooks, dict(hooks)))
            hooks.clear()
        if self._each is not None:
            for parameter in {id(p): p for p in self._parameters if p.requires_grad and p.is_leaf}.values():
                bare = parameter._post_accumulate_grad_hooks is None
                catcher = parameter.register_post_accumulate_grad_hook(self._catch)  # type: ignore[no-untyped-call]
                self._catchers.append((parameter, catcher, bare))
        return self

    def _catch(self, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        if gradient is not None and self._each is not None:
            parameter.grad = None
            self._each(parameter, gradient)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for parameter, catcher, bare in self._catchers:
            catcher.remove()
            if bare:
                parameter._post_accumulate_grad_hooks = None  # type: ignore[assignment]
        for parameter in self._parameters:
            gradient = parameter.grad
            if gradient is not None:
                self.found.append((parameter, gradient))
                # a tied parameter stands here twice
                parameter.grad = None
        for parameter, before in zip(self._parameters, self._before, strict=True):
            if before is not None:
                parameter.grad = before
        for hooks, kept in self._hooks:
            hooks.update(kept)
