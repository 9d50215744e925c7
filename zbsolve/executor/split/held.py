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

__all__ = ["HeldBytes", "Storages", "Watch", "storages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBytes:
    """Bytes alive on account of microbatches in flight; every storage in one category only.

    Parameters
    ----------
    queued
        What W needs: inputs and output gradients of split modules.
    ready
        Gradients that B has computed (norms, fallback), until W adds them.
    inputs
        What the stage was called with, until B, as long as anybody keeps it. None where the stage is not watched.
    saved
        All else that was made by the stage and still lives: what autograd saved for B, and outputs
        that somebody keeps. None where the stage is not watched.
    """

    queued: int
    ready: int
    inputs: int | None
    saved: int | None

    @property
    def total(self) -> int:
        """All categories together."""
        return self.queued + self.ready + (self.inputs or 0) + (self.saved or 0)


class Storages:
    """Memory of tensors, weakly: what of it is still there can be asked later."""

    def __init__(self, tensors: Iterable[torch.Tensor] = ()) -> None:
        self._noted: dict[int, tuple[StorageWeakRef, int]] = {}
        for tensor in tensors:
            self.note(tensor)

    def note(self, tensor: torch.Tensor) -> None:
        """Add the memory of a tensor."""
        storage = tensor.untyped_storage()
        # a weak reference keeps the identity from being used again
        if storage._cdata not in self._noted:
            self._noted[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())  # type: ignore[no-untyped-call]

    def alive(self) -> dict[int, int]:
        """The bytes of what is still there, by identity."""
        gone = [key for key, (reference, _) in self._noted.items() if reference.expired()]  # type: ignore[no-untyped-call]
        for key in gone:
            del self._noted[key]
        return {key: size for key, (_, size) in self._noted.items()}


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Context that notes the storages of all that is computed in it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made = Storages()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        # a view or a result written into what was given makes no storage
        given = {a.untyped_storage()._cdata for a in tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)}
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor) and value.untyped_storage()._cdata not in given:
                self.made.note(value)
        return result


def storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """The bytes of each storage behind the tensors, by its identity."""
    found = (t.untyped_storage() for t in tensors)
    return {s._cdata: s.nbytes() for s in found}
