"""`Embedding`: nothing to hand back, since indices have no gradient; W scatters dy into the table.

::

    F    y = table[i]         keeps i
    B                         queues (i, dy)
    W    dtable[i] += dy
"""

from __future__ import annotations

from typing import Any

import torch

from zbsolve.executor.split.queue import Gradients, WeightQueue

__all__ = ["EmbeddingSplit", "embedding_flops", "weigh_embedding"]


class EmbeddingSplit(torch.autograd.Function):
    """`torch.embedding` whose backward leaves the table's gradient to the queue."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        indices: torch.Tensor,
        _ticket: torch.Tensor,
        table: torch.Tensor,
        queue: WeightQueue,
        padding_idx: int,
        by_frequency: bool,
    ) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.queue = queue
        ctx.settings = (padding_idx, by_frequency)
        ctx.parameters = (table,)
        ctx.save_for_backward(indices)
        return torch.embedding(table, indices, padding_idx, by_frequency)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor | None) -> Any:  # type: ignore[override]
        if dy is not None:
            (indices,) = ctx.saved_tensors
            rows = ctx.parameters[0].shape[0]
            ctx.queue.add(weigh_embedding, (indices, dy, rows, *ctx.settings), ctx.parameters)
        return None, None, None, None, None, None


def weigh_embedding(
    indices: torch.Tensor, dy: torch.Tensor, rows: int, padding_idx: int, by_frequency: bool
) -> Gradients:
    """The table's gradient, of shape (rows, width)."""
    return (torch.ops.aten.embedding_dense_backward(dy, indices, rows, padding_idx, by_frequency),)


def embedding_flops(arguments: tuple[Any, ...]) -> int:
    """Additions of `weigh_embedding`."""
    return int(arguments[1].numel())
