"""One rank of the demo's run: every order on our runtime and on torch's, turn by turn, in the same processes.

So starting torch is paid once, and whatever else the machine does falls on both alike. Each has
modules of its own with the same weights.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from zbsolve.demo.model import build
from zbsolve.errors import ZbsolveError
from zbsolve.executor.processes import leave_with_parent, report_failure
from zbsolve.executor.runtime import Pipeline
from zbsolve.executor.target import Sample, root_cause
from zbsolve.executor.torch_rank import TorchSchedule
from zbsolve.files import read_timetable

__all__ = ["main"]

Laps = list[tuple[int, int]]
Gradients = dict[str, torch.Tensor]


class _Ours:
    """A timetable on our runtime."""

    def __init__(self, path: str, rank: int, arguments: dict[str, Any], stack: ExitStack) -> None:
        timetable = read_timetable(path)
        modules, _, loss_fn = build(**arguments)
        own = {s: modules[s] for s in timetable.problem.placement.stages_of(rank)}
        self._pipe = stack.enter_context(Pipeline(timetable, own, loss_fn))
        self._modules = own

    def steps(self, batch: Sample, count: int) -> Laps:
        """Steps that follow each other; start and end of each on this rank, in ns."""
        self._pipe.steps([batch] * count)
        (rank,) = self._pipe.ranks
        return [(marks[0], marks[-1]) for _, marks, _ in list(rank.history)[-count:]]

    def gradients(self, batch: Sample) -> Gradients:
        """Of one step."""
        self._pipe.zero_grad()
        self._pipe.step(*batch)
        return {
            f"{stage}:{name}": parameter.grad.clone()
            for stage, module in self._modules.items()
            for name, parameter in module.named_parameters()
            if parameter.grad is not None
        }


class _Torchs:
    """The same order on torch's runtime, from its CSV."""

    def __init__(self, path: str, rank: int, arguments: dict[str, Any], microbatches: int) -> None:
        modules, _, loss_fn = build(**arguments)
        self._schedule = TorchSchedule(path, rank, modules, loss_fn, microbatches)

    def steps(self, batch: Sample, count: int) -> Laps:
        """Steps that follow each other; start and end of each on this rank, in ns."""
        laps = []
        for _ in range(count):
            start = time.perf_counter_ns()
            self._schedule.step(batch)
            laps.append((start, time.perf_counter_ns()))
        return laps

    def gradients(self, batch: Sample) -> Gradients:
        """Of one step."""
        self._schedule.forget_gradients()
        self._schedule.step(batch)
        return self._schedule.gradients()


def main(directory: Path, rank: int) -> int:
    """Run the job in a directory as one of its ranks; the exit code."""
    leave_with_parent()
    try:
        _run(directory, rank, json.loads((directory / "job.json").read_text(encoding="utf-8")))
    except BaseException as error:
        root = root_cause(error)
        report_failure(
            directory, rank, str(root) if isinstance(root, ZbsolveError) else f"{type(root).__name__}: {root}"
        )
        return 1
    return 0


def _run(directory: Path, rank: int, job: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    arguments, timetables, csvs = job["arguments"], job["timetables"], job["csvs"]
    batch = build(**arguments)[1]
    store = FileStore(str(directory / "store"), job["ranks"])
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=job["ranks"], timeout=timedelta(seconds=job["timeout_s"])
    )
    with ExitStack() as stack:
        runs: dict[str, _Ours | _Torchs] = {}
        for number, (timetable, csv) in enumerate(zip(timetables, csvs, strict=True)):
            runs[f"zbsolve-{number}"] = _Ours(timetable, rank, arguments, stack)
            runs[f"torch-{number}"] = _Torchs(csv, rank, arguments, arguments["microbatches"])
        gc.collect()
        for name, run in runs.items():
            torch.save(run.gradients(batch), directory / f"gradients-{name}-{rank}.pt")
        blocks: dict[str, list[Laps]] = {name: [] for name in runs}
        for _ in range(job["blocks"]):
            for name, run in runs.items():
                dist.barrier()
                blocks[name].append(run.steps(batch, job["steps_a_block"]))
        (directory / f"result-{rank}.json").write_text(json.dumps(blocks), encoding="utf-8")
        dist.barrier()
    with suppress(RuntimeError):
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
