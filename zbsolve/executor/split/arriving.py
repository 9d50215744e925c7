"""Tensors whose values are still on their way.

A collective inside a module (`RowwiseParallel` at the end of a stage) may return a tensor that waits for
its values at its first use. It has no memory that a message could be sent from, so whatever leaves a
stage is waited for there.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["arrived"]


def arrived(tensor: Any) -> Any:
    """The plain tensor with the values that a collective has yet to bring; everything else as it is."""
    # torch's own class for it is no public one, and may be absent
    if type(tensor) is torch.Tensor or not hasattr(tensor, "trigger_wait"):
        return tensor
    return tensor.trigger_wait().detach().requires_grad_(tensor.requires_grad)
