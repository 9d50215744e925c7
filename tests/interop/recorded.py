"""What other tools expect of a schedule, written down from their sources, for tests where they are not installed.

- Primus: https://github.com/AMD-AGI/Primus, ``primus/core/pipeline_parallel/scheduler``: ``scheduler_node.py``, and
  ``direction_map`` and ``add_communication_nodes`` of ``algorithms/base.py`` and ``algorithms/interleaved_1f1b.py``.
- zero bubble: https://github.com/sail-sg/zero-bubble-pipeline-parallelism,
  ``megatron/core/pipeline_parallel/zerobubble/scheduler``: ``graph.py``, ``passes.py``, ``communication.py``.
- TorchTitan: https://github.com/pytorch/torchtitan, ``torchtitan/distributed/pipeline_parallel.py``.
- Megatron-LM: https://github.com/NVIDIA/Megatron-LM, ``megatron/core/transformer/pipeline_parallel_layer_layout.py``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from types import ModuleType
from typing import Any

PRIMUS_FUNCTIONS = ("F", "B", "W", "BW", "FB", "SF", "SB", "RF", "RB")

ZERO_BUBBLE_FUNCTIONS = ("F", "B", "W", "BW")


@dataclass
class PrimusNode:
    """``SchedulerNode``."""

    func_type: Any
    mini_batch: int
    chunk: int
    args: dict[str, Any] | None = None
    meta: dict[str, Any] | None = None


@dataclass
class ZeroBubbleNode:
    """``ScheduledNode``: the fields that computation has."""

    type: Any
    stage: int
    microbatch: int
    chunk: int = 0
    seq_split_idx: int = 0
    layer_group_idx: int | None = None
    start_time: int | None = None
    completion_time: int | None = None
    recv_peer_stage: int | None = None
    send_peer_stage: int | None = None


@dataclass
class ZeroBubbleConfig:
    """``GraphConfig``."""

    mem_f: list[float]
    mem_b: list[float]
    mem_w: list[float]
    cost_f: list[float]
    cost_b: list[float]
    cost_w: list[float]
    cost_comm: float
    max_chunks: int
    n_stages: int
    n_micro: int

    def __post_init__(self) -> None:
        for costs in (self.cost_f, self.cost_b, self.cost_w):
            assert len(costs) == self.n_stages
            assert all(isinstance(cost, float) for cost in costs)
        assert isinstance(self.cost_comm, float)


@contextmanager
def installed(**modules: dict[str, Any]) -> Iterator[None]:
    """Modules under dotted names (``__`` for a dot) as if they were installed."""
    made: dict[str, ModuleType] = {}
    for key, names in modules.items():
        parts = key.split("__")
        for depth in range(1, len(parts) + 1):
            name = ".".join(parts[:depth])
            made.setdefault(name, ModuleType(name))
        vars(made[".".join(parts)]).update(names)
    before = {name: sys.modules.get(name) for name in made}
    sys.modules.update(made)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def functions(names: tuple[str, ...]) -> Any:
    """An enumeration whose members are their own values."""
    return Enum("FuncType", {name: name for name in names})


def primus_neighbours(layout: str, rank: int, chunk: int, forward: bool, ranks: int, chunks: int) -> Any:
    """For a node: (rank, chunk) it receives from and sends to, None at the ends of the pipeline."""
    stage = 2 * ranks - 1 - rank if (layout, chunk) == ("v", 1) else rank + chunk * ranks

    def where(other: int) -> tuple[int, int] | None:
        if not 0 <= other < ranks * chunks:
            return None
        if layout == "v":
            return (other, 0) if other < ranks else (2 * ranks - 1 - other, 1)
        return other % ranks, other // ranks

    step = 1 if forward else -1
    return where(stage - step), where(stage + step)


def titan_stages(rank: int, ranks: int, schedule: str, stages: int) -> tuple[int, ...]:
    """The stages that TorchTitan builds on a rank."""
    assert stages % ranks == 0
    if schedule == "ZBVZeroBubble":
        assert stages == 2 * ranks
        return rank, stages - 1 - rank
    if schedule == "PipelineScheduleSingle":
        assert stages == ranks
    return tuple(range(rank, stages, ranks))


def megatron_stages(layout: str) -> list[str]:
    """The layers of each stage, a letter each."""
    layout = re.sub(r"(.)\*(\d+)", lambda m: m.group(1) * int(m.group(2)), layout.replace(",", ""))
    assert re.fullmatch(r"[ELtm|]*", layout)
    return layout.split("|")
