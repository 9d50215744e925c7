"""Buffers that forwards change are put back where forwards run again, and where a step fails."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from tests.executor import pipes
from zbsolve.catalog import baseline
from zbsolve.errors import RunError
from zbsolve.executor.kept import KeptBuffers
from zbsolve.executor.measure import measure_profile
from zbsolve.executor.runtime import Pipeline
from zbsolve.executor.split import SplitStage
from zbsolve.placement import Placement
from zbsolve.simulate import simulate

pytestmark = pytest.mark.usefixtures("one_thread")


class Averaging(nn.Module):
    """A running mean that forward writes into, or replaces by a new tensor."""

    def __init__(self, way):
        super().__init__()
        self.inner, self.way = nn.Linear(pipes.WIDTH, pipes.WIDTH), way
        self.register_buffer("mean", torch.zeros(pipes.WIDTH))
        if way == "alternates":
            self.register_buffer("spare", torch.zeros(pipes.WIDTH))

    def forward(self, x):
        y = self.inner(x)
        now = y.detach().mean(0)
        if self.way == "written":
            self.mean.mul_(0.9).add_(now)
        elif self.way == "assigned":
            self.mean = 0.9 * self.mean + now
        else:
            self.mean, self.spare = self.spare.add_(now), self.mean
        return torch.tanh(y) + self.mean


WAYS = ["written", "assigned", "alternates"]


def stages_of(way, count=4):
    torch.manual_seed(1)
    return [Averaging(way) for _ in range(count)]


def state(stages):
    return {name: value.clone() for name, value in nn.ModuleList(stages).state_dict().items()}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


@pytest.mark.parametrize("way", WAYS)
def test_forwards_that_run_again_start_from_the_same_buffers(way):
    asked = pipes.problem(Placement.linear(4), 8)
    table = simulate(asked, baseline("zb-h2", asked))
    found = []
    for synchronous in (True, False):
        stages = stages_of(way)
        pipe = Pipeline(
            table, stages, pipes.square_loss, optimizer=lambda p: torch.optim.AdamW(p, lr=0.01),
            max_grad_norm=0.02, synchronous=synchronous,
        )  # fmt: skip
        pipe.steps([pipes.batch(8, seed=k) for k in range(3)])
        pipe.flush()
        found.append(state(stages))
    assert any(validation.rerun for validation in pipe.validations)
    assert_equal(*found)


@pytest.mark.parametrize("way", WAYS)
def test_measuring_leaves_buffers_as_they_were(way):
    stages = stages_of(way, 1)
    tensors, before = dict(stages[0].named_buffers()), state(stages)
    inputs, target = pipes.batch(1)
    measure_profile(stages, (inputs, target), pipes.square_loss, repeats=1, warmup=1)
    assert_equal(state(stages), before)
    assert all(tensor is tensors[name] for name, tensor in stages[0].named_buffers())


def test_names_that_have_come_and_gone_and_tensors_of_another_size():
    module = nn.Module()
    module.register_buffer("gone", torch.ones(2))
    module.register_buffer("empty", None)
    module.register_buffer("grown", torch.ones(3))
    grown = module.grown
    kept = KeptBuffers([module])
    del module.gone
    module.empty = torch.ones(1)
    module.register_buffer("new", torch.ones(1))
    module.grown.resize_(5).zero_()
    kept.put_back()
    assert list(module._buffers) == ["gone", "empty", "grown"]
    assert module.empty is None
    assert module.grown is grown
    assert_equal(dict(module.named_buffers()), {"gone": torch.ones(2), "grown": torch.ones(3)})


@pytest.mark.parametrize("way", WAYS)
def test_a_failed_step_leaves_buffers_as_they_were(way):
    stages = stages_of(way)
    failing = {"at": 0}

    def fails(module, _):
        failing["at"] -= 1
        if failing["at"] == 0:
            raise ValueError("no such luck")

    stages[2].register_forward_pre_hook(fails)
    pipe = Pipeline(pipes.timetable(Placement.linear(4), 4), stages, pipes.square_loss)
    pipe.step(*pipes.batch(4))
    before = state(stages)
    failing["at"] = 3
    with pytest.raises(RunError, match="no such luck"):
        pipe.step(*pipes.batch(4))
    assert_equal(state(stages), before)


class FailsOnceAtTheEnd:
    """Raises after a rank's row, once another rank has ended the step."""

    def __init__(self, other):
        self.other, self.armed = other, False

    def begin(self, *, update):
        pass

    def complete(self, stage):
        pass

    def end(self):
        if self.armed:
            self.armed, before = False, self.other.steps
            deadline = time.monotonic() + 30
            while self.other.steps == before and time.monotonic() < deadline:
                time.sleep(0.001)
            raise ValueError("no such luck")


def test_ranks_that_had_ended_the_failed_step_go_back_as_well():
    def trained(fail):
        stages = stages_of("assigned", 2)
        pipe = Pipeline(
            pipes.timetable(Placement.linear(2), 4), stages, pipes.square_loss,
            optimizer=lambda p: torch.optim.SGD(p, lr=0.1), max_grad_norm=0.1, accumulation_steps=2,
        )  # fmt: skip
        trouble = FailsOnceAtTheEnd(pipe.ranks[0])
        pipe.ranks[1].around.append(trouble)
        if fail:
            before = state(stages)
            trouble.armed = True
            with pytest.raises(RunError, match="no such luck"):
                pipe.step(*pipes.batch(4))
            assert [rank.steps for rank in pipe.ranks] == [0, 0]
            assert_equal(state(stages), before)
            pipe.zero_grad()
        for seed in range(4):
            pipe.step(*pipes.batch(4, seed=seed))
        pipe.flush()
        return state(stages)

    assert_equal(trained(True), trained(False))


def test_what_was_noted_before_is_not_put_back_over_a_loaded_state():
    stages = stages_of("written", 2)
    pipe = Pipeline(pipes.timetable(Placement.linear(2), 4), stages, pipes.square_loss)
    early = {
        "stages": {n: {n: {k: v.clone() for k, v in stages[n].state_dict().items()}} for n in range(2)},
        "optimizers": {},
        "steps": 0,
    }
    for _ in range(2):
        pipe.step(*pipes.batch(4))
    pipe.load_state_dict(early)
    before = state(stages)
    with pytest.raises(RunError):
        pipe.eval(torch.zeros(8, pipes.WIDTH + 1))
    assert_equal(state(stages), before)


@pytest.mark.parametrize("way", WAYS)
def test_a_forward_that_is_computed_again_counts_once(way):
    (module,) = stages_of(way, 1)
    (twin,) = pipes.clones([module])
    stage, (x, _) = SplitStage(module), pipes.batch(2)
    (y,) = stage.forward(0, x, requires_grad=[True], checkpoint=True)
    stage.recompute(0)
    stage.backward(0, [torch.ones_like(y)])
    twin(x)
    assert_equal(dict(module.named_buffers()), dict(twin.named_buffers()))
