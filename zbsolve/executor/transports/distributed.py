"""One rank a process over `torch.distributed`: gloo on the CPU, NCCL on CUDA.

Every edge has a process group of its own, so edges never block each other, and on CUDA a stream of
its own with it. Before the first message over a boundary goes a header that says how many tensors
pass, their shapes and types; a receiver that does not know them yet posts its receives when it
waits, in the order of the edge, which lowering has proven to be safe::

    sender      F0: header, x   F1: x      F2: x
    receiver    wait F0: header, post F0, post F1 (in order)   ...   post F2 at its place

Flags that say which gradients come go ahead of them in the same way, until all have come once.

Receives go into slots that are used again and again; where a stage hands on the very tensor it
received, it is copied, since its slot may be refilled before its new owner is done.
"""

from __future__ import annotations

import faulthandler
import gc
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist

from zbsolve.errors import InvalidInput, RunError
from zbsolve.executor.boundary import Boundary, Gradients, TensorSpec
from zbsolve.executor.transports.health import Health
from zbsolve.executor.transports.protocol import OWN_TAGS, Endpoint, Mail, Tensors
from zbsolve.lowering import Lowered, Message

__all__ = ["Distributed"]

_ALIGNMENT = 64
_CLOSING_S = 6.0


class Distributed:
    """Connections of this process's rank.

    Parameters
    ----------
    group
        The ranks of the pipeline, in order; None for all. Several pipelines side by side (data
        parallelism) have a group each.
    timeout
        How long a rank may wait for a message of one that is alive and well, and for others to make their pipelines.
    everyone
        Processes whose failure stops this pipeline, its own among them; None for those of the group.
        Every one of them makes a `Distributed` with the same, and closing waits for all.

    Raises
    ------
    InvalidInput
        If `torch.distributed` is not initialized, or this process is not in the group.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        timeout: timedelta = timedelta(minutes=30),
        everyone: Sequence[int] | None = None,
    ) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise InvalidInput("torch.distributed is not initialized; call torch.distributed.init_process_group first")
        self.members = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
        if dist.get_rank() not in self.members:
            raise InvalidInput(f"process {dist.get_rank()} is not among the pipeline's processes {self.members}")
        self.ranks = len(self.members)
        self.rank = self.members.index(dist.get_rank())
        self._timeout = timeout
        self._groups: dict[tuple[int, int, str], Any] = {}
        self.health = Health(self.rank, self.members, everyone, longest_s=timeout.total_seconds())
        self._tags = count(OWN_TAGS)
        self._endpoint = _Endpoint(self)

    def endpoints(self) -> Sequence[Endpoint]:
        """That of this process's rank."""
        return [self._endpoint]

    def new_tag(self) -> int:
        """A tag that nothing else on this transport has."""
        return next(self._tags)

    def connect(
        self, edges: Sequence[tuple[int, int]], purpose: str, backend: str, device: torch.device | None = None
    ) -> None:
        """Make the connections of edges that touch this rank; every rank goes through its edges in one order."""
        for edge in sorted(set(edges)):
            if self.rank in edge and (*edge, purpose) not in self._groups:
                group = self._groups[(*edge, purpose)] = self._pair(edge, purpose, backend)
                if backend == "nccl":
                    # NCCL connects at the first message and blocks both sides until then: do it now, in one order
                    token = torch.zeros(1, device=device)
                    first = group.send([token], 1, 0) if self.rank == edge[0] else group.recv([token], 0, 0)
                    first.wait()

    def _pair(self, edge: tuple[int, int], purpose: str, backend: str) -> Any:
        # made by hand: a group of torch's own keeps its name, and what stands in the store under it, beyond its end
        store = dist.distributed_c10d.PrefixStore(f"{purpose}/{edge[0]}-{edge[1]}", self.health.store)
        place = edge.index(self.rank)
        if backend == "nccl":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = self._timeout
            return dist.ProcessGroupNCCL(store, place, 2, options)
        return dist.ProcessGroupGloo(store, place, 2, self._timeout)

    def line(self, sender: int, receiver: int, purpose: str, tag: int = 0) -> _Line:
        """The end of an edge on this rank; a tag of its own keeps apart what gloo must not take for something else."""
        group = self._groups[sender, receiver, purpose]
        sending = self.rank == sender
        return _Line(group, 1 if sending else 0, receiver if sending else sender, self.health, tag)

    def abort(self) -> None:
        """Close all connections, so that every rank that waits for this one wakes up."""
        self._endpoint.drop()
        # closing waits for what a frozen rank does not take, with the interpreter's lock held: only C can end that
        faulthandler.dump_traceback_later(_CLOSING_S, exit=True)
        try:
            self._close_groups()
        finally:
            faulthandler.cancel_dump_traceback_later()

    def close(self, *, quietly: bool = False) -> None:
        """Say goodbye and close all connections; parameters and errors as of `Health.close`."""
        try:
            self.health.close(quietly=quietly)
        finally:
            self._endpoint.drop()
            self._close_groups()

    def drop(self) -> None:
        """Say that this rank makes no more calls, and wait for nobody."""
        self.health.drop()

    def _close_groups(self) -> None:
        # a connection closes when the last reference to it is gone
        if self._groups:
            self._groups.clear()
            gc.collect()


class _Line:
    """One direction between two ranks; messages stay in order."""

    def __init__(self, group: Any, peer: int, other: int, health: Health, tag: int) -> None:
        self._group = group
        self._peer = peer
        self._other = other
        self._health = health
        self._tag = tag

    def send(self, tensor: torch.Tensor, tag: int = 0) -> Any:
        try:
            return self._group.send([tensor], self._peer, tag or self._tag)
        except RuntimeError as error:
            raise self._health.stopped(self._other, error) from error

    def receive(self, tensor: torch.Tensor, tag: int = 0) -> Any:
        try:
            return self._group.recv([tensor], self._peer, tag or self._tag)
        except RuntimeError as error:
            raise self._health.stopped(self._other, error) from error

    def finish(self, work: Any) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            raise self._health.stopped(self._other, error) from error

    def drop(self) -> None:
        self._group = None


class _Endpoint:
    def __init__(self, transport: Distributed) -> None:
        self.rank = transport.rank
        self._transport = transport
        self._mails: list[_Mail] = []
        self._told: dict[int, deque[tuple[Any, torch.Tensor]]] = defaultdict(deque)
        self._lines: dict[tuple[int, bool], _Line] = {}

    def mail(self, lowered: Lowered, boundaries: Mapping[int, Boundary], device: torch.device) -> Mail:
        edges = [(m.sender, m.receiver) for m in lowered.messages if not m.local]
        backend = "nccl" if device.type == "cuda" and _has_nccl() else "gloo"
        self._transport.connect(edges, "messages", backend, device)
        made = _Mail(self._transport, lowered, boundaries, device, staged=device.type == "cuda" and backend == "gloo")
        self._mails.append(made)
        return made

    def befriend(self, ranks: Sequence[int]) -> None:
        ours = [edge for rank in ranks for edge in ((self.rank, rank), (rank, self.rank))]
        self._transport.connect(ours, "beside", "gloo")

    def _line(self, rank: int, *, sending: bool) -> _Line:
        if (rank, sending) not in self._lines:
            edge = (self.rank, rank) if sending else (rank, self.rank)
            self._lines[rank, sending] = self._transport.line(*edge, "beside")
        return self._lines[rank, sending]

    def tell(self, rank: int, tensors: Sequence[torch.Tensor], tag: int = 0) -> None:
        line, told = self._line(rank, sending=True), self._told[rank]
        for tensor in tensors:
            on_host = tensor.detach().cpu().contiguous()
            told.append((line.send(on_host, tag), on_host))
        while len(told) > 4 * max(len(tensors), 1):
            line.finish(told.popleft()[0])

    def hear(self, rank: int, like: Sequence[torch.Tensor], tag: int = 0) -> list[torch.Tensor]:
        line = self._line(rank, sending=False)
        places = [torch.empty(t.shape, dtype=t.dtype) for t in like]
        works = [line.receive(place, tag) for place in places]
        for work in works:
            line.finish(work)
        return [place.to(t.device) for place, t in zip(places, like, strict=True)]

    def failed(self, message: str) -> None:
        self._transport.health.report(message)

    def cause(self) -> tuple[int, str] | None:
        return self._transport.health.cause()

    def drop(self) -> None:
        for mail in self._mails:
            mail.drop()
        for line in self._lines.values():
            line.drop()
        self._lines.clear()
        self._told.clear()


class _Slots:
    """Receive buffers of one direction: storages that tensors of any boundary are laid into."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._storages: dict[int, torch.Tensor] = {}
        self._views: dict[tuple[int, tuple[TensorSpec, ...]], Tensors] = {}
        self.addresses: set[int] = set()

    def views(self, slot: int, specs: tuple[TensorSpec, ...]) -> Tensors:
        """The slot as tensors of these shapes; made once."""
        found = self._views.get((slot, specs))
        if found is None:
            places = []
            size = 0
            for spec in specs:
                places.append(size)
                size += -(-spec.bytes // _ALIGNMENT) * _ALIGNMENT
            storage = self._storages.get(slot)
            if storage is None or len(storage) < size:
                if storage is not None:
                    self.addresses.discard(storage.untyped_storage().data_ptr())
                    self._views = {key: views for key, views in self._views.items() if key[0] != slot}
                storage = self._storages[slot] = torch.empty(size, dtype=torch.uint8, device=self._device)
                if size:
                    self.addresses.add(storage.untyped_storage().data_ptr())
            found = tuple(
                storage[at : at + spec.bytes].view(spec.dtype).view(spec.shape)
                for at, spec in zip(places, specs, strict=True)
            )
            self._views[slot, specs] = found
        return found


class _Mail:
    """The messages of one program of this rank."""

    def __init__(
        self,
        transport: Distributed,
        lowered: Lowered,
        boundaries: Mapping[int, Boundary],
        device: torch.device,
        *,
        staged: bool,
    ) -> None:
        self._transport = transport
        # a rank that evaluates while its neighbour steps would take in tensors of another size, which ends the process
        self._tag = transport.new_tag()
        self._messages = lowered.messages
        self._boundaries = boundaries
        self._device = device
        self._wire = torch.device("cpu") if staged else device
        self._staged = staged
        self._slots = {"forward": _Slots(self._wire), "backward": _Slots(self._wire)}
        self._lines: dict[tuple[int, int], _Line] = {}
        self._unposted: dict[tuple[int, int], deque[int]] = defaultdict(deque)
        self._receiving: dict[int, tuple[list[Any], Gradients]] = {}
        self._sending: dict[int, list[tuple[Any, torch.Tensor]]] = {}

    def drop(self) -> None:
        self._receiving.clear()
        self._sending.clear()
        for line in self._lines.values():
            line.drop()
        self._lines.clear()

    def _line(self, message: Message) -> _Line:
        edge = message.sender, message.receiver
        if edge not in self._lines:
            self._lines[edge] = self._transport.line(*edge, "messages", self._tag)
        return self._lines[edge]

    def _gradient_specs(self, boundary: Boundary) -> tuple[TensorSpec, ...]:
        assert boundary.specs is not None
        return tuple(boundary.specs[i] for i in boundary.wanted)

    def poster(self, message: int) -> Callable[[], None]:
        edge = self._messages[message]
        unposted, boundary = self._unposted[edge.sender, edge.receiver], self._boundaries[message]
        forward = edge.direction == "forward"

        def post() -> None:
            if unposted or boundary.specs is None or not (forward or boundary.complete):
                unposted.append(message)
            else:
                self._post(message)

        return post

    def _post(self, message: int, came: Sequence[int] | None = None) -> None:
        """Start receiving; `came` says which of the gradients come, None for all."""
        edge, boundary = self._messages[message], self._boundaries[message]
        assert boundary.specs is not None
        specs = boundary.specs if edge.direction == "forward" else self._gradient_specs(boundary)
        places: Gradients = self._slots[edge.direction].views(edge.slot, specs)
        if came is not None:
            places = tuple(place if there else None for place, there in zip(places, came, strict=True))
        line = self._line(edge)
        self._receiving[message] = [line.receive(place) for place in places if place is not None], places

    def waiter(self, message: int) -> Callable[[], Tensors]:
        edge, boundary = self._messages[message], self._boundaries[message]
        unposted, receiving = self._unposted[edge.sender, edge.receiver], self._receiving
        line, forward = self._line(edge), edge.direction == "forward"

        def wait() -> Any:
            while message not in receiving:
                self._post_late(unposted.popleft())
            works, places = receiving.pop(message)
            for work in works:
                line.finish(work)
            if self._staged:
                places = tuple(p if p is None else p.to(self._device, non_blocking=False) for p in places)
            if not forward:
                return places
            assert boundary.specs is not None
            return tuple(
                p.detach().requires_grad_() if p is not None and s.requires_grad else p
                for p, s in zip(places, boundary.specs, strict=True)
            )

        return wait

    def _post_late(self, message: int) -> None:
        """Post a receive that had to wait, because its shapes were not known or those before it waited."""
        boundary = self._boundaries[message]
        if boundary.specs is None:
            assert self._messages[message].direction == "forward"
            boundary.read_header(self._receive_header(self._line(self._messages[message])))
        came = None
        if self._messages[message].direction == "backward" and not boundary.complete:
            flags = torch.empty(len(boundary.wanted), dtype=torch.uint8, device=self._wire)
            line = self._line(self._messages[message])
            line.finish(line.receive(flags))
            came = flags.tolist()
            boundary.complete = all(came)
        self._post(message, came)

    def _receive_header(self, line: _Line) -> bytes:
        size = torch.empty(1, dtype=torch.int64, device=self._wire)
        line.finish(line.receive(size))
        header = torch.empty(int(size), dtype=torch.uint8, device=self._wire)
        line.finish(line.receive(header))
        return bytes(header.tolist())

    def sender(self, message: int) -> Callable[[Tensors], None]:
        edge, boundary = self._messages[message], self._boundaries[message]
        line, sending, own = self._line(edge), self._sending, self._own
        forward = edge.direction == "forward"

        def send(tensors: Tensors) -> None:
            works: list[tuple[Any, torch.Tensor]] = []
            if forward and not boundary.announced:
                self._refuse_spread(boundary, tensors)
                boundary.announced = True
                header = torch.tensor(list(boundary.header()), dtype=torch.uint8, device=self._wire)
                size = torch.tensor([len(header)], dtype=torch.int64, device=self._wire)
                works += [(line.send(size), size), (line.send(header), header)]
            if not forward and not boundary.complete:
                came = [tensor is not None for tensor in tensors]
                boundary.complete = all(came)
                flags = torch.tensor(came, dtype=torch.uint8, device=self._wire)
                works.append((line.send(flags), flags))
                tensors = tuple(tensor for tensor in tensors if tensor is not None)
            elif not forward and any(tensor is None for tensor in tensors):
                tensors = boundary.filled(tensors, self._device)
            for tensor in tensors:
                out = own(tensor.detach())
                works.append((line.send(out), out))
            sending[message] = works

        return send

    def _refuse_spread(self, boundary: Boundary, tensors: Tensors) -> None:
        if any(hasattr(tensor, "to_local") for tensor in tensors):
            raise RunError(
                f"stage {boundary.stage} hands a DTensor to another rank, which takes plain tensors only: end the "
                "stage with .to_local(), or leave use_local_output=True in its parallel style"
            )

    def _own(self, tensor: torch.Tensor) -> torch.Tensor:
        """A dense tensor on the wire's device that no receive can write into."""
        if self._staged:
            return tensor.cpu().contiguous()
        if self._in_a_slot(tensor):
            return tensor.clone(memory_format=torch.contiguous_format)
        return tensor.contiguous()

    def _in_a_slot(self, tensor: torch.Tensor) -> bool:
        address = tensor.untyped_storage().data_ptr()
        return address in self._slots["forward"].addresses or address in self._slots["backward"].addresses

    def completer(self, message: int) -> Callable[[], None]:
        line, sending = self._line(self._messages[message]), self._sending

        def complete() -> None:
            for work, _ in sending.pop(message):
                line.finish(work)

        return complete

    def keeper(self) -> Callable[[Tensors], Tensors] | None:
        if self._staged:
            return None

        def keep(tensors: Tensors) -> Tensors:
            return tuple(
                t.detach().clone().requires_grad_(t.requires_grad) if t is not None and self._in_a_slot(t) else t
                for t in tensors
            )

        return keep


def _has_nccl() -> bool:
    return dist.is_nccl_available() and "nccl" in dist.get_backend()
