"""What a message between two ranks of this machine costs, and a copy to host memory and back."""

from __future__ import annotations

import functools
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
from zbsolve.profile import HostLink, Link

__all__ = ["measure_host_link", "measure_link"]

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


def measure_host_link(device: torch.device, copy_bytes: int, bandwidth: int | None = None) -> tuple[HostLink, str]:
    """Latency and bandwidth of copies between a device and host memory, pinned on CUDA, as offload makes them.

    Parameters
    ----------
    device
        Of the stages; on the CPU a copy is one within its memory.
    copy_bytes
        Of the largest copy that may be asked for.
    bandwidth
        Bytes a second of either way, where it is known; the latency is measured all the same.

    Returns
    -------
    The host link, and how it was measured, in words.
    """
    out, back = (_fitted(_host_lap(device, out=way), copy_bytes if bandwidth is None else 0) for way in (True, False))
    link = HostLink(
        latency_ns=max(out.latency_ns, back.latency_ns),
        to_host_bytes_per_second=bandwidth or out.bytes_per_second,
        from_host_bytes_per_second=bandwidth or back.bytes_per_second,
    )
    where = "pinned host memory" if device.type == "cuda" else "other host memory"
    given = "" if bandwidth is None else ", bandwidth as given"
    return link, f"host link: copies to {where} and back{given}"


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
    def pair(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return (
            torch.zeros(size, dtype=torch.uint8, device=device),
            torch.empty(size, dtype=torch.uint8, device=peer),
        )

    return _lap_of(device, pair)


def _host_lap(device: torch.device, *, out: bool) -> Lap:
    pinned = device.type == "cuda"

    @functools.lru_cache(maxsize=1)  # to pin memory takes longer than to copy
    def pair(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        there = torch.zeros(size, dtype=torch.uint8, device=device)
        host = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)
        return (there, host) if out else (host, there)

    return _lap_of(device, pair)


def _lap_of(device: torch.device, pair: Callable[[int], tuple[torch.Tensor, torch.Tensor]]) -> Lap:
    """Time to copy the first of a pair of so many bytes to the second, by the clock of the device."""
    clock = clock_of(device)

    def lap(size: int) -> int:
        source, target = pair(size)
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
