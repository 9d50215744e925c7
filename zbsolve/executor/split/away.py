"""What autograd has saved in a forward, away in host memory until its backward.

::

    F   saving()      each tensor that autograd saves is held by a `Held`, and by nothing else in the graph
    U   offload       every memory behind them is copied to host memory, views and aliases of one memory once
    X   release       ... and let go of on the device
    L   reload        ... and brought back into new memory
    B   unpack        each `Held` shows the same view of it as before: same bytes, sizes, strides

Nothing is written to or taken from anybody: whoever else holds such a memory keeps it. Parameters, buffers and the
stage's inputs, which live in receive slots, stay where they are, as do tensors of other kinds than plain dense ones.

On CUDA the host memory is pinned, and each thread has a stream for either way on each device; the copies run beside
the computing, which waits for them in `release` and ahead of the backward, on the device alone. Elsewhere a copy is
done when it is asked for.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from zbsolve.errors import RunError
from zbsolve.executor.split.held import storages

__all__ = ["Away"]

Mark = Callable[[], Any]

_ENGINES = threading.local()


def _engines(device: torch.device) -> tuple[Any, Any]:
    """The streams on which this thread copies to host memory and back."""
    known: dict[torch.device, tuple[Any, Any]] = _ENGINES.__dict__.setdefault("of", {})
    if device not in known:
        known[device] = torch.cuda.Stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return known[device]


class _Memory:
    """The memory behind saved tensors, on the device, in host memory, or both."""

    __slots__ = ("device", "host", "there")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.device = tensor.device
        self.there: torch.Tensor | None = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
            tensor.untyped_storage()
        )
        self.host: torch.Tensor | None = None

    def copy_out(self) -> None:
        assert self.there is not None
        pinned = self.device.type == "cuda"
        self.host = torch.empty(self.there.shape, dtype=torch.uint8, pin_memory=pinned)
        self.host.copy_(self.there, non_blocking=pinned)


class _Held:
    """One saved tensor: itself, or a view of memory that was away."""

    __slots__ = ("__weakref__", "layout", "memory", "tensor", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        # detached: an output must not keep the node that saved it
        self.tensor: torch.Tensor | None = tensor.detach()
        self.version = tensor._version
        self.layout = tensor.dtype, tensor.storage_offset() if _plain(tensor) else 0, tensor.shape
        self.memory: _Memory | None = None

    @property
    def changed(self) -> bool:
        return self.tensor is not None and self.tensor._version != self.version


class _View(_Held):
    """One that can be shown again as a view of other memory."""

    __slots__ = ("strides",)

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor)
        self.strides = tensor.stride()

    def shown(self, name: str) -> torch.Tensor:
        assert self.memory is not None
        if self.memory.there is None:
            raise RunError(f"{name}: a backward of what is away in host memory; its reload comes first")
        dtype, offset, shape = self.layout
        empty = torch.empty(0, dtype=dtype, device=self.memory.device)
        return empty.set_(self.memory.there.untyped_storage(), offset, shape, self.strides)


def _plain(tensor: torch.Tensor) -> bool:
    """Whether it is nothing but a view of bytes."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)
        and tensor.device.type in ("cpu", "cuda")
    )


class Away:
    """What one microbatch's forward has saved on a stage.

    Parameters
    ----------
    name
        Of the stage, for messages.
    stays
        Tensors whose memory stays where it is.
    """

    def __init__(self, name: str, stays: Iterable[torch.Tensor]) -> None:
        self.name = name
        self.step = "forward"
        self._stays = frozenset(storages(t for t in stays if _plain(t)))
        # owned by the graph alone, which lets go of them one by one as the backward runs
        self._saved: list[weakref.ref[_View]] = []
        self._memories: list[_Memory] = []
        self._copied: Any = None

    def saving(self) -> AbstractContextManager[Any]:
        """Context in which what autograd saves is held here."""
        name = self.name

        def pack(tensor: torch.Tensor) -> _Held:
            if not _plain(tensor) or tensor.untyped_storage()._cdata in self._stays:
                return _Held(tensor)
            held = _View(tensor)
            self._saved.append(weakref.ref(held))
            return held

        def unpack(held: _Held) -> torch.Tensor:
            if held.tensor is None:
                assert isinstance(held, _View)
                return held.shown(name)
            if held.changed:
                raise RunError(
                    f"{name} has written into a tensor of shape {tuple(held.tensor.shape)} that its backward needs"
                )
            return held.tensor

        return saved_tensors_hooks(pack, unpack)

    def memories(self) -> frozenset[int]:
        """The memory that would be moved, by identity."""
        return frozenset(storages(h.tensor for h in self._alive() if h.tensor is not None))

    def host_bytes(self) -> int:
        """What lies in host memory."""
        return sum(m.host.nbytes for m in self._memories if m.host is not None)

    def _alive(self) -> list[_View]:
        return [held for reference in self._saved if (held := reference()) is not None]

    def _advance(self, step: str, behind: str) -> None:
        if self.step != behind:
            raise RunError(f"{self.name}: {step} comes right behind {behind}, not behind {self.step}")
        self.step = step

    # ---- U, X, L

    def offload(self, mark: Mark, shared: frozenset[int]) -> tuple[Any, Any]:
        """Start to copy all of it to host memory, but for memory that others share; the marks of start and end."""
        self._advance("offload", "forward")
        found: dict[int, _Memory] = {}
        for held in self._alive():
            if held.tensor is None or held.changed:  # of what was changed the backward tells
                continue
            key = held.tensor.untyped_storage()._cdata
            if key not in shared and held.tensor.untyped_storage().nbytes():
                held.memory = found[key] = found.get(key) or _Memory(held.tensor)
        self._memories = list(found.values())
        return self._run(mark, self._copy_out, 0)

    def release(self) -> None:
        """Wait until it is copied, and let go of it on the device."""
        self._advance("release", "offload")
        self._await()
        for held in self._alive():
            if held.memory is not None:
                held.tensor = None
        for memory in self._memories:
            memory.there = None

    def reload(self, mark: Mark) -> tuple[Any, Any]:
        """Take memory for it again and start to copy it back; the marks of start and end."""
        self._advance("reload", "release")
        for memory in self._memories:
            assert memory.host is not None
            memory.there = torch.empty(memory.host.shape, dtype=torch.uint8, device=memory.device)
        return self._run(mark, self._copy_back, 1)

    def back(self) -> tuple[torch.Tensor, ...]:
        """Wait until it is back, and let go of the host memory; the new memory."""
        if self.step != "reload":
            raise RunError(f"{self.name}: a backward comes behind reload, not behind {self.step}")
        self._await()
        there = tuple(m.there for m in self._memories if m.there is not None)
        # from here on the graph alone holds it
        self._memories = []
        return there

    def reloaded(self) -> tuple[torch.Tensor, ...]:
        """The new memory, while it is not handed to the backward yet."""
        return tuple(m.there for m in self._memories if m.there is not None)

    def _copy_out(self) -> None:
        for memory in self._memories:
            memory.copy_out()

    def _copy_back(self) -> None:
        for memory in self._memories:
            assert memory.there is not None
            assert memory.host is not None
            memory.there.copy_(memory.host, non_blocking=memory.device.type == "cuda")

    def _run(self, mark: Mark, copy: Callable[[], None], way: int) -> tuple[Any, Any]:
        """Copy; on CUDA on the stream for that way, once what was issued before has run."""
        device = next((m.device for m in self._memories if m.device.type == "cuda"), None)
        if device is None:
            first = mark()
            copy()
            return first, mark()
        stream = _engines(device)[way]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            first = mark()
            copy()
            last = mark()
            self._copied = device, torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied[1].record(stream)
        return first, last

    def _await(self) -> None:
        if self._copied is not None:
            device, event = self._copied
            torch.cuda.current_stream(device).wait_event(event)
            self._copied = None
