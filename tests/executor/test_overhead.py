"""What the runtime does around an operation, counted in calls of functions: the same on every machine, however busy."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from tests.executor import pipes
from tests.executor.split_reference import compare_gradients
from zbsolve.catalog import baseline
from zbsolve.executor.runtime import Pipeline
from zbsolve.executor.split import SplitStage, engine
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Profile
from zbsolve.simulate import simulate


def calls(work):
    """How many functions of Python and C `work` calls."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


class Nothing(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x + self.bias


def test_an_action_on_a_stage_that_does_nothing_takes_few_calls():
    stages, microbatches = 4, 8
    profile = Profile.uniform(stages, forward_ns=1, backward_input_ns=1, backward_weight_ns=1)
    problem = Problem(profile=profile, placement=Placement.custom([0] * stages), microbatches=microbatches)
    table = simulate(problem, baseline("naive", problem))
    pipe = Pipeline(table, [Nothing() for _ in range(stages)], lambda output, target: output.sum())
    batch = torch.ones(microbatches, 1), torch.zeros(microbatches, 1)
    pipe.step(*batch)
    (rank,) = pipe.ranks
    rank.training.desk.inputs[:] = [(torch.ones(1, 1),)] * microbatches
    run = calls(lambda: rank._run(rank.training))
    # 34 with torch 2.13, the module's own and autograd's among them
    assert run / (2 * stages * microbatches) <= 38


def test_splitting_a_linear_takes_few_calls():
    """Of 17 more layers, so that what a stage does once does not count."""

    def of(layers):
        stage = SplitStage(nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers))))
        x, dy = torch.randn(2, 3, 4), torch.randn(2, 3, 4)

        def forward():
            stage.forward(0, x, requires_grad=[True])

        def backward():
            stage.backward_input(0, [dy])
            stage.backward_weight(0)

        for _ in range(2):
            forward()
            backward()
        return calls(forward), calls(backward)

    (few_f, few_b), (many_f, many_b) = of(3), of(20)
    # 28 and 33 with torch 2.13
    assert (many_f - few_f) / 17 <= 32
    assert (many_b - few_b) / 17 <= 36


@pytest.mark.parametrize("which", ["as on a device", "public"])
def test_every_way_into_autograd_gives_the_same_gradients(monkeypatch, which):
    public = which == "public"
    chosen = engine._publicly if public else torch.autograd.graph._engine_run_backward
    mine, twin = pipes.model(1)[0], pipes.model(1)[0]
    stage, plain = SplitStage(mine), SplitStage(twin)
    x = torch.randn(3, pipes.WIDTH)
    found = []
    for one in (stage, plain):
        if one is stage:
            monkeypatch.setattr(engine, "_engine", lambda: chosen)
        (y,) = one.forward(0, x, requires_grad=[True])
        (dx,) = one.backward_input(0, [torch.ones_like(y)])
        one.backward_weight(0)
        found.append(dx)
        monkeypatch.undo()
    assert torch.equal(*found)
    compare_gradients(twin, mine)
