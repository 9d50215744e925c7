"""Stages that are computed again: the same gradients bit for bit, from fewer bytes."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.executor import pipes
from zbsolve.catalog import baseline
from zbsolve.check import check
from zbsolve.errors import RunError
from zbsolve.executor.runtime import Pipeline
from zbsolve.executor.split import SplitStage
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.profile import Profile
from zbsolve.simulate import simulate
from zbsolve.solver import solve

torch.set_num_threads(1)

WIDTH, MICROBATCHES = 8, 4


class Deep(nn.Module):
    """Draws random numbers, counts, and keeps far more than its input."""

    def __init__(self, depth: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = nn.functional.dropout(torch.tanh(layer(x)), 0.3)
        return self.norm(x)


def asked(placement: Placement, **changes):
    problem = pipes.problem(placement, MICROBATCHES)
    stages = tuple(replace(cost, checkpoint_bytes=1) for cost in problem.profile.stages)
    allow = frozenset({"split", "fused", "recompute"})
    return replace(problem, profile=Profile(stages=stages), allow=allow, **changes)


def plainly(stages: list[nn.Module], data: torch.Tensor, target: torch.Tensor) -> None:
    for x, y in zip(data.chunk(MICROBATCHES), target.chunk(MICROBATCHES), strict=True):
        (pipes.square_loss(nn.Sequential(*stages)(x), y) / MICROBATCHES).backward()


def assert_same(stages: list[nn.Module], mine: list[nn.Module]) -> None:
    for plain, split in zip(stages, mine, strict=True):
        assert all(torch.equal(p.grad, q.grad) for p, q in zip(plain.parameters(), split.parameters(), strict=True))
        assert all(torch.equal(p, q) for p, q in zip(plain.buffers(), split.buffers(), strict=True))


@pytest.mark.parametrize("placement", [Placement.linear(2), Placement.v(2), Placement.looped(1, 2)], ids=str)
@pytest.mark.parametrize("name", ["gpipe-recompute", "1f1b, split"])
def test_gradients_are_those_of_the_plain_model(placement, name):
    torch.manual_seed(0)
    problem = asked(placement)
    if name == "gpipe-recompute":
        order = baseline(name, problem)
    else:
        order = pipes.orderly(problem, 3, fused=0.0)
        order = type(order)(tuple(tuple(again(row)) for row in order.rows))
    stages = pipes.model(placement.stages)
    mine = copy.deepcopy(stages)
    data, target = pipes.batch(MICROBATCHES)
    plainly(stages, data, target)
    pipe = Pipeline(simulate(problem, order), mine, pipes.square_loss)
    pipe.step(data, target)
    assert_same(stages, mine)
    trace = pipe.trace()
    check(problem, trace.order)
    assert trace.profile().stages[0].recompute_ns > 0


def again(row):
    for op in row:
        if op.kind is Kind.BACKWARD_INPUT and op.microbatch % 2 == 0:
            yield Op(Kind.RECOMPUTE, op.stage, op.microbatch)
        yield op


def test_random_numbers_and_running_means_are_those_of_one_forward():
    torch.manual_seed(0)
    plain, stage = Deep(), None
    mine = copy.deepcopy(plain)
    stage = SplitStage(mine)
    data = torch.randn(3, 5, WIDTH)
    torch.manual_seed(1)
    sums = [plain(x).square().sum() for x in data]
    drawn = torch.rand(1)
    for total in sums:
        total.backward()
    torch.manual_seed(1)
    outputs = [stage.forward(j, x, split=j > 0, checkpoint=j < 2) for j, x in enumerate(data)]
    assert torch.equal(torch.rand(1), drawn)
    state = torch.get_rng_state()
    for j, (y,) in enumerate(outputs):
        assert y.requires_grad
        if j < 2:
            stage.recompute(j)
        stage.backward(j, [2 * y.detach()])
    assert torch.equal(torch.get_rng_state(), state)
    assert stage.in_flight == ()
    assert_same([plain], [mine])


def test_a_checkpoint_holds_the_inputs_alone_and_its_forward_little_more():
    stage = SplitStage(Deep(), watch=True)
    x = torch.randn(16, WIDTH)
    alive = []
    stage.module.norm.register_forward_pre_hook(lambda *_: alive.append(sum(stage._watch.made.alive().values())))
    (y,) = stage.forward(0, x, checkpoint=True)
    size = x.nbytes
    y = y.sum().item()
    assert stage.held_bytes().total == size
    assert stage.in_flight == (0,)
    stage.recompute(0)
    assert stage.held_bytes().total > 6 * size
    assert alive[0] < 4 * size < 12 * size < alive[1]


def test_what_cannot_be_computed_again_is_told():
    class Writes(nn.Module):
        def forward(self, x):
            return x.mul_(2) + 0

    x = torch.ones(2)
    with pytest.raises(RunError, match="writes into its inputs"):
        SplitStage(Writes()).forward(0, x, checkpoint=True)
    stage = SplitStage(nn.Linear(2, 2))
    with pytest.raises(RunError, match="has not kept a checkpoint"):
        stage.recompute(0)
    (y,) = stage.forward(0, x, checkpoint=True)
    with pytest.raises(RunError, match="its recompute comes first"):
        stage.backward(0, [y])
    with pytest.raises(RunError, match="in flight already"):
        stage.forward(0, x)
    stage.abandon()
    assert stage.in_flight == ()


def test_what_is_solved_stays_under_its_limit_when_it_runs():
    """Measured bytes decide: 1F1B holds more than the limit, what the solver finds does not."""
    torch.manual_seed(0)
    stages = [Deep() for _ in range(3)]
    rows = 16
    probe = SplitStage(copy.deepcopy(stages[0]), watch=True)
    x = torch.randn(rows, WIDTH)
    probe.forward(0, x)
    whole = probe.held_bytes().total
    checkpoint = x.nbytes
    limit = 2 * whole + checkpoint + x.nbytes
    problem = pipes.problem(Placement.linear(3), MICROBATCHES)
    # workspace: the output, until it has been sent
    costs = tuple(
        replace(cost, activation_bytes=whole, checkpoint_bytes=checkpoint, workspace_bytes=x.nbytes)
        for cost in problem.profile.stages
    )
    problem = replace(
        problem, profile=Profile(stages=costs), memory_limit=limit, allow=frozenset({"fused", "recompute"})
    )
    plain = baseline("1f1b", problem)
    assert measured(problem, plain, copy.deepcopy(stages), rows)[0] > limit
    solution = solve(problem, work_limit=2_000, workers=1)
    check(problem, solution.timetable)
    assert "recompute" in str(solution)
    assert max(measured(problem, solution.timetable.order, copy.deepcopy(stages), rows)) <= limit


def measured(problem, order, modules: list[nn.Module], rows: int) -> list[int]:
    """The most bytes held at the end of any operation by each rank's microbatches in flight."""
    peaks = [0] * problem.placement.ranks
    held: dict[int, int] = {}

    class Measured(SplitStage):
        def note(self) -> None:
            number = int(self.name)
            held[number] = self.held_bytes().total
            peaks[number] = max(peaks[number], held[number])

        def forward(self, *inputs, **how):
            outputs = super().forward(*inputs, **how)
            # within a process the next stage keeps the very tensor, which is not this one's to count
            outputs = tuple(o.detach().clone().requires_grad_(o.requires_grad) for o in outputs)
            self.note()
            return outputs

        def recompute(self, key):
            super().recompute(key)
            self.note()

    works = [Measured(module, name=str(number), watch=True) for number, module in enumerate(modules)]
    data, target = torch.randn(2, rows * MICROBATCHES, WIDTH)
    Pipeline(simulate(problem, order), works, pipes.square_loss).step(data, target)
    return peaks
