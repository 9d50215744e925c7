"""What stages may share: within a rank parameters and statistics, between ranks nothing that training changes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.executor import pipes
from zbsolve.errors import InvalidInput
from zbsolve.executor.runtime import Pipeline
from zbsolve.executor.split import SplitStage
from zbsolve.executor.staging import stages_of_ranks
from zbsolve.placement import Placement


def tied():
    stages = pipes.model(3)
    stages[2][0].weight = stages[0][0].weight
    return stages


def common_statistics():
    norm = nn.BatchNorm1d(pipes.WIDTH, affine=False)
    return [nn.Sequential(stage, norm) for stage in pipes.model(3)]


MESSAGES = [
    (tied, r"stage 0 \(0.weight\) and stage 2 \(0.weight\) share a parameter but lie on different ranks"),
    (common_statistics, r"stage 0 \(1.running_mean\) and stage 1 \(1.running_mean\) share a buffer but lie on"),
]


@pytest.mark.parametrize(("make", "message"), MESSAGES)
@pytest.mark.parametrize("mine", [0, 1, 2])
def test_a_process_that_is_given_all_stages_looks_at_all_of_them(make, message, mine):
    with pytest.raises(InvalidInput, match=message):
        stages_of_ranks(make(), [[0], [1], [2]], [[mine]], threads=False)


@pytest.mark.parametrize(("make", "message"), MESSAGES)
def test_threads_refuse_it_before_the_first_step(make, message):
    with pytest.raises(InvalidInput, match=message):
        Pipeline(pipes.timetable(Placement.linear(3), 2), make(), pipes.square_loss)


def test_ready_made_stages_are_looked_at_too():
    with pytest.raises(InvalidInput, match="share a parameter"):
        stages_of_ranks([SplitStage(stage) for stage in tied()], [[0], [1], [2]], [[1]], threads=False)


def test_on_one_rank_both_may_be_shared():
    for make in (tied, common_statistics):
        assert len(stages_of_ranks(make(), [[0], [0], [0]], [[0, 1, 2]], threads=False)[0]) == 3


def test_a_table_of_constants_may_be_shared_by_all():
    class Scaled(nn.Module):
        def __init__(self, table):
            super().__init__()
            self.inner = nn.Linear(pipes.WIDTH, pipes.WIDTH)
            self.register_buffer("table", table, persistent=False)

        def forward(self, x):
            return self.inner(x) * self.table

    table = torch.arange(1.0, pipes.WIDTH + 1)
    pipe = Pipeline(pipes.timetable(Placement.linear(3), 2), [Scaled(table) for _ in range(3)], pipes.square_loss)
    assert pipe.step(*pipes.batch(2)).isfinite()
