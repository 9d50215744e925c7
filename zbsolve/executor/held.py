"""Bytes that a microbatch holds on a stage, as the runtime runs it.

On the CPU there is no allocator to ask, so a stage that notes all memory it makes (`SplitStage` with
``watch=True``) is asked what of it still lives, once the runtime has let go of what it lets go of::

    F    inputs in, outputs handed on      alive: what autograd saved, inputs among it        after_forward
    B    gradients handed on               alive: what W needs                                after_input
    F    with a checkpoint alone           alive: the inputs                                  checkpoint
    F    offload, release                  alive: inputs, and what others hold, too           stays

Parameters and buffers are static, so they are left out, as is what the receive slots hold. On CUDA the
caching allocator knows it all.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from zbsolve.errors import RunError
from zbsolve.executor.borders import Border
from zbsolve.executor.stagework import Gradients, StageWork

__all__ = ["Held", "held_bytes", "storage_bytes"]


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes that one microbatch holds after F and after B, and what its operations need on top.

    Parameters
    ----------
    after_forward, after_input
        After F, and after B until W.
    workspace
        What operations need beyond; 0 where it is not measured.
    checkpoint
        After an F that will be computed again; None if the stage cannot be.
    stays
        What is left after F of what has been moved to host memory; None if nothing can be.
    """

    after_forward: int
    after_input: int
    workspace: int
    checkpoint: int | None = None
    stays: int | None = None

    @property
    def checkpoint_bytes(self) -> int | None:
        """Of a profile: None where keeping the inputs alone would hold no less."""
        fewer = self.checkpoint is not None and self.checkpoint < self.after_forward
        return self.checkpoint if fewer else None

    @property
    def offload_bytes(self) -> int:
        """Of a profile: what of `after_forward` leaves the device."""
        return 0 if self.stays is None else max(self.after_forward - self.stays, 0)


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
    return Held(after_forward, after_input, 0, *_lighter(work, border, lambda: work.held().total))


def _lighter(work: StageWork, border: Border, held: Callable[[], int]) -> tuple[int | None, int | None]:
    """What a microbatch holds after F as a checkpoint, and while it is away; the stage must be empty."""

    def after(split: bool, *, moves: bool) -> int:
        try:
            flight = work.forward(border.leaves(), split=split, checkpoint=not moves, moves=moves)
            flight.outputs, flight.loss = (), None
            if moves:
                work.move_out(flight)
            return held()
        finally:
            work.abandon()
            gc.collect(0)

    found: list[int | None] = []
    for moves in (False, True):
        try:
            # a plain graph may keep other memory than a split one does
            found.append(max(after(split, moves=moves) for split in (True, False)))
        except (RunError, RuntimeError):  # the stage says why where a timetable asks for it
            found.append(None)
    return found[0], found[1]


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
    return Held(max(after_forward, 0), max(after_input, 0), max(0, *extra), *_lighter(work, border, held))


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
