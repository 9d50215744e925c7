"""Models that the processes of `test_torch_pipelining.py` build for themselves, named by file and function."""

from __future__ import annotations

import torch
from torch import nn

from zbsolve.demo.model import Block, Embedding, next_byte_loss, text_batch


def tiny(*, stages, microbatches):
    """A transformer with one block a stage, in float64; the first embeds, the last has the head."""
    torch.manual_seed(1)
    parts = [[Block(32, 1)] for _ in range(stages)]
    parts[0].insert(0, Embedding(32, 8))
    parts[-1].append(nn.Linear(32, 256))
    return [nn.Sequential(*p).double() for p in parts], text_batch(2 * microbatches, 8), next_byte_loss


class FallsOver(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls > 4:
            raise ValueError("the weights fell over")
        return self.layer(x)


def falling():
    """The second stage fails after the first pass that torch learns the shapes from, and some microbatches."""
    batch = torch.ones(4, 2), torch.ones(4, 2)
    return [nn.Linear(2, 2), FallsOver(), nn.Linear(2, 2)], batch, nn.functional.mse_loss


def shared():
    """Two stages with one weight."""
    layer = nn.Linear(2, 2)
    return [layer, nn.Linear(2, 2), nn.Sequential(layer)], (torch.ones(4, 2), torch.ones(4, 2)), nn.functional.mse_loss
