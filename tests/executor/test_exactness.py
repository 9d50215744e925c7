"""The gradients of a pipeline are, bit for bit, those of the plain model that gathers them microbatch by microbatch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.executor import pipes
from zbsolve.catalog import baseline
from zbsolve.check import check
from zbsolve.errors import InvalidInput
from zbsolve.executor.runtime import Pipeline
from zbsolve.executor.split import SplitStage
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.simulate import simulate
from zbsolve.timetable import Order

torch.set_num_threads(1)

WIDTH, MICROBATCHES = 8, 4


class Again(nn.Module):
    """A module used several times, as it is or through a checkpoint."""

    def __init__(self, inner: nn.Module, times: int, reentrant: bool | None = None) -> None:
        super().__init__()
        self.inner = inner
        self.times = times
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            plain = self.reentrant is None
            x = torch.tanh(self.inner(x) if plain else checkpoint(self.inner, x, use_reentrant=self.reentrant))
        return x


class Side(nn.Module):
    """A weight used by its module and by a function."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(torch.tanh(self.inner(x)), self.inner.weight)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x))) + self.first(x)


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Tanh())


MODULES = {
    "twice": lambda: Again(nn.Linear(WIDTH, WIDTH), 2),
    "three times": lambda: Again(nn.Linear(WIDTH, WIDTH), 3),
    "norm twice": lambda: Again(nn.LayerNorm(WIDTH), 2),
    "by a function, too": Side,
    "tied": Tied,
    "checkpointed": lambda: Again(block(), 3, reentrant=False),
    "checkpointed by reentry": lambda: Again(block(), 3, reentrant=True),
    # kernels are chosen by the number of threads, and each new thread would begin with as many as there are cores
    "convolution": lambda: nn.Conv1d(3, 3, 3, padding=1),
}


def both(name: str, placement: Placement, stages: list[nn.Module], shape: tuple[int, ...]) -> None:
    """Train on one batch both ways."""
    asked = pipes.problem(placement, MICROBATCHES)
    table = simulate(asked, baseline(name, asked))
    mine = copy.deepcopy(stages)
    data, target = torch.randn(2, 2 * MICROBATCHES, *shape)
    for x, y in zip(data.chunk(MICROBATCHES), target.chunk(MICROBATCHES), strict=True):
        (pipes.square_loss(nn.Sequential(*stages)(x), y) / MICROBATCHES).backward()
    Pipeline(table, mine, pipes.square_loss).step(data, target)
    for number, (plain, split) in enumerate(zip(stages, mine, strict=True)):
        for (what, p), q in zip(plain.named_parameters(), split.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None), f"{what} of stage {number}"
            assert p.grad is None or torch.equal(p.grad, q.grad), f"{what} of stage {number}"


@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
def test_weights_used_more_than_once(make, name):
    torch.manual_seed(0)
    stages = [nn.Sequential(nn.Linear(WIDTH, WIDTH), make()) for _ in range(2)]
    both(name, Placement.linear(2), stages, (3, WIDTH))


@pytest.mark.parametrize(
    ("name", "placement"),
    [
        ("torch-zb-v", Placement.v(2)),
        ("zb-v", Placement.v(2)),
        ("interleaved-1f1b", Placement.looped(2, 2)),
        ("zb-v", Placement.v(1)),
    ],
    ids=["torch-zb-v", "zb-v", "interleaved", "one rank"],
)
@pytest.mark.parametrize("make", [block, MODULES["twice"]], ids=["once", "twice"])
def test_weights_of_two_stages(make, name, placement):
    torch.manual_seed(0)
    stages = [make() for _ in range(placement.stages)]
    for rank in range(placement.ranks):
        first, last = (stages[s] for s in (placement.stages_of(rank)[0], placement.stages_of(rank)[-1]))
        for one, other in zip(first.modules(), last.modules(), strict=True):
            other._parameters.update(one._parameters)
    both(name, placement, stages, (3, WIDTH))


def test_a_backward_in_two_neighbouring_halves_runs_as_one_where_nobody_waits_for_the_first():
    ran = []

    class Tells(SplitStage):
        def backward_input(self, key, grad_outputs):
            ran.append((self.name, "B"))
            return super().backward_input(key, grad_outputs)

        def backward(self, key, grad_outputs):
            ran.append((self.name, "BW"))
            return super().backward(key, grad_outputs)

    torch.manual_seed(0)
    stages = [block(), block()]
    mine = copy.deepcopy(stages)
    asked = pipes.problem(Placement.linear(2), MICROBATCHES)
    kinds = (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
    order = Order([[Op(kind, s, j) for j in range(MICROBATCHES) for kind in kinds] for s in range(2)])
    data, target = torch.randn(2, 2 * MICROBATCHES, WIDTH)
    for x, y in zip(data.chunk(MICROBATCHES), target.chunk(MICROBATCHES), strict=True):
        (pipes.square_loss(nn.Sequential(*stages)(x), y) / MICROBATCHES).backward()
    pipe = Pipeline(simulate(asked, order), [Tells(m, name=str(s)) for s, m in enumerate(mine)], pipes.square_loss)
    pipe.step(data, target)
    assert sorted(set(ran)) == [("0", "BW"), ("1", "B")]
    for plain, split in zip(stages, mine, strict=True):
        assert all(torch.equal(p.grad, q.grad) for p, q in zip(plain.parameters(), split.parameters(), strict=True))
    trace = pipe.trace()
    check(asked, trace)
    weights = [t for t in trace.steps[0][0] if t.op.kind is Kind.BACKWARD_WEIGHT]
    assert [t.end_ns - t.start_ns for t in weights] == [0] * MICROBATCHES
    assert trace.profile().stages[0].backward_ns > 0


def test_replicated_stages_may_not_share_parameters():
    stages = [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)]
    stages[1].weight = stages[0].weight
    table = pipes.timetable(Placement.bidirectional(2), 2)
    with pytest.raises(InvalidInput, match="stages 0, 1 share a parameter on rank 0 and lie on other ranks, too"):
        Pipeline(table, stages, pipes.square_loss)
