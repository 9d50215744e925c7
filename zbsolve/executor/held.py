"""Bytes that a microbatch holds on a stage: what autograd saved and what the runtime keeps.

On the CPU there is no allocator to ask, so `SavedTensors` watches every tensor that autograd
saves. Each saved tensor is wrapped when autograd packs it; the wrapper dies with the graph node
that keeps it, so the wrappers alive at any moment are what is held then::

    forward:  pack(x) -> wrapper, kept by its node      alive = {x, ...}
    backward: the node goes, its wrapper with it        alive = {}

Storages are counted once however many tensors look at them, and whole, since a view keeps all of
its storage. Parameters and buffers are static, so they are left out. Tensors kept outside autograd's
own saving (attributes of a custom `autograd.Function`, inputs inside a checkpointed block) are not
seen. On CUDA the caching allocator knows it all.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType

import torch

from zbsolve.executor.borders import Border
from zbsolve.executor.stagework import StageWork

__all__ = ["Held", "SavedTensors", "held_bytes", "storage_bytes"]


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes that one microbatch holds after F and after B, and what its operations need on top."""

    after_forward: int
    after_input: int
    workspace: int


def held_bytes(work: StageWork, border: Border, device: torch.device) -> Held:
    """Run a stage once and see what it holds; the gradients of its weights must be there already."""
    if device.type == "cuda":
        return _held_by_allocator(work, border, device)
    static = [*work.module.parameters(), *work.module.buffers()]
    with SavedTensors() as saved:
        flight = work.forward(border.leaves())
    after_forward = storage_bytes([*saved.tensors(), *flight.held()], without=static)
    work.backward_input(flight, border.output_grads)
    after_input = storage_bytes([*saved.tensors(), *flight.held()], without=static)
    work.backward_weight(flight)
    return Held(after_forward, after_input, 0)


def _held_by_allocator(work: StageWork, border: Border, device: torch.device) -> Held:
    """Differences of the caching allocator's bytes; workspace is what the peaks exceed them by."""

    def held() -> int:
        torch.cuda.synchronize(device)
        return torch.cuda.memory_allocated(device) - base

    def peak() -> int:
        torch.cuda.synchronize(device)
        highest = torch.cuda.max_memory_allocated(device) - base
        torch.cuda.reset_peak_memory_stats(device)
        return highest

    torch.cuda.synchronize(device)
    base = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    flight = work.forward(border.leaves())
    after_forward = held()
    extra = [peak() - after_forward]
    # the gradient comes in a buffer of its own, which a split backward keeps
    work.backward_input(flight, tuple(None if g is None else g.clone() for g in border.output_grads))
    for leaf in flight.inputs:
        leaf.grad = None
    after_input = held()
    extra.append(peak() - max(after_forward, after_input))
    work.backward_weight(flight)
    extra.append(peak() - after_input)
    del flight
    flight = work.forward(border.leaves())
    peak()
    work.backward(flight, border.output_grads)
    extra.append(peak() - after_forward)
    return Held(max(after_forward, 0), max(after_input, 0), max(0, *extra))


class _Saved:
    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class SavedTensors:
    """Context in which autograd's saved tensors are watched; usable after it is left."""

    def __init__(self) -> None:
        self._alive: weakref.WeakSet[_Saved] = weakref.WeakSet()
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)

    def _pack(self, tensor: torch.Tensor) -> _Saved:
        saved = _Saved(tensor)
        self._alive.add(saved)
        return saved

    def __enter__(self) -> SavedTensors:
        self._hooks.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooks.__exit__(kind, error, trace)

    def tensors(self) -> list[torch.Tensor]:
        """The saved tensors that are still kept by some graph node."""
        return [saved.tensor for saved in self._alive]


def _unpack(saved: _Saved) -> torch.Tensor:
    return saved.tensor


def storage_bytes(tensors: Iterable[torch.Tensor], *, without: Iterable[torch.Tensor] = ()) -> int:
    """Bytes of the storages behind tensors, each counted once, those behind `without` not at all."""
    known = {_key(t) for t in without}
    total = 0
    for tensor in tensors:
        key = _key(tensor)
        if key not in known:
            known.add(key)
            total += tensor.untyped_storage().nbytes()
    return total


def _key(tensor: torch.Tensor) -> tuple[str, int]:
    storage = tensor.untyped_storage()
    # an address names a storage on its device; empty ones share address 0 and weigh nothing
    return str(tensor.device), storage.data_ptr()
