"""Starting autograd's engine without `torch.autograd.backward`'s own checks.

Those look at shapes by way of symbolic ones and cost more than the engine does for a small stage; a
stage has checked shapes already, and the engine checks them once more, with types and devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

__all__ = ["run_backward"]

# not public: where a version of torch lacks it, the public way does the same, more slowly
_engine: Callable[..., Any] | None = getattr(torch.autograd.graph, "_engine_run_backward", None)


def run_backward(edges: Sequence[GradientEdge], gradients: Sequence[torch.Tensor]) -> None:
    """Run the graph behind edges from their gradients, adding to ``.grad`` of leaves; the graph is freed."""
    if _engine is None:
        torch.autograd.backward(edges, gradients)
    else:
        _engine(tuple(edges), tuple(gradients), False, False, (), allow_unreachable=True, accumulate_grad=True)
