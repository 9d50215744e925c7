"""Stages whose activations are away in host memory for a while: the same gradients bit for bit, from fewer bytes."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.executor import pipes
from tests.executor.test_recompute import Deep, assert_same, plainly
from zbsolve.catalog import baseline
from zbsolve.check import check
from zbsolve.errors import RunError
from zbsolve.executor.measure import measure_profile
from zbsolve.executor.runtime import Pipeline
from zbsolve.executor.split import SplitStage
from zbsolve.metrics import metrics
from zbsolve.ops import Kind
from zbsolve.placement import Placement
from zbsolve.profile import HostLink, Profile
from zbsolve.simulate import simulate
from zbsolve.solution import offloaded, recomputed
from zbsolve.solver import solve
from zbsolve.solver.away import moved

torch.set_num_threads(1)

WIDTH, MICROBATCHES = 8, 4


class Odd(nn.Module):
    """Saves views, aliases, its parameters, a constant of everybody's, its input and its output."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(WIDTH))
        self.mask = torch.rand(WIDTH)
        self.linear = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = (self.linear(x) * x.mean()).exp().chunk(2, dim=-1)
        c = (a * b.flip(-1)).t().t() * self.mask
        y = c.relu() * self.scale
        return torch.tanh(y * x.sin().expand_as(y))


def asked(placement: Placement, **changes):
    problem = pipes.problem(placement, MICROBATCHES)
    profile = replace(problem.profile, host_link=HostLink())
    return replace(problem, profile=profile, allow=frozenset({"split", "fused", "offload"}), **changes)


@pytest.mark.parametrize("placement", [Placement.linear(2), Placement.v(2), Placement.looped(1, 2)], ids=str)
@pytest.mark.parametrize("fused", [0.0, 1.0])
def test_gradients_are_those_of_the_plain_model(placement, fused):
    torch.manual_seed(0)
    problem = asked(placement)
    order = moved(pipes.orderly(problem, 3, fused=fused), range(placement.stages))
    assert offloaded(order) == dict.fromkeys(range(placement.stages), MICROBATCHES)
    stages = pipes.model(placement.stages)
    mine = copy.deepcopy(stages)
    data, target = pipes.batch(MICROBATCHES)
    for _ in range(2):
        plainly(stages, data, target)
    pipe = Pipeline(simulate(problem, order), mine, pipes.square_loss)
    for _ in range(2):
        pipe.step(data, target)
    assert_same(stages, mine)
    trace = pipe.trace()
    check(problem, trace)
    took = [ns for op, ns in trace.durations() if op.kind is Kind.RELEASE]
    assert took
    assert not any(took)


@pytest.mark.parametrize("split", [True, False])
def test_whatever_autograd_has_saved_comes_back_as_it_was(split):
    torch.manual_seed(0)
    plain = Odd()
    mine = copy.deepcopy(plain)
    again = copy.deepcopy(plain)
    stage = SplitStage(mine)
    data = torch.randn(4, 5, WIDTH, requires_grad=True)
    inputs = [x.detach().requires_grad_() for x in data]
    for x in inputs:
        plain(x).square().sum().backward()
    leaves = [x.detach().requires_grad_() for x in data]
    outputs = [stage.forward(j, x, split=split, moves=j != 1)[0] for j, x in enumerate(leaves)]
    for j in (0, 2, 3):
        stage.offload(j)
        stage.release(j)
    assert stage.host_bytes() > 0
    for j in (2, 0, 1, 3):
        if j != 1:
            stage.reload(j)
        (found,) = stage.backward(j, [2 * outputs[j].detach()])
        assert torch.equal(found, inputs[j].grad)
    assert stage.in_flight == ()
    assert stage.host_bytes() == 0
    other = SplitStage(again)
    outputs = [other.forward(j, x, split=split)[0] for j, x in enumerate(leaves)]
    for j in (2, 0, 1, 3):
        other.backward(j, [2 * outputs[j].detach()])
    assert_same([again], [mine])


def test_random_numbers_and_running_means_take_part_once():
    torch.manual_seed(0)
    plain = Deep()
    mine = copy.deepcopy(plain)
    stage = SplitStage(mine)
    data = torch.randn(3, 5, WIDTH)
    torch.manual_seed(1)
    for total in [plain(x).square().sum() for x in data]:
        total.backward()
    torch.manual_seed(1)
    outputs = [stage.forward(j, x, split=j > 0, moves=j < 2) for j, x in enumerate(data)]
    for j in range(2):
        stage.offload(j)
        stage.release(j)
    for j, (y,) in enumerate(outputs):
        if j < 2:
            stage.reload(j)
        stage.backward(j, [2 * y.detach()])
    assert_same([plain], [mine])


def test_the_device_holds_less_while_it_is_away_and_the_backward_frees_as_it_goes():
    stage = SplitStage(Deep(), watch=True)
    x = torch.randn(16, WIDTH)
    size = x.nbytes
    (y,) = stage.forward(0, x, moves=True)
    grad = torch.ones_like(y)
    del y
    whole = stage.held_bytes().total
    assert whole > 6 * size
    stage.offload(0)
    assert stage.held_bytes().total == whole
    stage.release(0)
    away = stage.host_bytes()
    # the input stays, as it lies in a slot
    assert stage.held_bytes().total == whole - away == size
    stage.reload(0)
    assert stage.held_bytes().total == whole
    alive = []
    leaf = stage.module.layers[0].weight
    leaf.register_hook(lambda _: alive.append(sum(stage._watch.made.alive().values())))
    stage.backward(0, [grad])
    assert alive[0] < whole / 2
    assert stage.in_flight == ()
    assert stage.held_bytes().total == 0


def test_what_comes_out_of_turn_is_told():
    stage = SplitStage(nn.Linear(2, 2))
    x = torch.ones(2)
    (y,) = stage.forward(0, x)
    with pytest.raises(RunError, match="was not told that it moves"):
        stage.offload(0)
    (y,) = stage.forward(1, x, moves=True)
    with pytest.raises(RunError, match="release comes right behind offload, not behind forward"):
        stage.release(1)
    stage.offload(1)
    stage.release(1)
    with pytest.raises(RunError, match="behind reload, not behind release"):
        stage.backward(1, [y.detach()])
    stage.abandon()
    assert stage.in_flight == ()
    assert stage.host_bytes() == 0


def test_writing_into_what_a_backward_needs_is_told_as_autograd_does():
    class Writes(nn.Module):
        def forward(self, x):
            y = (2 * x).exp()
            z = y.sin()
            y.add_(1)
            return z

    stage = SplitStage(Writes())
    x = torch.ones(2, requires_grad=True)
    (z,) = stage.forward(0, x, moves=True)
    stage.offload(0)
    stage.release(0)
    stage.reload(0)
    with pytest.raises(RunError, match="has written into a tensor of shape"):
        stage.backward(0, [z.detach()])


class Sized(nn.Module):
    """Deeper or less deep: stages that hold unequal amounts."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x * 1


class Constant(nn.Module):
    """Needs a tensor of its own that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = torch.rand(16, WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x) * self.mask)


@pytest.mark.parametrize("views", [True, False])
def test_targets_and_constants_are_neither_moved_nor_brought_back_twice(views):
    """A target may be part of a batch, all of which is one memory."""
    target = torch.randn(6 * 16, WIDTH)[:16]
    target = target if views else target.clone()
    stage = SplitStage(Constant(), watch=True)
    x = torch.randn(16, WIDTH)
    stage.forward(0, x, moves=True, stays=(target,), finish=lambda y: nn.functional.mse_loss(y, target))
    whole = stage.held_bytes().total
    stage.offload(0)
    stage.release(0)
    assert stage.held_bytes().total == whole - stage.host_bytes() == x.nbytes
    stage.reload(0)
    assert stage.held_bytes().total == whole


def test_the_pipeline_says_that_targets_stay():
    torch.manual_seed(0)
    problem = asked(Placement.linear(2))
    order = moved(pipes.orderly(problem, 3, fused=1.0), range(2))
    away: dict[str, set[int]] = {}

    class Counted(SplitStage):
        def offload(self, key, mark):
            before = self.host_bytes()
            marks = super().offload(key, mark)
            away.setdefault(self.name, set()).add(self.host_bytes() - before)
            return marks

    stages = pipes.model(2)
    data, target = pipes.batch(MICROBATCHES)
    rows = len(data) // MICROBATCHES
    sample = data[:rows], target[:rows]
    found = measure_profile(stages, sample, nn.functional.mse_loss, repeats=1, warmup=0)
    works = [Counted(module, name=str(number)) for number, module in enumerate(stages)]
    Pipeline(simulate(problem, order), works, nn.functional.mse_loss).step(data, target)
    assert away == {str(number): {cost.offload_bytes} for number, cost in enumerate(found.stages)}


@pytest.mark.parametrize("factor", [1.4, 2.2])
@pytest.mark.parametrize("way", ["recompute", "offload", "both"])
def test_what_is_solved_on_a_measured_profile_stays_under_its_limit_when_it_runs(way, factor):
    """1F1B holds more than the limit, what the solver finds does not, byte for byte."""
    torch.manual_seed(0)
    rows, microbatches = 16, 6
    stages = [Sized(depth) for depth in (6, 3, 4)]
    sample = torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)
    found = measure_profile(stages, sample, pipes.square_loss, repeats=1, warmup=0)
    # parameters, held all the time, are not what is compared; nor is how fast this machine is
    base = pipes.problem(Placement.linear(3), microbatches)
    costs = [
        replace(
            timed,
            activation_bytes=cost.activation_bytes,
            backward_weight_bytes=cost.backward_weight_bytes,
            checkpoint_bytes=cost.checkpoint_bytes,
            offload_bytes=cost.offload_bytes,
            workspace_bytes=cost.workspace_bytes,
        )
        for timed, cost in zip(base.profile.stages, found.stages, strict=True)
    ]
    limit = int(factor * costs[0].activation_bytes)
    allow = {"split", "fused", *(("recompute", "offload") if way == "both" else (way,))}
    problem = replace(
        base,
        profile=Profile(stages=tuple(costs), host_link=HostLink(latency_ns=1)),
        memory_limit=limit,
        allow=frozenset(allow),
    )
    plain = baseline("1f1b", problem)
    assert metrics(simulate(problem, plain)).peak_bytes[0] > limit
    assert measured(problem, plain, copy.deepcopy(stages), rows)[0] > limit
    solution = solve(problem, work_limit=2_000, workers=1)
    check(problem, solution.timetable)
    away, again = offloaded(solution.timetable.order), recomputed(solution.timetable.order)
    assert away or again
    assert all(f"stage {stage}" in str(solution) for stage in {*away, *again})
    planned = metrics(solution.timetable).peak_bytes
    peaks = measured(problem, solution.timetable.order, copy.deepcopy(stages), rows)
    assert all(peak <= plan for peak, plan in zip(peaks, planned, strict=True))


def test_of_each_loss_one_number_is_kept():
    """torch makes the mean of squares in memory for all the squares."""
    rows = 16
    stages = [Sized(2), Sized(2)]
    loss_fn = nn.functional.mse_loss
    sample = torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)
    found = measure_profile(copy.deepcopy(stages), sample, loss_fn, repeats=1, warmup=0)
    problem = replace(pipes.problem(Placement.linear(2), 6), profile=found, allow=frozenset({"fused"}))
    order = baseline("1f1b", problem)
    planned = metrics(simulate(problem, order)).peak_bytes
    static = [cost.static_bytes for cost in found.stages]
    for peak, plan, own in zip(measured(problem, order, stages, rows, loss_fn), planned, static, strict=True):
        assert peak <= plan - own


def apart(x: torch.Tensor) -> torch.Tensor:
    return x.detach().clone().requires_grad_(x.requires_grad)


def measured(problem, order, modules: list[nn.Module], rows: int, loss_fn=pipes.square_loss) -> list[int]:
    """The most bytes held on the device at the end of any operation by each rank's microbatches in flight."""
    peaks = [0] * problem.placement.ranks
    # the number that each microbatch's loss is, kept until the step ends, is no stage's
    losses = problem.microbatches * 4

    class Measured(SplitStage):
        def note(self) -> None:
            number = int(self.name)
            own = losses if number == problem.placement.stages - 1 else 0
            peaks[number] = max(peaks[number], self.held_bytes().total - own)

        def forward(self, *inputs, **how):
            # within a process the next stage keeps the very tensor, which is not this one's to count; nor is the batch
            key, *inputs = inputs
            outputs = super().forward(key, *map(apart, inputs), **how)
            outputs = tuple(map(apart, outputs))
            self.note()
            return outputs

        def backward(self, key, gradients):
            return tuple(None if g is None else g.clone() for g in super().backward(key, gradients))

        def backward_input(self, key, gradients):
            found = tuple(None if g is None else g.clone() for g in super().backward_input(key, gradients))
            self.note()
            return found

        def recompute(self, key):
            super().recompute(key)
            self.note()

        def reload(self, key, mark):
            marks = super().reload(key, mark)
            self.note()
            return marks

    works = [Measured(module, name=str(number), watch=True) for number, module in enumerate(modules)]
    data, target = torch.randn(2, rows * problem.microbatches, WIDTH)
    Pipeline(simulate(problem, order), works, loss_fn).step(data, target)
    return peaks
