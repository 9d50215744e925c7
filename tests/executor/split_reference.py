"""Plain autograd beside a split stage, on the same microbatches: the two must agree bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from zbsolve.executor.split import SplitStage

torch.set_num_threads(1)


def gradients_of(outputs: Sequence[Any], seed: int) -> list[torch.Tensor | None]:
    """Random output gradients, the same for the same seed."""
    generator = torch.Generator().manual_seed(1000 + seed)
    return [
        torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o.device, o.dtype)
        if o.requires_grad
        else None
        for o in outputs
    ]


def as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


class Checkpointed(nn.Module):
    """A module whose forward runs again in its backward."""

    def __init__(self, inner: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.inner = inner
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


class Plain:
    """The same operations by autograd: F when F comes, everything else when W comes."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.graphs: dict[int, tuple[list[torch.Tensor], tuple[Any, ...]]] = {}

    def forward(self, key: int, inputs: Sequence[torch.Tensor], wants: Sequence[bool]) -> tuple[Any, ...]:
        leaves = [x.detach().requires_grad_(w) for x, w in zip(inputs, wants, strict=True)]
        outputs = as_tuple(self.module(*leaves))
        self.graphs[key] = (leaves, outputs)
        return outputs

    def backward(self, key: int) -> list[torch.Tensor | None]:
        leaves, outputs = self.graphs.pop(key)
        pairs = [(o, g) for o, g in zip(outputs, gradients_of(outputs, key), strict=True) if g is not None]
        torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs])
        return [x.grad if x.requires_grad else None for x in leaves]


def same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is None and b is None
    return a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)


def compare_gradients(plain: nn.Module, split: nn.Module) -> None:
    for (name, p), q in zip(plain.named_parameters(), split.parameters(), strict=True):
        assert same(p.grad, q.grad), f"{name}: {None if p.grad is None else (p.grad - q.grad).abs().max()}"


def run_both(
    make: Callable[[], nn.Module],
    batches: Sequence[Sequence[torch.Tensor]],
    wants: Sequence[bool],
    *,
    plan: Sequence[tuple[str, int]] | None = None,
    exact: bool = True,
    **options: Any,
) -> SplitStage:
    """Run a plan on a split stage and on plain autograd and compare everything.

    The plan's letters: F, B, W, S (backward of a forward that may be split), and f with X (a forward
    told that its backward will be one, and that backward). By default F of all, B of all, W of all.
    """
    torch.manual_seed(0)
    mine = make()
    reference = Plain(copy.deepcopy(mine))
    stage = SplitStage(mine, **options)
    keys = range(len(batches))
    plan = plan or [(kind, k) for kind in "FBW" for k in keys]
    wanted: dict[int, list[torch.Tensor | None]] = {}
    found: dict[int, tuple[Any, ...]] = {}
    for step, (kind, k) in enumerate(plan):
        if kind in "Ff":
            torch.manual_seed(step)
            expected = reference.forward(k, batches[k], wants)
            torch.manual_seed(step)
            outputs = stage.forward(k, *batches[k], requires_grad=wants, split=kind == "F")
            assert len(outputs) == len(expected)
            for o, e in zip(outputs, expected, strict=True):
                assert same(o.detach(), e.detach())
                assert o.requires_grad == e.requires_grad
        elif kind == "B":
            before = [p.grad if p.grad is None else p.grad.clone() for p in mine.parameters()]
            graph = reference.graphs[k][1]
            found[k] = stage.backward_input(k, gradients_of(graph, k))
            for p, g in zip(mine.parameters(), before, strict=True):
                assert same(p.grad, g), "B touched .grad"
        else:
            if kind == "W":
                stage.backward_weight(k)
            else:
                found[k] = stage.backward(k, gradients_of(reference.graphs[k][1], k))
            wanted[k] = reference.backward(k)
            for a, b in zip(found[k], wanted[k], strict=True):
                assert (a is None) == (b is None)
                assert a is None or torch.equal(a, b), "input gradient"
            if exact:
                compare_gradients(reference.module, mine)
    assert stage.in_flight == ()
    if not exact:
        for (name, p), q in zip(reference.module.named_parameters(), mine.named_parameters(), strict=True):
            torch.testing.assert_close(q[1].grad, p.grad, msg=name)
    return stage
