"""A small transformer that reads English bytes, cut into four stages.

Unequal by nature: the first stage also embeds the tokens, the last also has the head and the loss.
"""

from __future__ import annotations

from importlib.resources import files

import torch
from torch import nn
from torch.nn import functional

from zbsolve.executor.target import Target

__all__ = ["BLOCKS", "STAGES", "Block", "build", "text_batch"]

BLOCKS = 8
STAGES = 4
VOCABULARY = 256


class Embedding(nn.Module):
    """Bytes and their positions as vectors."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, length) integers to (batch, length, width)."""
        embedded: torch.Tensor = self.token(tokens) + self.position
        return embedded


class Block(nn.Module):
    """Causal self-attention and a perceptron, each behind a norm and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        # a bias of the keys would have no gradient but rounding: softmax does not see it
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) to the same."""
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.query_key_value(self.attention_norm(x)).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        result: torch.Tensor = x + self.perceptron(x)
        return result


def next_byte_loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of the next byte, in nats."""
    return functional.cross_entropy(logits.flatten(0, -2), target.flatten())


def text_batch(sequences: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Windows of the shipped text, evenly spread: bytes, and the bytes one further; both (sequences, length)."""
    content = torch.tensor(list(files("zbsolve.demo").joinpath("text.txt").read_bytes()))
    last = len(content) - length - 1
    starts = [last * k // max(sequences - 1, 1) for k in range(sequences)]
    windows = torch.stack([content[start : start + length + 1] for start in starts])
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def build(
    *,
    seed: int = 0,
    width: int = 128,
    length: int = 64,
    sequences: int = 4,
    microbatches: int = 1,
    dtype: str = "float64",
) -> Target:
    """The model's stages, a batch of text, and the loss.

    Parameters
    ----------
    seed
        Of the weights.
    width, length
        Of the model and of a sequence; the width is a multiple of 32.
    sequences
        In one microbatch.
    microbatches
        In the batch.
    dtype
        Of the weights, a name in torch.

    Returns
    -------
    ``(stages, (inputs, target), loss_fn)``
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        blocks = [Block(width, width // 32) for _ in range(BLOCKS)]
        share = BLOCKS // STAGES
        parts: list[list[nn.Module]] = [list(blocks[s * share : (s + 1) * share]) for s in range(STAGES)]
        parts[0].insert(0, Embedding(width, length))
        parts[-1] += [nn.LayerNorm(width), nn.Linear(width, VOCABULARY)]
    stages = tuple(nn.Sequential(*part).to(getattr(torch, dtype)) for part in parts)
    return stages, text_batch(sequences * microbatches, length), next_byte_loss
