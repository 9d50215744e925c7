"""One rank of a run on `torch.distributed.pipelining`; started by `torch_pipelining`, one process a rank.

Several schedules run in the same processes, in turn, so that starting torch is paid once and a
drifting machine hits all alike. Each schedule has stage objects of its own (receive buffers and
what autograd left in them must not mix) around the same modules.
"""

from __future__ import annotations

import csv
import gc
import inspect
import json
import logging
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _Action, _ComputationType, _PipelineScheduleRuntime

from zbsolve.errors import InvalidInput, ZbsolveError
from zbsolve.executor.gradients import split_batch
from zbsolve.executor.processes import leave_with_parent, report_failure
from zbsolve.executor.target import LossFn, Sample, call_target, root_cause

__all__ = ["TorchSchedule", "main"]


class TorchSchedule:
    """One schedule on this rank: torch's runtime with the modules it runs."""

    def __init__(
        self, path: str, rank: int, modules: tuple[torch.nn.Module, ...], loss_fn: LossFn, microbatches: int
    ) -> None:
        self.own = _own_stages(path, rank)
        if self.own and self.own[-1] >= len(modules):
            raise InvalidInput(f"{path} has stage {self.own[-1]}, but the model has {len(modules)} stages")
        self.modules = {stage: modules[stage] for stage in self.own}
        stages: list[Any] = [
            PipelineStage(module, stage, len(modules), torch.device("cpu")) for stage, module in self.modules.items()
        ]
        runtime: Any = _PipelineScheduleRuntime
        self._runtime = runtime(stages, microbatches, loss_fn=loss_fn)
        self._runtime._load_csv(path, format="compute_only")
        self._first, self._last = 0 in self.modules, len(modules) - 1 in self.modules
        if self._last:
            _refuse_unordered_losses(self._runtime.pipeline_order[rank], len(modules) - 1, path)
        self.losses: list[torch.Tensor] = []
        # what the last stage returned would only be collected; older versions always do
        takes = inspect.signature(self._runtime.step).parameters
        self._options: dict[str, Any] = {"return_outputs": False} if "return_outputs" in takes else {}

    def step(self, batch: Sample) -> None:
        """One step; gradients are added to ``.grad`` of the modules."""
        inputs, target = batch
        arguments = (inputs if isinstance(inputs, tuple) else (inputs,)) if self._first else ()
        if self._last:
            self._runtime.step(*arguments, target=target, losses=self.losses, **self._options)
        else:
            self._runtime.step(*arguments, **self._options)

    def forget_gradients(self) -> None:
        """Drop the gradients of this rank's modules."""
        for module in self.modules.values():
            module.zero_grad(set_to_none=True)

    def gradients(self) -> dict[str, torch.Tensor]:
        """Copies, under ``stage:name``."""
        return {
            f"{stage}:{name}": parameter.grad.clone()
            for stage, module in self.modules.items()
            for name, parameter in module.named_parameters()
            if parameter.grad is not None
        }


def main(directory: Path, rank: int) -> int:
    """Run the job in a directory as one of its ranks; the exit code."""
    leave_with_parent()
    action = _FailingAction()
    try:
        _run(directory, rank, json.loads((directory / "job.json").read_text(encoding="utf-8")))
    except BaseException as error:
        root = root_cause(error)
        text = str(root) if isinstance(root, ZbsolveError) else f"{type(root).__name__}: {root}"
        report_failure(
            directory, rank, f"in torch's action {action.name_of_action}: {text}" if action.name_of_action else text
        )
        return 1
    return 0


def _run(directory: Path, rank: int, job: dict[str, Any]) -> None:
    torch.set_num_threads(job["threads"])
    modules, batch, loss_fn = call_target(job["target"], job["arguments"])
    _refuse_shared_parameters(modules)
    split_batch(batch, job["microbatches"])
    store = FileStore(str(directory / "store"), job["ranks"])
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=job["ranks"], timeout=timedelta(seconds=job["timeout_s"])
    )
    schedules = [TorchSchedule(path, rank, modules, loss_fn, job["microbatches"]) for path in job["schedules"]]
    marks: list[list[list[tuple[int, int]]]] = [[] for _ in schedules]
    gc.collect()
    for block in range(job["warmup"] + job["blocks"]):
        for number, (schedule, mine) in enumerate(zip(schedules, marks, strict=True)):
            laps = []
            dist.barrier()
            for _ in range(job["steps_a_block"] if block >= job["warmup"] else 1):
                start = time.perf_counter_ns()
                schedule.forget_gradients()
                schedule.step(batch)
                laps.append((start, time.perf_counter_ns()))
            if block >= job["warmup"]:
                mine.append(laps)
            if block == job["warmup"] + job["blocks"] - 1:
                torch.save(schedule.gradients(), directory / f"gradients-{number}-{rank}.pt")
            schedule.forget_gradients()
    report = {"marks": marks, "losses": [[float(x.detach()) for x in s.losses] for s in schedules]}
    (directory / f"result-{rank}.json").write_text(json.dumps(report), encoding="utf-8")
    dist.barrier()
    with suppress(RuntimeError):
        dist.destroy_process_group()


def _own_stages(path: str, rank: int) -> list[int]:
    """The stages of a rank's row, ascending, as torch wants them."""
    with Path(path).open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    actions = [_Action.from_str(cell) for cell in rows[rank] if cell.strip()] if rank < len(rows) else []
    own = sorted({a.stage_index for action in actions for a in _parts(action)})
    if not own:
        raise InvalidInput(f"{path} has no operation for rank {rank}")
    return own


def _parts(action: _Action) -> tuple[_Action, ...]:
    """Two operations that run together are one action in torch, in versions that have them."""
    return tuple(getattr(action, "sub_actions", None) or (action,))


def _refuse_unordered_losses(row: list[_Action | None], last: int, path: str) -> None:
    """The runtime numbers the losses in the order of the last stage's forwards, whatever their microbatch."""
    forwards = [
        a.microbatch_index
        for action in row
        if action is not None
        for a in _parts(action)
        if a.stage_index == last and a.computation_type == _ComputationType.FORWARD
    ]
    if forwards != sorted(forwards, key=lambda j: -1 if j is None else j):
        raise InvalidInput(
            f"{path}: the last stage runs its forwards out of microbatch order, which torch's runtime takes for "
            "another order of the losses; number the microbatches in the order of the last stage's forwards"
        )


def _refuse_shared_parameters(modules: tuple[torch.nn.Module, ...]) -> None:
    """Each rank would hold a copy of its own, and two stages on one rank would scale the gradient twice."""
    owner: dict[int, tuple[int, str]] = {}
    for stage, module in enumerate(modules):
        for name, parameter in module.named_parameters():
            other, first = owner.setdefault(id(parameter), (stage, name))
            if other != stage:
                raise InvalidInput(
                    f"stages {other} and {stage} share a parameter ({first}, {name}); torch's pipelining does not "
                    "sum its gradients, so give each stage its own"
                )


class _FailingAction(logging.Handler):
    """Remembers which action torch's runtime says it failed in, in place of its page of log."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.name_of_action = ""
        logger = logging.getLogger("torch.distributed.pipelining.schedules")
        logger.addHandler(self)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.args, tuple) and "when running action" in str(record.msg):
            self.name_of_action = str(record.args[-1])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
