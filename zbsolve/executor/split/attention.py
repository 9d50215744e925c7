"""`MultiheadAttention`: torch's own code, run with another `linear`.

Its parameters go into one long function of torch, which projects with `linear` and takes the weights
as arguments, so there is no module to split in it. But a Python function finds the names it calls in
its globals, and a copy of it can be given others::

    MultiheadAttention.forward ---F---> multi_head_attention_forward ----> linear
            |                                    |         +---> _in_projection... ---> linear
          copies                                copies
            v                                    v
       the same code -----------------> the same code ----> linear that splits what it can

Nothing of torch is changed, and no line of it repeated. A projection by a part of a weight (attention
to another sequence than its own) is not split, nor would anything be if torch came to call other names.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

__all__ = ["attention_with"]

_HELPERS = ("_in_projection_packed", "_in_projection")

Linear = Callable[..., torch.Tensor]


class _Functional:
    """`torch.nn.functional` with one function replaced."""

    def __init__(self, attend: Callable[..., Any]) -> None:
        self.multi_head_attention_forward = attend

    def __getattr__(self, name: str) -> Any:
        return getattr(functional, name)


def rebound(function: Any, **names: Any) -> Any:
    """A copy of a Python function that finds other things under these names."""
    copy = FunctionType(
        function.__code__,
        {**function.__globals__, **names},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def attention_with(linear: Linear) -> Any:
    """`MultiheadAttention.forward`, unbound, with this `linear` for all its projections."""
    helpers = {name: rebound(vars(functional)[name], linear=linear) for name in _HELPERS if name in vars(functional)}
    attend = rebound(functional.multi_head_attention_forward, linear=linear, **helpers)
    return rebound(nn.MultiheadAttention.forward, F=_Functional(attend))
