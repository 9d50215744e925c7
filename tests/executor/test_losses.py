"""What a loss function may be and give, and targets that do not belong to the batch."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch
from torch import nn

from tests.executor import pipes
from zbsolve.errors import InvalidInput, RunError
from zbsolve.executor.gradients import plain_gradients
from zbsolve.executor.runtime import Pipeline
from zbsolve.placement import Placement

pytestmark = pytest.mark.usefixtures("one_thread")


def table():
    return pipes.timetable(Placement.linear(2), 4)


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(pipes.WIDTH))

    def forward(self, output, target):
        return (self.weight * (output - target) ** 2).mean()

    def other(self, output, target):
        return self(output, target)


class Holding(nn.Module):
    def __init__(self, inner, loss):
        super().__init__()
        self.inner, self.loss = inner, loss

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize(
    "bound",
    [lambda m: m, lambda m: m.other, lambda m: partial(m.other), lambda m: partial(torch.add, m.weight)],
    ids=["module", "method", "partial", "parameter"],
)
def test_a_loss_that_learns_apart_from_the_stages_is_refused(bound):
    with pytest.raises(InvalidInput, match=r"loss_fn has a parameter that learns .* submodule of the last stage"):
        Pipeline(table(), pipes.model(2), bound(Weighted()))


def test_a_frozen_loss_and_one_without_parameters_are_taken():
    for loss in (Weighted().requires_grad_(False), nn.MSELoss()):
        assert Pipeline(table(), pipes.model(2), loss).step(*pipes.batch(4)).isfinite()


def test_a_loss_in_the_last_stage_learns_as_in_plain_training():
    loss = Weighted()
    stages = pipes.model(2)
    stages[1] = Holding(stages[1], loss)
    before = loss.weight.detach().clone()
    twins = pipes.clones(stages)
    data = pipes.batch(4)
    reference, _ = plain_gradients(twins, data, twins[1].loss, 4)
    pipe = Pipeline(table(), stages, loss)
    pipe.step(*data)
    assert torch.equal(loss.weight.grad, reference[1, "loss.weight"])
    pipe = Pipeline(table(), stages, loss, optimizer=lambda p: torch.optim.SGD(p, lr=0.1), max_grad_norm=1.0)
    pipe.zero_grad()
    pipe.step(*data)
    pipe.flush()
    assert not torch.equal(loss.weight, before)


def test_a_complex_loss_is_refused():
    with pytest.raises(RunError, match=r"must return a real number, got torch.complex64"):
        Pipeline(table(), pipes.model(2), lambda o, t: ((o - t) ** 2).mean() * (1 + 1j)).step(*pipes.batch(4))


@pytest.mark.parametrize("rows", [4, 8])
def test_a_target_that_would_be_stretched_over_the_output_is_told_once(rows):
    """Of one row a microbatch for an output of two, or the other way round."""
    pipe = Pipeline(table(), pipes.model(2), pipes.square_loss)
    batch, target = pipes.batch(4, rows=rows // 4)[0], pipes.batch(4, rows=3 - rows // 4)[1]
    with pytest.warns(UserWarning, match="as many rows as the batch") as told:
        pipe.steps([(batch, target)] * 2)
    assert len(told) == 1


def test_targets_of_other_shapes_that_mean_something_are_not_told():
    def tokens(output, target):
        return nn.functional.cross_entropy(output, target)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Pipeline(table(), pipes.model(2), tokens).step(pipes.batch(4)[0], torch.zeros(8, dtype=torch.long))
        # rows that the loss cuts anew
        Pipeline(table(), pipes.model(2), lambda o, t: (o.reshape(-1, 2) - t).square().mean()).step(
            pipes.batch(4)[0], torch.zeros(16, 2)
        )
