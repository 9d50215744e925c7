"""The cost of an action on stages that do nothing, and of splitting a backward.

One process runs four stages on one rank, so that nothing is waited for. Each round runs, one after the other:
the bodies alone (the modules and autograd, in a plain loop), our runtime, and torch's. What a runtime takes more
than the bodies, by its actions, is the cost of an action::

    us_per_action = (a step - the bodies) / (operations of a step)

The fastest turn of each counts, as whatever else the machine does only ever adds; processor time is given as
a median.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import FileStore
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from benchmarks.split import SHAPES
from benchmarks.split import overhead as split_overhead
from zbsolve.catalog import baseline
from zbsolve.executor.runtime import Pipeline
from zbsolve.executor.transports import InProcess
from zbsolve.interop.torch import write_torch_csv
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Profile
from zbsolve.simulate import simulate
from zbsolve.timetable import Timetable

__all__ = ["run"]

STAGES = 4
MICROBATCHES = 16
ACTIONS = 2 * STAGES * MICROBATCHES
"""Forwards and whole backwards; what a split costs is measured apart."""


class Nothing(nn.Module):
    """Adds a parameter, so that there is a gradient to pass on and one to keep."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A tensor to one of its shape."""
        return x + self.bias


def run(*, rounds: int, split_rounds: int) -> list[dict[str, Any]]:
    """The rows of `overhead`."""
    wall, processor = _turns(rounds)
    split = split_overhead(*SHAPES[0], rounds=split_rounds)
    costs = {"zbsolve": "split_over_backward", "torch": "torch_over_backward"}
    return [
        {
            "runtime": runtime,
            "us_per_action": round((min(wall[runtime]) - min(wall["body"])) / ACTIONS / 1000, 2),
            "split_over_backward": split[costs[runtime]],
            "cpu_us_per_action": round(_median_difference(processor, runtime) / ACTIONS / 1000, 2),
            "turns": rounds,
        }
        for runtime in ("zbsolve", "torch")
    ]


def _median_difference(laps: dict[str, list[int]], runtime: str) -> float:
    return statistics.median(lap - body for lap, body in zip(laps[runtime], laps["body"], strict=True))


def _turns(rounds: int) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Wall and processor time of each turn, in ns."""
    with tempfile.TemporaryDirectory(prefix="zbsolve-bench-") as name:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", store=FileStore(f"{name}/store", 1), rank=0, world_size=1)
        table = _timetable()
        write_torch_csv(table, Path(name) / "one.csv")
        turns = {"body": _bodies(), "zbsolve": _ours(table), "torch": _torchs(Path(name) / "one.csv")}
        wall: dict[str, list[int]] = {kind: [] for kind in turns}
        processor: dict[str, list[int]] = {kind: [] for kind in turns}
        for round_ in range(rounds + 3):
            for kind, turn in turns.items():
                before, start = time.process_time_ns(), time.perf_counter_ns()
                turn()
                if round_ >= 3:
                    wall[kind].append(time.perf_counter_ns() - start)
                    processor[kind].append(time.process_time_ns() - before)
        dist.destroy_process_group()
    return wall, processor


def _timetable() -> Timetable:
    profile = Profile.uniform(STAGES, forward_ns=1, backward_input_ns=1, backward_weight_ns=1)
    problem = Problem(profile=profile, placement=Placement.custom([0] * STAGES), microbatches=MICROBATCHES)
    return simulate(problem, baseline("naive", problem))


def _modules() -> list[nn.Module]:
    return [Nothing() for _ in range(STAGES)]


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(MICROBATCHES, 1), torch.zeros(MICROBATCHES, 1)


def _loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return output.sum()


def _bodies() -> Callable[[], object]:
    modules = _modules()
    parts = _data()[0].chunk(MICROBATCHES)

    def turn() -> None:
        for part in parts:
            entered, left = [], []
            x = part
            for module in modules:
                entered.append(x)
                y = module(x)
                left.append(y)
                x = y.detach().requires_grad_()
            gradient = None
            for number in reversed(range(STAGES)):
                if gradient is None:
                    torch.autograd.backward(left[number].sum() / MICROBATCHES)
                else:
                    torch.autograd.backward(left[number], gradient)
                gradient = entered[number].grad

    return turn


def _ours(table: Timetable) -> Callable[[], object]:
    pipe = Pipeline(table, _modules(), _loss, transport=InProcess(1))
    batch, target = _data()
    return lambda: pipe.step(batch, target)


def _torchs(csv: Path) -> Callable[[], object]:
    runtime: Any = _PipelineScheduleRuntime
    stages = [PipelineStage(m, s, STAGES, torch.device("cpu")) for s, m in enumerate(_modules())]
    schedule = runtime(stages, MICROBATCHES, loss_fn=_loss)
    schedule._load_csv(str(csv), format="compute_only")
    batch, target = _data()
    return lambda: schedule.step(batch, target=target, losses=[])
