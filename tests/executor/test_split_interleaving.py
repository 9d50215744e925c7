"""Any small model, any order of F, B and W, several stages at once: the gradients of plain autograd."""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from tests.executor.split_reference import Checkpointed, Plain, compare_gradients, gradients_of, run_both
from zbsolve.executor.split import SplitStage

WIDTH = 6


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


class Scaled(nn.Module):
    """A bare parameter, which no module that can be split holds."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.alpha


class Functional(nn.Module):
    """A Linear used by its parameters, not by its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.inner.weight) + self.inner.bias


class Channels(nn.Module):
    """(batch, time, width) seen as channels by what wants them second."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


class Mean(nn.Module):
    """Hands an expanded gradient back, whose positions share their memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1, keepdim=True)


class Attention(nn.Module):
    """torch's own, whose parameters go to one function that is not split."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


def frozen(module: nn.Module, names: tuple[str, ...]) -> nn.Module:
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name not in names)
    return module


LEAVES = st.sampled_from(
    [
        lambda: nn.Linear(WIDTH, WIDTH),
        lambda: nn.Linear(WIDTH, WIDTH, bias=False),
        lambda: frozen(nn.Linear(WIDTH, WIDTH), ("weight",)),
        lambda: frozen(nn.Linear(WIDTH, WIDTH), ("bias",)),
        lambda: frozen(nn.Linear(WIDTH, WIDTH), ("weight", "bias")),
        lambda: nn.LayerNorm(WIDTH),
        lambda: frozen(nn.LayerNorm(WIDTH), ("weight",)),
        lambda: nn.RMSNorm(WIDTH),
        lambda: Channels(nn.GroupNorm(2, WIDTH)),
        lambda: Channels(nn.Conv1d(WIDTH, WIDTH, 3, padding=1)),
        lambda: Channels(frozen(nn.Conv1d(WIDTH, WIDTH, 3, padding=1), ("bias",))),
        nn.GELU,
        lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), Mean()),
        lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)),
        lambda: nn.Dropout(0.3),
        Scaled,
        Functional,
        Attention,
    ]
)


@st.composite
def makers(draw):
    parts = draw(st.lists(LEAVES, min_size=1, max_size=4))
    wraps = draw(
        st.lists(
            st.sampled_from(["", "", "residual", "again", "checkpoint", "sequence"]),
            min_size=len(parts),
            max_size=len(parts),
        )
    )

    def make() -> nn.Module:
        layers: list[nn.Module] = []
        for part, wrap in zip(parts, wraps, strict=True):
            module = part()
            if wrap == "residual":
                module = Residual(module)
            elif wrap == "checkpoint":
                module = Checkpointed(nn.Sequential(module, nn.Linear(WIDTH, WIDTH)), reentrant=False)
            elif wrap == "sequence":
                module = nn.Sequential(module, Residual(nn.Sequential(nn.Tanh(), module)))
            layers.append(module)
            if wrap == "again":
                layers.append(module)
        return nn.Sequential(*layers)

    return make


@st.composite
def plans(draw, count):
    """A random order of F, then B and W or one backward, microbatch by microbatch as they come."""
    ways = draw(st.lists(st.sampled_from(["FBW", "FBW", "FS", "fX"]), min_size=count, max_size=count))
    left = [list(way) for way in ways]
    plan = []
    while any(left):
        k = draw(st.sampled_from([k for k in range(count) if left[k]]))
        plan.append((left[k].pop(0), k))
    return plan


@settings(max_examples=120, deadline=None, derandomize=True)
@given(make=makers(), plan=st.integers(1, 4).flatmap(plans), wants=st.booleans(), wait=st.booleans())
def test_any_model_in_any_order_has_the_gradients_of_autograd(make, plan, wants, wait):
    count = 1 + max(k for _, k in plan)
    torch.manual_seed(7)
    batches = [[torch.randn(2, 3, WIDTH)] for _ in range(count)]
    run_both(make, batches, [wants], plan=plan, norms_wait=wait)


def test_stages_in_threads_do_not_meet():
    """Four threads, each with its own stage, many microbatches in flight, all at once."""
    torch.manual_seed(0)

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 8))

    stages, references, errors = [], [], []
    for _ in range(4):
        module = make()
        twin = make()
        twin.load_state_dict(module.state_dict())
        stages.append(SplitStage(module))
        references.append(Plain(twin))
    batches = [torch.randn(5, 8) for _ in range(12)]
    gate = threading.Barrier(4)

    def work(stage: SplitStage) -> None:
        try:
            gate.wait(10)
            for k, x in enumerate(batches):
                stage.forward(k, x, requires_grad=[True])
                if k >= 3:
                    stage.backward_input(k - 3, gradients_of([torch.empty(5, 8, requires_grad=True)], k - 3))
                if k >= 5:
                    stage.backward_weight(k - 5)
            for k in range(9, 12):
                stage.backward_input(k, gradients_of([torch.empty(5, 8, requires_grad=True)], k))
            for k in range(7, 12):
                stage.backward_weight(k)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(stage,)) for stage in stages]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    for stage, reference in zip(stages, references, strict=True):
        for k, x in enumerate(batches):
            reference.forward(k, [x], [True])
            reference.backward(k)
        compare_gradients(reference.module, stage.module)


def test_each_operation_may_run_in_another_thread():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 6), Checkpointed(nn.Sequential(nn.Linear(6, 6), nn.Tanh()), reentrant=False))
    twin = copy.deepcopy(module)
    stage, reference = SplitStage(module), Plain(twin)
    x = torch.randn(4, 6)
    (expected,) = reference.forward(0, [x], [True])
    reference.backward(0)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two, ThreadPoolExecutor(1) as three:
        one.submit(stage.forward, 0, x, requires_grad=[True]).result()
        two.submit(stage.backward_input, 0, gradients_of([expected], 0)).result()
        three.submit(stage.backward_weight, 0).result()
    compare_gradients(twin, module)


def test_a_pipeline_of_stages_is_the_model():
    """Three stages hand outputs and gradients on; what they end with is what the whole model has."""
    torch.manual_seed(0)
    parts = [
        nn.Sequential(nn.Embedding(13, 8), nn.Linear(8, 8)),
        nn.Linear(8, 8),
        nn.Sequential(nn.Tanh(), nn.Linear(8, 13)),
    ]
    whole = nn.Sequential(*parts)
    twin = nn.Sequential(
        nn.Sequential(nn.Embedding(13, 8), nn.Linear(8, 8)), nn.Linear(8, 8), nn.Sequential(nn.Tanh(), nn.Linear(8, 13))
    )
    twin.load_state_dict(whole.state_dict())
    stages = [SplitStage(part, name=f"stage {i}") for i, part in enumerate(parts)]
    data = [torch.randint(13, (4, 5)) for _ in range(3)]
    targets = [torch.randint(13, (20,)) for _ in range(3)]
    for k in range(3):
        (loss,) = (functional.cross_entropy(twin(data[k]).flatten(0, 1), targets[k]),)
        loss.backward()
        value: torch.Tensor = data[k]
        for stage in stages[:2]:
            (value,) = stage.forward(k, value)
        (mine,) = stages[2].forward(
            k, value, finish=lambda y, k=k: functional.cross_entropy(y.flatten(0, 1), targets[k])
        )
        assert torch.equal(mine.detach(), loss.detach())
    for k in range(3):
        gradient: torch.Tensor | None = None
        for stage in reversed(stages):
            (gradient,) = stage.backward_input(k, [gradient])
        assert gradient is None
    for stage in reversed(stages):
        for k in range(3):
            stage.backward_weight(k)
    compare_gradients(twin, whole)
