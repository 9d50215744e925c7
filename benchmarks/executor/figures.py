"""Medians, spread, and what else this machine was doing."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

__all__ = ["machine", "spread"]


def spread(values: Sequence[float], digits: int = 1) -> dict[str, Any]:
    """The median with the lowest and the highest."""
    return {
        "median": round(statistics.median(values), digits),
        "lowest": round(min(values), digits),
        "highest": round(max(values), digits),
        "samples": len(values),
    }


def machine() -> dict[str, Any]:
    """How busy it is, and how long a sleep of 20 ms takes here now, in ms."""
    sleeps = []
    for _ in range(10):
        start = time.perf_counter_ns()
        time.sleep(0.02)
        sleeps.append((time.perf_counter_ns() - start) / 1e6)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cores": cores, "load": round(os.getloadavg()[0], 1), "sleep_of_20_ms": spread(sleeps, 2)}
