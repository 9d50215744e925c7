"""Stages whose operations sleep for a known time, on either runtime.

They only add two parameters, as whatever they compute comes on top of the sleep: gradients, sends and the split are
real, and take next to no time. torch's split walks the graph, so there each half sleeps in a node of its own::

    y = sleep_x(x + shift) + sleep_w(weight)       I runs sleep_x only, W runs sleep_w only

On stage 0 its W runs both, since I does nothing there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.executor.plans import OPERATION_MS
from zbsolve.executor.split import SplitStage

__all__ = ["WIDTH", "Sleeping", "SleepingSplit", "loss", "set_sleep"]

WIDTH = 1
_seconds = [OPERATION_MS / 1000]
_late = threading.local()


def set_sleep(seconds: float) -> None:
    """How long every operation of this process sleeps; 0 for warming up."""
    _seconds[0], _late.seconds = seconds, 0.0


def _sleep(operations: int = 1) -> None:
    """Sleep; what the system wakes us too late is taken off the next sleep, so that operations last as planned.

    Up to a millisecond: more is a hiccup, and to make up for that later could beat the prediction.
    """
    if not _seconds[0]:
        return
    start = time.perf_counter()
    wanted = operations * _seconds[0] - getattr(_late, "seconds", 0.0)
    time.sleep(max(0.0, wanted))
    _late.seconds = min(time.perf_counter() - start - wanted, 0.001)


class _SleepInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        _sleep()
        return grad


class Sleeping(nn.Module):
    """Sleeps in F, I and W on torch's runtime."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.weight = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
        self._node: Callable[..., Any] = _SleepInBackward.apply

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, WIDTH) to the same."""
        _sleep()
        y: torch.Tensor = self._node(x + self.shift) + self._node(self.weight)
        return y


class _Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift, self.weight = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + self.shift + self.weight
        return y


class SleepingSplit(SplitStage):
    """Our split stage of the same parameters; sleeps before its real operations."""

    def __init__(self) -> None:
        super().__init__(_Plain())

    def forward(self, key: Hashable, *inputs: Any, **options: Any) -> tuple[Any, ...]:
        """F."""
        _sleep()
        return super().forward(key, *inputs, **options)

    def backward_input(self, key: Hashable, grad_outputs: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
        """B."""
        _sleep()
        return super().backward_input(key, grad_outputs)

    def backward_weight(self, key: Hashable) -> None:
        """W."""
        _sleep()
        super().backward_weight(key)

    def backward(self, key: Hashable, grad_outputs: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
        """B and W."""
        _sleep(2)
        return super().backward(key, grad_outputs)


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """As good as any."""
    return (output - target).sum()
