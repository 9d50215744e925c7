"""Tensors from one process to another over a process group, in order."""

from __future__ import annotations

from typing import Any

import torch

from zbsolve.executor.transports.health import Health

__all__ = ["Line"]


class Line:
    """One direction between two ranks; messages stay in order."""

    def __init__(self, group: Any, peer: int, other: int, health: Health, tag: int) -> None:
        self._group = group
        self._peer = peer
        self._other = other
        self._health = health
        self._tag = tag

    def send(self, tensor: torch.Tensor, tag: int = 0) -> Any:
        """Start to send a tensor; what `finish` takes."""
        try:
            return self._group.send([tensor], self._peer, tag or self._tag)
        except RuntimeError as error:
            raise self._health.stopped(self._other, error) from error

    def receive(self, tensor: torch.Tensor, tag: int = 0) -> Any:
        """Start to receive into a tensor; what `finish` takes."""
        try:
            return self._group.recv([tensor], self._peer, tag or self._tag)
        except RuntimeError as error:
            raise self._health.stopped(self._other, error) from error

    def finish(self, work: Any) -> None:
        """Wait until a tensor is sent or has come."""
        try:
            work.wait()
        except RuntimeError as error:
            raise self._health.stopped(self._other, error) from error

    def drop(self) -> None:
        """Let go of the connection."""
        self._group = None
