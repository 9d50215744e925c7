"""The peak of what microbatches hold on each rank: predicted from a measured profile, and as the order runs.

Each stage is measured alone with one microbatch (bytes after F and after B); the timetable foretells the peak of every
rank from that. Then the order runs on our runtime, and each stage says after each of its operations what it holds.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.split import Block
from zbsolve.catalog import baseline
from zbsolve.executor.runtime import Pipeline
from zbsolve.executor.split import SplitStage
from zbsolve.executor.transports import InProcess
from zbsolve.metrics import metrics
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Profile, StageCost
from zbsolve.simulate import simulate

__all__ = ["run"]

RANKS, MICROBATCHES, WIDTH, LENGTH = 4, 8, 64, 32
SCHEDULES = ("1f1b", "zb-h1", "zb-h2")


class _Weighed(SplitStage):
    """Notes the most that it holds after any operation."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module, watch=True)
        self.held: list[int] = []

    def _weigh(self, result: Any) -> Any:
        self.held.append(self.held_bytes().total)
        return result

    def forward(self, key: Hashable, *inputs: Any, **options: Any) -> tuple[Any, ...]:
        """F."""
        return self._weigh(super().forward(key, *inputs, **options))

    def backward_input(self, key: Hashable, grad_outputs: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
        """B."""
        return self._weigh(super().backward_input(key, grad_outputs))

    def backward_weight(self, key: Hashable) -> None:
        """W."""
        self._weigh(super().backward_weight(key))


def _stages() -> list[_Weighed]:
    """Unequal: every second one has two blocks."""
    torch.manual_seed(0)
    return [_Weighed(nn.Sequential(*[Block(WIDTH) for _ in range(1 + s % 2)])) for s in range(RANKS)]


def _loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((output - target) ** 2).mean()


def _measured(microbatch: torch.Tensor) -> Profile:
    """Bytes of one microbatch on every stage; all operations equally long."""
    costs = []
    x = microbatch
    for number, stage in enumerate(_stages()):
        last = number == RANKS - 1
        finish = (lambda output: _loss(output, torch.zeros_like(output))) if last else None
        (y,) = stage.forward(0, x, requires_grad=[number > 0], finish=finish)
        stage.backward_input(0, [None if last else torch.ones_like(y)])
        stage.backward_weight(0)
        after_forward, after_input, _ = stage.held
        # microbatches of stage 0 are views of the batch, which lies there all the time
        own = microbatch.nbytes if number == 0 else 0
        costs.append(
            StageCost(
                forward_ns=1,
                backward_input_ns=1,
                backward_weight_ns=1,
                activation_bytes=after_forward - own,
                backward_weight_bytes=after_input,
                static_bytes=MICROBATCHES * own,
            )
        )
        x = y.detach().clone() if not last else x
    return Profile(stages=tuple(costs))


def run() -> list[dict[str, Any]]:
    """The rows of `peak`, one a schedule and rank."""
    torch.manual_seed(1)
    batch, target = (torch.randn(MICROBATCHES, LENGTH, WIDTH) for _ in range(2))
    profile = _measured(batch[:1].clone())
    rows = []
    for schedule in SCHEDULES:
        problem = Problem(profile=profile, placement=Placement.linear(RANKS), microbatches=MICROBATCHES)
        timetable = simulate(problem, baseline(schedule, problem))
        stages = _stages()
        pipe = Pipeline(timetable, dict(enumerate(stages)), _loss, transport=InProcess(RANKS))
        pipe.step(batch, target)
        for rank, predicted in enumerate(metrics(timetable).peak_bytes):
            measured = max(stages[rank].held)
            rows.append(
                {
                    "schedule": schedule,
                    "rank": rank,
                    "predicted_bytes": predicted,
                    "measured_bytes": measured,
                    "ratio": round(measured / predicted, 4),
                }
            )
    return rows
