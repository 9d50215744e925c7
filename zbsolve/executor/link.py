"""What a message between two ranks of this machine costs."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from zbsolve.executor.clock import clock_of
from zbsolve.profile import Link

__all__ = ["measure_link"]

_SMALL_BYTES = 8
_REPEATS = 25
_TIMEOUT = timedelta(seconds=10)


def measure_link(device: torch.device, message_bytes: int) -> tuple[Link, str]:
    """Latency and bandwidth of the way that ranks on this machine take.

    Parameters
    ----------
    device
        Of the stages.
    message_bytes
        Of the largest message that will be sent.

    Returns
    -------
    The link, and how it was measured, in words. Where it cannot be measured the link is free and
    the words say why.
    """
    try:
        if device.type != "cuda":
            return _fitted(_gloo_lap(), message_bytes), "link: gloo over the loopback device, sent within one process"
        if torch.cuda.device_count() < 2:
            return Link(), "link: not measured, as there is one GPU; counted as free"
        peer = torch.device("cuda", (device.index or 0) ^ 1)
        return _fitted(_copy_lap(device, peer), message_bytes), f"link: copies from {device} to {peer}"
    except (RuntimeError, OSError, AttributeError) as error:
        return Link(), f"link: not measured ({type(error).__name__}); counted as free"


Lap = Callable[[int], int]


def _fitted(lap: Lap, message_bytes: int) -> Link:
    """Latency from a small message; bandwidth from what the large one takes longer."""
    small = _median(lap, _SMALL_BYTES)
    large = _median(lap, message_bytes) if message_bytes > _SMALL_BYTES else small
    extra = large - small
    bandwidth = (message_bytes - _SMALL_BYTES) * 10**9 // extra if extra > 0 else None
    return Link(latency_ns=small, bytes_per_second=bandwidth or None)


def _median(lap: Lap, size: int) -> int:
    for _ in range(3):
        lap(size)
    return round(statistics.median(lap(size) for _ in range(_REPEATS)))


def _copy_lap(device: torch.device, peer: torch.device) -> Lap:
    clock = clock_of(device)

    def lap(size: int) -> int:
        source = torch.zeros(size, dtype=torch.uint8, device=device)
        target = torch.empty(size, dtype=torch.uint8, device=peer)
        clock.settle()
        before = clock.mark()
        target.copy_(source, non_blocking=True)
        after = clock.mark()
        clock.settle()
        return clock.between(before, after)

    return lap


def _gloo_lap() -> Lap:
    first, second = _gloo_pair()

    def lap(size: int) -> int:
        sent, received = torch.zeros(size, dtype=torch.uint8), torch.empty(size, dtype=torch.uint8)
        before = time.perf_counter_ns()
        receiving = second.recv([received], 0, 0)
        sending = first.send([sent], 1, 0)
        receiving.wait()
        after = time.perf_counter_ns()
        sending.wait()
        return after - before

    return lap


def _gloo_pair() -> tuple[Any, Any]:
    """Both ends of a connection in this process: two processes would cost seconds of starting them."""
    gloo: Any = dist.ProcessGroupGloo
    store = HashStore()
    ends: dict[int, Any] = {}

    def connect(rank: int) -> None:
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        options._timeout = _TIMEOUT
        with suppress(RuntimeError):
            ends[rank] = gloo(store, rank, 2, options)

    threads = [threading.Thread(target=connect, args=(rank,), daemon=True) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_TIMEOUT.total_seconds() + 5)
    if len(ends) != 2:
        raise OSError("gloo could not connect over the loopback device")
    return ends[0], ends[1]
