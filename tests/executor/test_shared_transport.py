"""Several pipelines on one transport, and steps that fail: what waits from step to step stays whose it is."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.executor import pipes
from zbsolve.errors import RunError
from zbsolve.executor.runtime import Pipeline
from zbsolve.executor.transports import InProcess
from zbsolve.placement import Placement

RANKS = 3


class Raises(nn.Module):
    """Fails at one of its calls."""

    def __init__(self, inner, at):
        super().__init__()
        self.inner, self.at, self.calls = inner, at, 0

    def forward(self, x):
        self.calls += 1
        if self.calls == self.at:
            raise ValueError("no such luck")
        return self.inner(x)


def pipeline(seed, transport=None, stages=None, **options):
    stages = pipes.model(RANKS, seed=seed) if stages is None else stages
    table = pipes.timetable(Placement.linear(RANKS), 4, seed=seed)
    options = {"max_grad_norm": 0.01, "check_overflow": True, **options}
    return Pipeline(table, stages, pipes.square_loss, transport=transport, optimizer=torch.optim.AdamW, **options)


def weights(pipe):
    pipe.flush()
    return [p.detach().clone() for rank in pipe.ranks for w in rank.stages.values() for p in w.module.parameters()]


def data(step):
    inputs, target = pipes.batch(4, seed=step)
    return inputs, target * (1000.0 if step % 2 else 1.0)


def test_two_pipelines_that_take_turns_train_as_if_alone():
    alone = []
    for seed in (1, 2):
        pipe = pipeline(seed)
        for step in range(4):
            pipe.step(*data(step))
        alone.append(weights(pipe))
    hub = InProcess(RANKS)
    both = [pipeline(seed, hub) for seed in (1, 2)]
    for step in range(4):
        for pipe in both:
            pipe.step(*data(step))
    for pipe, expected in zip(reversed(both), reversed(alone), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(weights(pipe), expected, strict=True))


def test_a_failure_of_one_pipeline_leaves_what_the_other_waits_for():
    expected = pipeline(1)
    hub = InProcess(RANKS)
    stages = pipes.model(RANKS, seed=2)
    stages[1] = Raises(stages[1], 2)
    good, bad = pipeline(1, hub), pipeline(2, hub, stages)
    for pipe in (expected, good):
        pipe.step(*data(1))
    with pytest.raises(RunError, match="no such luck"):
        bad.step(*data(1))
    for pipe in (expected, good):
        pipe.step(*data(2))
    assert all(torch.equal(a, b) for a, b in zip(weights(good), weights(expected), strict=True))


@pytest.mark.parametrize("stage", range(RANKS))
@pytest.mark.parametrize("at", [5, 7])
def test_a_step_that_fails_is_as_if_it_had_not_been(stage, at):
    stages = pipes.model(RANKS, seed=1)
    stages[stage] = Raises(stages[stage], at)
    # forwards that run again after a clipped step would move the call that fails
    pipe, expected = pipeline(1, stages=stages, max_grad_norm=1e6), pipeline(1, max_grad_norm=1e6)
    for one in (pipe, expected):
        one.step(*data(0))
    with pytest.raises(RunError, match="no such luck"):
        pipe.step(*data(2))
    pipe.zero_grad()
    for one in (pipe, expected):
        one.step(*data(4))
    assert all(torch.equal(a, b) for a, b in zip(weights(pipe), weights(expected), strict=True))


def test_updates_that_some_ranks_have_made_and_others_not_are_refused_until_a_state_is_loaded():
    class Bad(torch.optim.SGD):
        calls = 0

        def step(self, closure=None):
            Bad.calls += 1
            if Bad.calls == 5:
                raise ArithmeticError("no step")
            return super().step(closure)

    stages = pipes.model(RANKS, seed=1)
    table = pipes.timetable(Placement.linear(RANKS), 4, seed=1)
    pipe = Pipeline(
        table, stages, pipes.square_loss, optimizer=lambda p: Bad(p, lr=0.1), max_grad_norm=1e6, check_overflow=True
    )
    pipe.step(*data(0))
    state = copy.deepcopy(pipe.state_dict())
    with pytest.raises(RunError, match="no step"):
        pipe.step(*data(2))
    with pytest.raises(RunError, match="their weights are of different steps: call load_state_dict"):
        pipe.step(*data(2))
    pipe.load_state_dict(state)
    pipe.zero_grad()
    assert pipe.step(*data(2)).isfinite()
    pipe.flush()
