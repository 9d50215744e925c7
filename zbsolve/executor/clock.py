"""Marks in time on the device that does the work."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch

__all__ = ["Clock", "clock_of"]

_TRIES = 5
"""The quickest of so many readings of a device's clock and the host's is the one to go by."""


class Clock(Protocol):
    """Marks that can be subtracted once the work between them is done."""

    def mark(self) -> object:
        """Now, as the device sees it."""

    def settle(self) -> None:
        """Wait until all work handed to the device is done."""

    def between(self, first: object, second: object) -> int:
        """The ns from one mark to another; only after `settle`."""

    def tie(self) -> tuple[object, int]:
        """A mark, and the host's wall time at it in ns."""


class _HostClock:
    """Wall time, or the time that processors worked for this process: other programs do not count there."""

    def __init__(self, read: Callable[[], int]) -> None:
        # read twice an operation, so nothing stands in between
        self.mark = read

    def settle(self) -> None:
        pass

    def between(self, first: object, second: object) -> int:
        assert isinstance(first, int)
        assert isinstance(second, int)
        return second - first

    def tie(self) -> tuple[object, int]:
        # one reading, since whoever reads twice may be put off in between
        now = self.mark()
        return now, now


class _CudaClock:
    """Events on the stream that the work is issued to: host time would only measure the launches."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> object:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def settle(self) -> None:
        torch.cuda.synchronize(self._device)

    def between(self, first: object, second: object) -> int:
        assert isinstance(first, torch.cuda.Event)
        milliseconds: float = first.elapsed_time(second)  # type: ignore[arg-type]
        return round(milliseconds * 1e6)

    def tie(self) -> tuple[object, int]:
        tries = []
        for _ in range(_TRIES):
            self.settle()
            before = time.perf_counter_ns()
            mark = self.mark()
            self.settle()
            tries.append((time.perf_counter_ns() - before, before, mark))
        _, before, mark = min(tries, key=lambda each: each[0])
        return mark, before


def clock_of(device: torch.device, *, processor: bool = False) -> Clock:
    """The clock of a device: events on CUDA; wall time elsewhere, or processor time where asked for."""
    if device.type == "cuda":
        return _CudaClock(device)
    return _HostClock(time.process_time_ns if processor else time.perf_counter_ns)
