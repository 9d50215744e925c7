"""A thread a rank, tensors handed over by reference: no launcher, no copies.

Every edge is a first-in-first-out queue. A receiver that waits for one message puts those that
come before it aside::

    rank 0  -- send F0, F1, F2 -->  [F0 F1 F2]  -- wait F1 -->  rank 1:  F0 aside, F1 taken

Sends are *buffered*: complete as soon as they start. Aborting puts a mark into every queue, so a
waiting rank wakes at once. On CUDA every message carries an event that the receiver's stream waits for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from queue import SimpleQueue
from typing import Any

import torch

from zbsolve.errors import InvalidInput
from zbsolve.executor.boundary import Boundary, TensorSpec
from zbsolve.executor.transports.protocol import OWN_TAGS, Endpoint, Mail, Stopped, Tensors
from zbsolve.lowering import Lowered

__all__ = ["InProcess"]

_STOP = -1


class InProcess:
    """Connections of all ranks in one process.

    Parameters
    ----------
    ranks
        How many.
    """

    def __init__(self, ranks: int) -> None:
        if ranks < 1:
            raise InvalidInput("a transport needs at least one rank")
        self.ranks = ranks
        self._lock = threading.Lock()
        self._queues: dict[tuple[int, int, int], SimpleQueue[Any]] = {}
        self._cause: tuple[int, str] | None = None
        self._stopped = False
        self._tags = count(OWN_TAGS)
        self._endpoints = [_Endpoint(self, rank) for rank in range(ranks)]

    def endpoints(self) -> Sequence[Endpoint]:
        """Those of all ranks."""
        return self._endpoints

    def queue(self, sender: int, receiver: int, tag: int = -1) -> SimpleQueue[Any]:
        """The queue of an edge; those with a tag carry what ranks tell each other beside the messages."""
        with self._lock:
            found = self._queues.setdefault((sender, receiver, tag), SimpleQueue())
            if self._stopped:
                found.put((_STOP, ()))
            return found

    def new_tag(self) -> int:
        """A tag that nothing else on this transport has."""
        return next(self._tags)

    def note_failure(self, rank: int, message: str) -> None:
        """Remember the first failure."""
        with self._lock:
            if self._cause is None:
                self._cause = rank, message

    @property
    def cause(self) -> tuple[int, str] | None:
        """The first failure."""
        return self._cause

    def abort(self) -> None:
        """Wake up every rank that waits."""
        with self._lock:
            self._stopped = True
            for queue in self._queues.values():
                queue.put((_STOP, ()))

    def reset(self, tag: int | None = None) -> None:
        """Forget a failure and everything that was under way; only while no rank runs.

        Parameters
        ----------
        tag
            The tag of the pipeline that failed. What other pipelines keep under theirs, from one step
            to the next, stays.
        """
        with self._lock:
            self._stopped, self._cause = False, None
            for (_, _, told), queue in self._queues.items():
                found = []
                while not queue.empty():
                    found.append(queue.get())
                if told >= OWN_TAGS and told != tag:
                    for item in found:
                        if item[0] != _STOP:
                            queue.put(item)
            for endpoint in self._endpoints:
                endpoint.clear()

    def close(self, *, quietly: bool = False) -> None:
        """Nothing is open."""


class _Endpoint:
    def __init__(self, hub: InProcess, rank: int) -> None:
        self.rank = rank
        self._hub = hub
        self._mails: list[_Mail] = []

    def mail(self, lowered: Lowered, boundaries: Mapping[int, Boundary], device: torch.device) -> Mail:
        made = (_CudaMail if device.type == "cuda" else _Mail)(self._hub, lowered, boundaries, device)
        self._mails.append(made)
        return made

    def clear(self) -> None:
        for mail in self._mails:
            mail.aside.clear()

    def befriend(self, ranks: Sequence[int]) -> None:
        del ranks  # queues are made when they are used

    def tell(self, rank: int, tensors: Sequence[torch.Tensor], tag: int = 0) -> None:
        on_device = [t.device for t in tensors if t.is_cuda]
        event = torch.cuda.current_stream(on_device[0]).record_event() if on_device else None
        self._hub.queue(self.rank, rank, tag).put((0, (tuple(tensors), event)))

    def hear(self, rank: int, like: Sequence[torch.Tensor], tag: int = 0) -> list[torch.Tensor]:
        mark, told = self._hub.queue(rank, self.rank, tag).get()
        if mark == _STOP:
            raise Stopped
        tensors, event = told
        if event is not None:
            for tensor in tensors:
                stream = torch.cuda.current_stream(tensor.device)
                stream.wait_event(event)
                tensor.record_stream(stream)
        return [t.to(wanted.device) for t, wanted in zip(tensors, like, strict=True)]

    def failed(self, message: str) -> None:
        self._hub.note_failure(self.rank, message)
        self._hub.abort()

    def cause(self) -> tuple[int, str] | None:
        return self._hub.cause


class _Mail:
    def __init__(
        self, hub: InProcess, lowered: Lowered, boundaries: Mapping[int, Boundary], device: torch.device
    ) -> None:
        self._hub = hub
        self._messages = lowered.messages
        self._boundaries = boundaries
        self._device = device
        self.aside: dict[int, Any] = {}

    def poster(self, message: int) -> None:
        return None

    def completer(self, message: int) -> None:
        return None

    def keeper(self) -> None:
        return None

    def sender(self, message: int) -> Callable[[Tensors], None]:
        edge = self._messages[message]
        put = self._hub.queue(edge.sender, edge.receiver).put

        def send(tensors: Tensors) -> None:
            put((message, tensors))

        return send

    def waiter(self, message: int) -> Callable[[], Tensors]:
        edge = self._messages[message]
        get, aside = self._hub.queue(edge.sender, edge.receiver).get, self.aside

        def wait() -> Any:
            if message in aside:
                return aside.pop(message)
            while True:
                number, tensors = get()
                if number == message:
                    return tensors
                if number == _STOP:
                    raise Stopped
                aside[number] = tensors

        return wait if edge.direction == "backward" else self._fixing(message, wait)

    def _fixing(self, message: int, wait: Callable[[], Any]) -> Callable[[], Any]:
        """Tensors say themselves what passes over the boundary, so no header is sent."""
        boundary = self._boundaries[message]

        def wait_and_fix() -> Any:
            tensors = wait()
            if boundary.specs is None:
                boundary.fix([TensorSpec.of(t) for t in self._tensors(tensors)])
            return tensors

        return wait_and_fix

    @staticmethod
    def _tensors(taken: Any) -> Tensors:
        tensors: Tensors = taken
        return tensors


class _CudaMail(_Mail):
    """Ranks' threads work on streams of their own, so the order between them is told by events."""

    def sender(self, message: int) -> Callable[[Tensors], None]:
        send = super().sender(message)

        def send_with_event(tensors: Tensors) -> None:
            stream = torch.cuda.current_stream(self._device)
            send((tensors, stream.record_event()))  # type: ignore[arg-type]

        return send_with_event

    def waiter(self, message: int) -> Callable[[], Tensors]:
        wait = super().waiter(message)
        device = self._device

        def wait_for_event() -> Tensors:
            tensors, event = wait()
            stream = torch.cuda.current_stream(device)
            stream.wait_event(event)  # type: ignore[arg-type]
            for tensor in tensors:
                # the sender may free it while this stream still reads it
                if tensor is not None:
                    tensor.record_stream(stream)
            return tuple(
                t
                if t is None or t.device == device
                else t.to(device, non_blocking=True).detach().requires_grad_(t.requires_grad)
                for t in tensors
            )

        return wait_for_event

    @staticmethod
    def _tensors(taken: Any) -> Tensors:
        tensors: Tensors = taken[0]
        return tensors
