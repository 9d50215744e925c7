"""`Embedding`: nothing to hand back, since indices have no gradient; W scatters dy into the table.

::

    F    y = table[i]         keeps i
    B                         queues (i, dy)
    W    dtable[i] += dy
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from zbsolve.executor.split.engine import direct
from zbsolve.executor.split.waiting import Gradients, WeightQueue

__all__ = ["EmbeddingCall", "embedding_flops", "split_embedding", "weigh_embedding"]


class EmbeddingCall(NamedTuple):
    """One call of an `Embedding`, apart from its indices."""

    table: torch.Tensor
    queue: WeightQueue
    padding_idx: int
    """-1 for none."""
    by_frequency: bool


class EmbeddingSplit(torch.autograd.Function):
    """`torch.embedding` whose backward leaves the table's gradient to the queue."""

    @staticmethod
    def forward(ctx: Any, indices: torch.Tensor, _ticket: torch.Tensor, call: EmbeddingCall) -> torch.Tensor:
        """Run F: compute y, and keep what B and W need."""
        ctx.set_materialize_grads(False)
        ctx.call = call
        ctx.save_for_backward(indices)
        return torch.embedding(call.table, indices, call.padding_idx, call.by_frequency)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor | None) -> Any:
        """Run B: hand back dx, and queue what W needs."""
        if dy is not None:
            (indices,) = ctx.saved_tensors
            table, queue, padding_idx, by_frequency = ctx.call
            queue.add((weigh_embedding, (indices, dy, padding_idx, by_frequency), (table,)))
        return None, None, None


split_embedding = direct(EmbeddingSplit)


def weigh_embedding(
    parameters: tuple[torch.Tensor], indices: torch.Tensor, dy: torch.Tensor, padding_idx: int, by_frequency: bool
) -> Gradients:
    """Compute the table's gradient."""
    rows = parameters[0].shape[0]
    return (torch.ops.aten.embedding_dense_backward(dy, indices, rows, padding_idx, by_frequency),)


def embedding_flops(_parameters: object, _indices: torch.Tensor, dy: torch.Tensor, *_settings: object) -> int:
    """Additions of `weigh_embedding`."""
    return dy.numel()
