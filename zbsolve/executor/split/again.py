"""A forward that keeps its inputs alone, to be run once more before its backward.

::

    F   forward(checkpoint=True)   runs the module; nothing that autograd saves is kept
        Checkpoint                 inputs, and where the random numbers stood
    C   recompute                  runs it once more, on the same inputs and the same random numbers
    B   backward ...               as after any forward

The first run is watched by autograd, as only so the outputs know whether they want a gradient, but each tensor
that it would save is let go at once. The second run leaves the random numbers and the buffers (running means,
counters) as it found them: a microbatch counts once.

Ranks may be threads of one process, which draw from one generator. So these runs hold a lock, and so do the other
forwards of a schedule with any of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from zbsolve.errors import RunError
from zbsolve.executor.kept import KeptBuffers

__all__ = ["DRAWING", "Checkpoint", "as_before", "nothing_saved"]

DRAWING = threading.RLock()
"""Held while random numbers are drawn that may have to be drawn again."""


class Checkpoint:
    """What a forward is run once more from.

    Parameters
    ----------
    inputs, keywords, wanted
        As the forward was called.
    split, finish, call
        The same.
    """

    __slots__ = ("_cpu", "_devices", "call", "finish", "inputs", "keywords", "split", "wanted")

    def __init__(
        self,
        inputs: tuple[Any, ...],
        keywords: Mapping[str, Any] | None,
        wanted: Sequence[bool],
        split: bool,
        finish: Callable[[Any], Any] | None,
        call: Callable[..., Any] | None = None,
    ) -> None:
        self.inputs, self.keywords, self.wanted = inputs, keywords, list(wanted)
        self.split, self.finish, self.call = split, finish, call
        self._cpu = torch.get_rng_state()
        on = {x.device for x in inputs if isinstance(x, torch.Tensor) and x.device.type == "cuda"}
        self._devices = {device: torch.cuda.get_rng_state(device) for device in on}

    def versions(self) -> list[int]:
        """How often each tensor among the inputs has been written to."""
        return [x._version for x in self.inputs if isinstance(x, torch.Tensor)]

    @contextmanager
    def drawn_again(self) -> Iterator[None]:
        """Context in which the random numbers are those of the first run; they go on from where they are after it."""
        cpu = torch.get_rng_state()
        devices = {device: torch.cuda.get_rng_state(device) for device in self._devices}
        try:
            self._set(self._cpu, self._devices)
            yield
        finally:
            self._set(cpu, devices)

    @staticmethod
    def _set(cpu: torch.Tensor, devices: Mapping[torch.device, torch.Tensor]) -> None:
        torch.set_rng_state(cpu)
        for device, state in devices.items():
            torch.cuda.set_rng_state(state, device)


@contextmanager
def nothing_saved(name: str) -> Iterator[None]:
    """Context in which autograd keeps no tensor for a backward."""

    def refuse(_: object) -> torch.Tensor:
        raise RunError(
            f"{name} takes a gradient inside its forward, so it cannot be computed again; solve without recomputation"
        )

    with saved_tensors_hooks(lambda _tensor: None, refuse):
        yield


@contextmanager
def as_before(module: nn.Module) -> Iterator[None]:
    """Context after which the buffers of a module hold what they held before it."""
    kept = KeptBuffers([module])
    try:
        yield
    finally:
        kept.put_back()
