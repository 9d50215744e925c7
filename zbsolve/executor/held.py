"""Bytes that a microbatch holds on a stage, as the runtime runs it.

On the CPU there is no allocator to ask, so a stage that notes all memory it makes (`SplitStage` with
``watch=True``) is asked what of it still lives, once the runtime has let go of what it lets go of::

    F    inputs in, outputs handed on      alive: what autograd saved, inputs among it        after_forward
    B    gradients handed on               alive: what W needs                                after_input

Parameters and buffers are static, so they are left out, as is what the receive slots hold. On CUDA the
caching allocator knows it all.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from zbsolve.executor.borders import Border
from zbsolve.executor.stagework import Gradients, StageWork

__all__ = ["Held", "held_bytes", "storage_bytes"]


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
    work = work.watched()
    # the first B of a stage has to find out what it cannot defer, and torch what an operation is called
    for _ in range(2):
        gc.collect(0)
        flight = work.forward(border.leaves())
        # handed on: whoever has it now counts it
        flight.outputs, flight.loss = (), None
        after_forward = work.held().total
        work.backward_input(flight, _received(border))
        after_input = work.held().total
        work.backward_weight(flight)
    return Held(after_forward, after_input, 0)


def _received(border: Border) -> Gradients:
    """The gradients of the outputs, each in a buffer of its own, of which nothing is kept but what is used."""
    return tuple(None if g is None else g.clone() for g in border.output_grads)


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
    flight.outputs, flight.loss = (), None
    after_forward = held()
    extra = [peak() - after_forward]
    work.backward_input(flight, _received(border))
    after_input = held()
    extra.append(peak() - max(after_forward, after_input))
    work.backward_weight(flight)
    extra.append(peak() - after_input)
    flight = work.forward(border.leaves(), split=False)
    flight.outputs, flight.loss = (), None
    peak()
    work.backward(flight, border.output_grads)
    extra.append(peak() - after_forward)
    return Held(max(after_forward, 0), max(after_input, 0), max(0, *extra))


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
