"""What microbatches in flight keep alive, in bytes.

Tensors have many holders (autograd's nodes, closures of checkpointed functions, contexts of custom
functions), and asking them all is hopeless. So `Watch` looks the other way round: it notes every
storage that an operation makes while a stage runs, weakly, and later asks which are still there::

    F    a = f(x)   b = g(a)   y = h(b)        noted: a b y
    ...  whoever held a has let it go          alive: b y      -> 2 storages, each counted once

Watching costs a call of Python for each operation, so it is for measuring.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["HeldBytes", "Watch", "storages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBytes:
    """Bytes alive on account of microbatches in flight; every storage in one category only.

    Parameters
    ----------
    inputs
        What the stage was called with, until B.
    queued
        What W needs: inputs and output gradients of split modules.
    found
        Gradients that B had to compute, until W.
    saved
        All else that was made by the stage and still lives: what autograd saved for B, and outputs
        that someone still holds. None where the stage is not watched.
    """

    inputs: int
    queued: int
    found: int
    saved: int | None

    @property
    def total(self) -> int:
        """All categories together."""
        return self.inputs + self.queued + self.found + (self.saved or 0)


class Watch(TorchDispatchMode):
    """Context that notes the storages of all that is computed in it."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                # a weak reference keeps the address from being used again
                if storage._cdata not in self._seen:
                    self._seen[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return result

    def alive(self) -> dict[int, int]:
        """The bytes of each storage that is still there, by its identity."""
        gone = [key for key, (reference, _) in self._seen.items() if reference.expired()]
        for key in gone:
            del self._seen[key]
        return {key: size for key, (_, size) in self._seen.items()}


def storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """The bytes of each storage behind the tensors, by its identity."""
    found = (t.untyped_storage() for t in tensors)
    return {s._cdata: s.nbytes() for s in found}
