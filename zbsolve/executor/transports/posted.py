"""Messages between processes: headers and flags ahead of tensors, receives posted before their time.

Before the first message over a boundary goes a header that says how many tensors pass, their shapes and
types; a receiver that does not know them yet posts its receives when it waits, in the order of the edge,
which lowering has proven to be safe::

    sender      F0: header, x   F1: x      F2: x
    receiver    wait F0: header, post F0, post F1 (in order)   ...   post F2 at its place

Flags that say which gradients come go ahead of them in the same way, until all have come once.

Receives go into slots that are used again and again; where a stage hands on the very tensor it
received, it is copied, since its slot may be refilled before its new owner is done.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from zbsolve.errors import RunError
from zbsolve.executor.boundary import Boundary, Gradients, TensorSpec
from zbsolve.executor.transports.lines import Line
from zbsolve.executor.transports.protocol import Tensors
from zbsolve.executor.transports.slots import Slots
from zbsolve.lowering import Lowered, Message

__all__ = ["PostedMail"]


class PostedMail:
    """The messages of one program of this rank.

    Parameters
    ----------
    line
        Gives the line of an edge: sender, receiver, purpose and tag.
    tag
        This program's own: a rank that evaluates while its neighbour steps would else take in tensors of another
        size, which ends the process.
    lowered
        What the messages are.
    boundaries
        By message.
    device
        Where the rank computes.
    staged
        Whether tensors pass through the host.
    """

    def __init__(
        self,
        line: Callable[[int, int, str, int], Line],
        tag: int,
        lowered: Lowered,
        boundaries: Mapping[int, Boundary],
        device: torch.device,
        *,
        staged: bool,
    ) -> None:
        self._make_line = line
        self._tag = tag
        self._messages = lowered.messages
        self._boundaries = boundaries
        self._device = device
        self._wire = torch.device("cpu") if staged else device
        self._staged = staged
        self._slots = {"forward": Slots(self._wire), "backward": Slots(self._wire)}
        self._lines: dict[tuple[int, int], Line] = {}
        self._unposted: dict[tuple[int, int], deque[int]] = defaultdict(deque)
        self._receiving: dict[int, tuple[list[Any], Gradients]] = {}
        self._sending: dict[int, list[tuple[Any, torch.Tensor]]] = {}

    def drop(self) -> None:
        """Let go of all lines, and of what is on its way."""
        self._receiving.clear()
        self._sending.clear()
        for line in self._lines.values():
            line.drop()
        self._lines.clear()

    def _line(self, message: Message) -> Line:
        edge = message.sender, message.receiver
        if edge not in self._lines:
            self._lines[edge] = self._make_line(*edge, "messages", self._tag)
        return self._lines[edge]

    def _gradient_specs(self, boundary: Boundary) -> tuple[TensorSpec, ...]:
        assert boundary.specs is not None
        return tuple(boundary.specs[i] for i in boundary.wanted)

    def poster(self, message: int) -> Callable[[], None]:
        """See `Mail`."""
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
        """See `Mail`."""
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

    def _receive_header(self, line: Line) -> bytes:
        size = torch.empty(1, dtype=torch.int64, device=self._wire)
        line.finish(line.receive(size))
        header = torch.empty(int(size), dtype=torch.uint8, device=self._wire)
        line.finish(line.receive(header))
        return bytes(header.tolist())

    def sender(self, message: int) -> Callable[[Tensors], None]:
        """See `Mail`."""
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
        """See `Mail`."""
        line, sending = self._line(self._messages[message]), self._sending

        def complete() -> None:
            for work, _ in sending.pop(message):
                line.finish(work)

        return complete

    def keeper(self) -> Callable[[Tensors], Tensors] | None:
        """See `Mail`."""
        if self._staged:
            return None

        def keep(tensors: Tensors) -> Tensors:
            return tuple(
                t.detach().clone().requires_grad_(t.requires_grad) if t is not None and self._in_a_slot(t) else t
                for t in tensors
            )

        return keep
