"""One rank a process over `torch.distributed`: gloo on the CPU, NCCL on CUDA.

Every edge has a process group of its own, so edges never block each other, and on CUDA a stream of
its own with it. What passes over an edge is in `zbsolve.executor.transports.posted`.
"""

from __future__ import annotations

import faulthandler
import gc
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist

from zbsolve.errors import InvalidInput
from zbsolve.executor.boundary import Boundary
from zbsolve.executor.transports.health import Health
from zbsolve.executor.transports.lines import Line
from zbsolve.executor.transports.posted import PostedMail
from zbsolve.executor.transports.protocol import OWN_TAGS, Endpoint, Mail
from zbsolve.lowering import Lowered

__all__ = ["Distributed"]

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

    def line(self, sender: int, receiver: int, purpose: str, tag: int = 0) -> Line:
        """The end of an edge on this rank; a tag of its own keeps apart what gloo must not take for something else."""
        group = self._groups[sender, receiver, purpose]
        sending = self.rank == sender
        return Line(group, 1 if sending else 0, receiver if sending else sender, self.health, tag)

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


class _Endpoint:
    def __init__(self, transport: Distributed) -> None:
        self.rank = transport.rank
        self._transport = transport
        self._mails: list[PostedMail] = []
        self._told: dict[int, deque[tuple[Any, torch.Tensor]]] = defaultdict(deque)
        self._lines: dict[tuple[int, bool], Line] = {}

    def mail(self, lowered: Lowered, boundaries: Mapping[int, Boundary], device: torch.device) -> Mail:
        edges = [(m.sender, m.receiver) for m in lowered.messages if not m.local]
        backend = "nccl" if device.type == "cuda" and _has_nccl() else "gloo"
        self._transport.connect(edges, "messages", backend, device)
        made = PostedMail(
            self._transport.line,
            self._transport.new_tag(),
            lowered,
            boundaries,
            device,
            staged=device.type == "cuda" and backend == "gloo",
        )
        self._mails.append(made)
        return made

    def befriend(self, ranks: Sequence[int]) -> None:
        ours = [edge for rank in ranks for edge in ((self.rank, rank), (rank, self.rank))]
        self._transport.connect(ours, "beside", "gloo")

    def _line(self, rank: int, *, sending: bool) -> Line:
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


def _has_nccl() -> bool:
    return dist.is_nccl_available() and "nccl" in dist.get_backend()
