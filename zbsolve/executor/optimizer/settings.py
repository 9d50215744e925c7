"""The settings a step ran with: learning rates and whatever else stands in the parameter groups.

Between a step and its validation the user's learning-rate scheduler moves on, and some optimizers
write into their groups themselves. A repair must run with the settings of *its* step and must not
lose what the user set since::

    before --- optimistic step ---> after --- user, scheduler ---> now
       |                                                            |
       '--- put back; repair, if any; then set what differs between after and now

Values are copied, tensors too (a learning rate may be one), and written back into the same tensors.
"""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import torch

__all__ = ["Settings"]

_MISSING = object()


class Settings:
    """A copy of everything in an optimizer's groups but the parameters."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.groups: tuple[dict[str, Any], ...] = tuple(
            {key: _copied(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups
        )

    @torch.no_grad()
    def put_back(self, optimizer: torch.optim.Optimizer) -> None:
        """Give the groups the copied values; groups added since are left alone."""
        for group, saved in zip(optimizer.param_groups, self.groups, strict=False):
            for key in [key for key in group if key != "params" and key not in saved]:
                del group[key]
            for key, value in saved.items():
                _set(group, key, value)

    @torch.no_grad()
    def set_changes(self, optimizer: torch.optim.Optimizer, now: Settings) -> None:
        """Give the groups what ``now`` has different from this."""
        for group, old, new in zip(optimizer.param_groups, self.groups, now.groups, strict=False):
            for key in old.keys() | new.keys():
                value = new.get(key, _MISSING)
                if _same(old.get(key, _MISSING), value):
                    continue
                if value is _MISSING:
                    group.pop(key, None)
                else:
                    _set(group, key, value)


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple):
        return type(value)(_copied(item) for item in value)
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return deepcopy(value)


def _set(group: dict[str, Any], key: str, value: Any) -> None:
    current = group.get(key)
    if isinstance(current, torch.Tensor) and isinstance(value, torch.Tensor) and current.shape == value.shape:
        if not torch.equal(current, value):
            current.copy_(value)
    else:
        group[key] = _copied(value)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        both = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        # NaN is the same as NaN: taking it for the user's change would bring back what an undo removed
        alike = both and a.shape == b.shape and a.dtype == b.dtype
        if not alike or not (a.is_floating_point() or a.is_complex()):
            return alike and bool(torch.equal(a, b))
        return bool(torch.isclose(a, b, rtol=0.0, atol=0.0, equal_nan=True).all())
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b):
        return True
    if type(a) in (list, tuple) and type(b) is type(a):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if type(a) is dict and type(b) is dict:
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return a is b or bool(a == b)
