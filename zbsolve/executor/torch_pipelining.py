"""Running emitted CSV schedules on `torch.distributed.pipelining`: gloo, one process a pipeline rank."""

from __future__ import annotations

import csv
import json
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from zbsolve.errors import InvalidInput, RunError
from zbsolve.executor.gradients import Named
from zbsolve.executor.processes import run_ranks
from zbsolve.units import whole_amount

__all__ = ["TorchRun", "loopback", "run_torch_csv", "step_ns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchRun:
    """What running one schedule gave.

    Parameters
    ----------
    path
        The schedule.
    step_ns
        Measured time of a step, one entry a block. Where a block is one step: from the first
        rank's start to the last rank's end. Where it has more: the time between the ends of its
        first and last step divided by the steps between, on the slowest rank, so what a step
        takes when they follow each other with no barrier.
    loss
        Mean over the microbatches.
    gradients
        Of the mean loss, by stage and name of the parameter.
    """

    path: Path
    step_ns: tuple[int, ...]
    loss: float
    gradients: Named

    @property
    def median_step_ns(self) -> int:
        """The median over the blocks."""
        return round(statistics.median(self.step_ns))


def run_torch_csv(
    paths: Sequence[Path],
    target: str,
    *,
    microbatches: int,
    arguments: Mapping[str, Any] | None = None,
    blocks: int = 3,
    steps_a_block: int = 1,
    warmup: int = 1,
    threads: int = 1,
    timeout_s: float = 300.0,
) -> tuple[TorchRun, ...]:
    """Run schedules with torch's runtime, in turn, on the same processes.

    Parameters
    ----------
    paths
        Schedules in torch's compute-only CSV, all for the same number of ranks.
    target
        ``MODULE:FUNCTION`` giving ``(stages, (inputs, target), loss_fn)``; here the sample is the
        whole batch, cut into `microbatches` equal parts along the first dimension. Every process
        calls it, so it must build the same weights each time. `loss_fn` averages over its microbatch.
    arguments
        Keyword arguments of that function; numbers, text, lists.
    blocks, steps_a_block, warmup
        Measured blocks of each schedule, the steps in each, and blocks of one step before them. A
        barrier stands between blocks, none within; schedules take turns block by block.
    threads
        Of each process.
    timeout_s
        Until everything is stopped.

    Returns
    -------
    One `TorchRun` a path.

    Raises
    ------
    InvalidInput
        If a file cannot be read or the arguments make no sense.
    RunError
        If a rank fails or time runs out; all processes are gone by then.
    """
    if not paths:
        raise InvalidInput("there is no schedule to run")
    for value, what in (
        (microbatches, "microbatches"),
        (blocks, "blocks"),
        (steps_a_block, "steps_a_block"),
        (threads, "threads"),
    ):
        if whole_amount(value, what, error=InvalidInput) < 1:
            raise InvalidInput(f"{what} must be at least 1")
    whole_amount(warmup, "warmup", error=InvalidInput)
    files = [Path(p).resolve() for p in paths]
    counts = {file: _ranks(file) for file in files}
    if len(set(counts.values())) > 1:
        raise InvalidInput(
            "the schedules are for different numbers of ranks: "
            + ", ".join(f"{file} {count}" for file, count in counts.items())
        )
    ranks = counts[files[0]]
    job = {
        "target": target,
        "arguments": dict(arguments or {}),
        "schedules": [str(file) for file in files],
        "ranks": ranks,
        "microbatches": microbatches,
        "blocks": blocks,
        "steps_a_block": steps_a_block,
        "warmup": warmup,
        "threads": threads,
        "timeout_s": timeout_s,
    }
    with tempfile.TemporaryDirectory(prefix="zbsolve-run-") as name:
        directory = Path(name)
        (directory / "job.json").write_text(json.dumps(job), encoding="utf-8")
        environment = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), **loopback()}
        run_ranks("zbsolve.executor.torch_rank", directory, ranks, timeout_s=timeout_s, environment=environment)
        reports = [json.loads((directory / f"result-{rank}.json").read_text(encoding="utf-8")) for rank in range(ranks)]
        return tuple(_collect(directory, file, number, reports) for number, file in enumerate(files))


def _collect(directory: Path, path: Path, number: int, reports: Sequence[dict[str, Any]]) -> TorchRun:
    gradients: Named = {}
    for rank in range(len(reports)):
        found = torch.load(directory / f"gradients-{number}-{rank}.pt", weights_only=True)
        for key, gradient in found.items():
            stage, _, name = key.partition(":")
            gradients[int(stage), name] = gradient
    losses = [value for report in reports for value in report["losses"][number]]
    if not losses:
        raise RunError(f"{path}: no rank computed a loss")
    per_block = zip(*(report["marks"][number] for report in reports), strict=True)
    return TorchRun(
        path=path,
        step_ns=tuple(step_ns(block) for block in per_block),
        loss=sum(losses) / len(losses),
        gradients=gradients,
    )


def step_ns(block: Sequence[Sequence[Sequence[int]]]) -> int:
    """The time of a step from the (start, end) of every rank and step of a block; one clock serves all processes."""
    steps = len(block[0])
    if steps == 1:
        return max(rank[0][1] for rank in block) - min(rank[0][0] for rank in block)
    return max(rank[-1][1] - rank[0][1] for rank in block) // (steps - 1)


def _ranks(path: Path) -> int:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return sum(1 for row in csv.reader(file) if row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"cannot read the schedule {path}: {error}") from None


def loopback() -> dict[str, str]:
    """All ranks are on this host: a name that does not resolve must not stop gloo."""
    if "GLOO_SOCKET_IFNAME" in os.environ or not Path("/sys/class/net/lo").exists():
        return {}
    return {"GLOO_SOCKET_IFNAME": "lo"}
