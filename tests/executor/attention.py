"""A tiny causal attention model in stages, whole or in slices of its sequences, for the tests of carrying."""

from __future__ import annotations

import torch
from torch import nn

from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Link, Profile, StageCost

WIDTH, HEADS = 8, 2


class Attention(nn.Module):
    """Causal self-attention with a residual and a perceptron; `carry` holds keys and values of earlier slices."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.after = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(
        self, x: torch.Tensor, carry: tuple[torch.Tensor, torch.Tensor] | None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        rows, length, _ = x.shape
        q, k, v = (t.view(rows, length, HEADS, -1).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, dim=-1))
        if carry is not None:
            k, v = torch.cat([carry[0], k], dim=2), torch.cat([carry[1], v], dim=2)
        before = k.shape[2] - length
        hidden = torch.ones(length, k.shape[2], dtype=torch.bool).triu(before + 1)
        weight = (q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5).masked_fill(hidden, float("-inf")).softmax(-1)
        mixed = (weight @ v).transpose(1, 2).reshape(rows, length, WIDTH)
        x = x + self.out(mixed)
        return x + self.after(x), (k, v)


class Block(nn.Module):
    """One attention as a stage; the first embeds tokens, the last gives logits."""

    def __init__(self, *, tokens: int = 0, logits: int = 0) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, WIDTH) if tokens else nn.Identity()
        self.attention = Attention()
        self.head = nn.Linear(WIDTH, logits) if logits else nn.Identity()

    def forward(self, x, carry):
        y, carried_on = self.attention(self.embed(x), carry)
        return self.head(y), carried_on


class Pointwise(nn.Module):
    """A stage that knows nothing of other positions, and so takes no carry."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return torch.tanh(self.layer(x))


class Layered(nn.Module):
    """Keys and values as a tuple that grows by two with each slice: what is carried on holds what was carried in."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Attention()

    def forward(self, x, carry):
        whole = None if carry is None else (torch.cat(carry[0::2], dim=2), torch.cat(carry[1::2], dim=2))
        y, (k, v) = self.inner(x, whole)
        new = (k[:, :, -x.shape[1] :], v[:, :, -x.shape[1] :])
        return y, (carry or ()) + new


TOKENS = 11


def model(stages: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> list[nn.Module]:
    """Stages of every kind: embedding first, logits last, one that carries nothing, one with a growing tuple."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made: list[nn.Module] = []
        for s in range(stages):
            if s == 0:
                made.append(Block(tokens=TOKENS))
            elif s == stages - 1:
                made.append(Block(logits=TOKENS))
            else:
                made.append((Layered, Pointwise, Block)[(s - 1) % 3]())
    return [stage.to(dtype) for stage in made]


def problem(placement: Placement, sequences: int, slices: int, **changes: object) -> Problem:
    cost = StageCost(
        forward_ns=1000, backward_input_ns=1000, backward_weight_ns=1000, activation_bytes=4, output_bytes=100
    )
    return Problem(
        profile=Profile(stages=(cost,) * placement.stages, link=Link(latency_ns=10)),
        placement=placement,
        microbatches=sequences * slices,
        slices=slices,
        **changes,
    )


def batch(sequences: int, length: int, *, rows: int = 2, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(TOKENS, (sequences * rows, length + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def whole(stages: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    """The model on whole sequences."""
    for stage in stages:
        result = stage(x, None) if not isinstance(stage, Pointwise) else stage(x)
        x = result[0] if isinstance(result, tuple) else result
    return x


def by_slices(stages: list[nn.Module], x: torch.Tensor, target: torch.Tensor, slices: int, divisor: int) -> None:
    """A plain loop over the slices of one sequence and back, each slice in a graph of its own."""
    carry: list[tuple[torch.Tensor, ...]] = [()] * len(stages)
    graphs = []
    for part, wanted in zip(x.chunk(slices, dim=1), target.chunk(slices, dim=1), strict=True):
        given, left = [], []
        y = part
        for s, stage in enumerate(stages):
            if isinstance(stage, Pointwise):
                y = stage(y)
                given.append(())
                left.append(())
                continue
            given.append(tuple(t.detach().requires_grad_() for t in carry[s]))
            y, on = stage(y, given[s] or None)
            left.append(on)
        carry = left
        graphs.append((loss(y, wanted) / divisor, given, left))
    gradients: list[tuple[torch.Tensor | None, ...]] = [()] * len(stages)
    for value, given, left in reversed(graphs):
        pairs = [
            (tensor, gradient)
            for tensors, found in zip(left, gradients, strict=True)
            for tensor, gradient in zip(tensors, found, strict=False)
            if gradient is not None
        ]
        torch.autograd.backward([value, *(t for t, _ in pairs)], [None, *(g for _, g in pairs)])
        gradients = [tuple(t.grad for t in tensors) for tensors in given]
