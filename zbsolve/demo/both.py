"""Runs orders on our runtime and on torch's, side by side on the same four processes."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from zbsolve.errors import InvalidInput
from zbsolve.executor.gradients import Named
from zbsolve.executor.processes import run_ranks
from zbsolve.executor.torch_pipelining import loopback, step_ns
from zbsolve.files import write_timetable
from zbsolve.timetable import Timetable

__all__ = ["Measured", "run_both"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One order on one runtime.

    Parameters
    ----------
    step_ns
        A step's time when steps follow each other; the median over blocks.
    gradients
        Of one step's mean loss.
    """

    step_ns: int
    gradients: Named


def run_both(
    timetables: Sequence[Timetable],
    csvs: Sequence[Path],
    arguments: Mapping[str, Any],
    *,
    blocks: int,
    steps_a_block: int,
    timeout_s: float = 300.0,
) -> list[tuple[Measured, Measured]]:
    """Run the demo's model by each order; ours and torch's figures of each.

    Parameters
    ----------
    timetables, csvs
        Each order twice: for our runtime, and in torch's CSV.
    arguments
        Of `zbsolve.demo.model.build`, with the microbatches.
    blocks, steps_a_block
        Turns of each order on each runtime, and the steps in each; no barrier between steps.
    timeout_s
        Until everything is stopped.

    Raises
    ------
    RunError
        If a rank fails or time runs out; all processes are gone by then.
    """
    if len(timetables) != len(csvs):
        raise InvalidInput(f"{len(timetables)} timetables, but {len(csvs)} CSVs")
    ranks = timetables[0].problem.placement.ranks
    with tempfile.TemporaryDirectory(prefix="zbsolve-run-") as name:
        directory = Path(name)
        written = [directory / f"timetable-{number}.json" for number in range(len(timetables))]
        for timetable, path in zip(timetables, written, strict=True):
            write_timetable(path, timetable)
        job = {
            "timetables": [str(path) for path in written],
            "csvs": [str(Path(csv).resolve()) for csv in csvs],
            "arguments": dict(arguments),
            "ranks": ranks,
            "blocks": blocks,
            "steps_a_block": steps_a_block,
            "timeout_s": timeout_s,
        }
        (directory / "job.json").write_text(json.dumps(job), encoding="utf-8")
        environment = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **loopback()}
        run_ranks("zbsolve.demo.rank", directory, ranks, timeout_s=timeout_s, environment=environment)
        results = [json.loads((directory / f"result-{r}.json").read_text(encoding="utf-8")) for r in range(ranks)]
        return [
            (_measured(directory, results, f"zbsolve-{number}"), _measured(directory, results, f"torch-{number}"))
            for number in range(len(timetables))
        ]


def _measured(directory: Path, results: Sequence[dict[str, Any]], run: str) -> Measured:
    gradients: Named = {}
    for rank in range(len(results)):
        for key, gradient in torch.load(directory / f"gradients-{run}-{rank}.pt", weights_only=True).items():
            stage, _, name = key.partition(":")
            gradients[int(stage), name] = gradient
    per_block = zip(*(result[run] for result in results), strict=True)
    return Measured(step_ns=round(statistics.median(map(step_ns, per_block))), gradients=gradients)
