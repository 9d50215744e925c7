"""One of the processes that run every schedule on both runtimes, turn by turn.

All ranks of a turn start at one agreed moment of the clock that they share, so that leaving a
barrier late counts for neither runtime. Warm-up turns do not sleep.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from benchmarks.executor.plans import BARRIER, MICROBATCHES, OPERATION_MS, PLANS, RANKS, Plan
from benchmarks.executor.sleeping import WIDTH, Sleeping, SleepingSplit, loss, set_sleep
from zbsolve.executor.runtime import Pipeline
from zbsolve.executor.transports import Distributed, InProcess, Transport

__all__ = ["run_rank"]

_AHEAD_S = 0.01
Step = Callable[[], object]


def run_rank(rank: int, directory: Path, *, rounds: int, barrier_rounds: int, barrier_steps: int) -> dict[str, Any]:
    """All turns of one rank; what it noted, by part of the benchmark."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = FileStore(str(directory / "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timedelta(seconds=120))
    # one transport for all pipelines, which never run at once: each has a watch that would work beside the others
    transport = Distributed()
    try:
        found = {
            "steps": _steps(directory, rank, rounds, transport),
            "barrier": _barrier(rank, barrier_rounds, barrier_steps, transport),
        }
        dist.barrier()
    finally:
        transport.close()
    dist.destroy_process_group()
    return found


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(MICROBATCHES, WIDTH), torch.zeros(MICROBATCHES, WIDTH)


def _pipeline(plan: Plan, rank: int, transport: Transport, **options: Any) -> Pipeline:
    stages = {s: SleepingSplit() for s in plan.placement.stages_of(rank)}
    return Pipeline(plan.timetable, stages, loss, transport=transport, **options)


def _ours(plan: Plan, rank: int, transport: Transport) -> Step:
    pipe = _pipeline(plan, rank, transport)
    batch, target = _data()
    return lambda: pipe.step(batch, target)


def _threads(plan: Plan, rank: int) -> Step:
    """All ranks as threads of the first process; the others have nothing to do meanwhile."""
    if rank:
        return lambda: None
    stages = [SleepingSplit() for _ in range(plan.placement.stages)]
    pipe = Pipeline(plan.timetable, stages, loss, transport=InProcess(RANKS))
    batch, target = _data()
    return lambda: pipe.step(batch, target)


def _torchs(plan: Plan, rank: int, csv: Path) -> Step:
    own, count = sorted(plan.placement.stages_of(rank)), plan.placement.stages
    runtime: Any = _PipelineScheduleRuntime
    stages = [PipelineStage(Sleeping(), s, count, torch.device("cpu")) for s in own]
    schedule = runtime(stages, MICROBATCHES, loss_fn=loss)
    schedule._load_csv(str(csv), format="compute_only")
    batch, target = _data()
    given = (batch,) if 0 in own else ()
    options = {"target": target, "losses": []} if count - 1 in own else {}
    return lambda: schedule.step(*given, **options)


def _together(step: Step) -> tuple[int, int, int]:
    """Run a step from an agreed moment on; the moment, when this rank was done, and its processor time, in ns."""
    moment = torch.tensor([time.perf_counter_ns() + int(_AHEAD_S * 1e9)])
    dist.all_reduce(moment, op=dist.ReduceOp.MAX)
    start = int(moment)
    time.sleep(max(0.0, (start - time.perf_counter_ns()) / 1e9))
    processor = time.process_time_ns()
    step()
    return start, time.perf_counter_ns(), time.process_time_ns() - processor


def _steps(directory: Path, rank: int, rounds: int, transport: Transport) -> dict[str, list[tuple[int, int, int]]]:
    """For each schedule and runtime, start, end and processor time of every measured step."""
    turns: dict[str, Step] = {}
    for plan in PLANS:
        turns[f"{plan.name} zbsolve"] = _threads(plan, rank)
        turns[f"{plan.name} zbsolve, gloo"] = _ours(plan, rank, transport)
        turns[f"{plan.name} torch"] = _torchs(plan, rank, directory / f"{plan.name}.csv")
    set_sleep(0.0)
    for step in (*turns.values(), *turns.values()):
        _together(step)
    set_sleep(OPERATION_MS / 1000)
    laps: dict[str, list[tuple[int, int, int]]] = {name: [] for name in turns}
    for round_ in range(rounds):
        # the other way round every second time, so that neither runtime always goes first
        for name in list(turns)[:: 1 if round_ % 2 == 0 else -1]:
            laps[name].append(_together(turns[name]))
    return laps


def _barrier(rank: int, rounds: int, steps: int, transport: Transport) -> dict[str, list[list[int]]]:
    """For each round, the ends of this rank's row in steps that follow each other, in ns."""
    rules: dict[str, Any] = {
        "optimizer": lambda p: torch.optim.AdamW(p, lr=1e-4),
        "max_grad_norm": 1e6,
        "check_overflow": True,
    }
    pipes = {
        "with": _pipeline(BARRIER, rank, transport, synchronous=True, **rules),
        "without": _pipeline(BARRIER, rank, transport, **rules),
    }
    set_sleep(0.0)
    for pipe in pipes.values():
        pipe.steps([_data()] * 2)
        pipe.flush()
    set_sleep(OPERATION_MS / 1000)
    found: dict[str, list[list[int]]] = {name: [] for name in pipes}
    for _ in range(rounds):
        for name, pipe in pipes.items():
            dist.barrier()
            pipe.steps([_data()] * steps)
            (own,) = pipe.ranks
            found[name].append([marks[-1] for _, marks, _ in list(own.history)[-steps:]])
            # the next turn's states use the same connections
            pipe.flush()
    return found
