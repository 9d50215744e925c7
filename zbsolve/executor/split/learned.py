"""What a stage learns as it runs: what W does, what B has to compute all the same, and for how many positions.

::

    first F    positions
    every B    parameters whose gradients autograd has computed
    first W    arithmetic that waited for it          -> report
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from zbsolve.errors import RunError
from zbsolve.executor.split.flops import deferred_flops, fallback_flops, positions_of
from zbsolve.executor.split.install import SplitForwards
from zbsolve.executor.split.report import Fallback, SplitReport
from zbsolve.executor.split.waiting import Entry

__all__ = ["Learned"]

_UNKNOWN_USE = "used outside a module that can be split, or by a call that cannot be"


class Learned:
    """Of one stage."""

    def __init__(self) -> None:
        self._positions: int | None = None
        self._deferred_flops: int | None = None
        self._fallback: dict[int, torch.Tensor] = {}

    @property
    def complete(self) -> bool:
        """A microbatch has run through W, so there is something to report."""
        return self._deferred_flops is not None

    def see_inputs(self, inputs: Sequence[Any]) -> None:
        """A forward is called with these."""
        if self._positions is None:
            self._positions = positions_of(inputs)

    def see_fallback(self, parameters: Iterable[torch.Tensor]) -> None:
        """B has computed gradients of these."""
        for parameter in parameters:
            self._fallback.setdefault(id(parameter), parameter)

    def see_waiting(self, entries: Iterable[Entry]) -> None:
        """W is about to do these."""
        if self._deferred_flops is None:
            self._deferred_flops = deferred_flops(entries)

    def report(self, name: str, module: nn.Module, forwards: SplitForwards) -> SplitReport:
        """What is deferred and what is not.

        Raises
        ------
        RunError
            If no microbatch has run through W yet.
        """
        if self._deferred_flops is None:
            raise RunError(f"{name}: no microbatch has run through W yet; there is nothing to report")
        positions = self._positions or 1
        names = {id(p): own for own, p in module.named_parameters()}
        places = {key: place for place, key in enumerate(names)}
        found = dict(self._fallback)
        # what FSDP computes with is in no module when it is done
        found.update((id(p), p) for m in forwards.sharded for p in m.parameters() if p.requires_grad)
        fallback = tuple(
            Fallback(
                name=names[key],
                reason=forwards.reasons.get(key, _UNKNOWN_USE),
                flops=fallback_flops(parameter, positions),
            )
            for key, parameter in sorted(found.items(), key=lambda item: places.get(item[0], 0))
            if key in names and key not in forwards.norms
        )
        norms = (p for key, p in self._fallback.items() if key in forwards.norms)
        return SplitReport(
            stage=name,
            deferred_flops=self._deferred_flops,
            norm_flops=sum(fallback_flops(p, positions) for p in norms),
            fallback=fallback,
        )
