"""Undo from a snapshot: a copy of parameters and optimizer state, put back bit by bit.

::

    take      p, state -> copies (on the device, or in host memory: pinned where the device is a GPU)
    step      p, state change in place; new state appears
    restore   copies -> the same tensors; what was not there before goes away

Values are written back into the tensors that were there, so views, flat buffers and compiled code
that look at them stay valid. Lazily created state is removed again, counters that are plain
numbers are set back. Optimizers from outside `torch.optim` may keep more in attributes (numbers,
tensors, containers of them, an inner optimizer): these are copied too; attributes of any other kind
are taken for tools and left alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch

from zbsolve.executor.optimizer.gradients import local, parameters_of
from zbsolve.executor.optimizer.settings import Settings

__all__ = ["Snapshot", "own_attributes"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class Snapshot:
    """Parameters and optimizer state at one moment.

    Parameters
    ----------
    optimizer
        Whose parameters and state to copy.
    device
        Where the copies of device tensors lie: None for beside the originals, ``cpu`` for host memory.
    """

    @torch.no_grad()
    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device | None = None) -> None:
        self._device = device
        self._tensors: dict[int, _Kept] = {}
        self._deep_bytes = 0
        self._optimizers: list[tuple[torch.optim.Optimizer, dict[Any, Any], dict[str, Any]]] = []
        self._inner: list[tuple[torch.optim.Optimizer, Settings]] = []
        for parameter in parameters_of(optimizer):
            self._keep(parameter)
        self.parameter_bytes = sum(kept.nbytes for kept in self._tensors.values())
        self._visit(optimizer)
        # the copies run on the stream of the step that follows them, so they read the old values
        self._copy(back=False)
        tensor_bytes = sum(kept.nbytes for kept in self._tensors.values())
        self.state_bytes = tensor_bytes + self._deep_bytes - self.parameter_bytes

    @property
    def host_bytes(self) -> int:
        """Of the bytes, those that lie in host memory although their originals lie on a device."""
        return sum(kept.nbytes for kept in self._tensors.values() if kept.moved)

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back as it was."""
        self._copy(back=True)
        for optimizer, settings in self._inner:
            settings.put_back(optimizer)
        for optimizer, state, attributes in self._optimizers:
            for key in [key for key in optimizer.state if key not in state]:
                del optimizer.state[key]
            for key, value in state.items():
                optimizer.state[key] = self._revived(value)
            for name, value in attributes.items():
                setattr(optimizer, name, self._revived(value))
            for name in [n for n in own_attributes(optimizer) if n not in attributes]:
                delattr(optimizer, name)

    def _copy(self, *, back: bool) -> None:
        """All tensors at once, one launch a device and dtype where nothing moves between devices."""
        together: dict[tuple[torch.device, torch.dtype], tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for kept in self._tensors.values():
            target, source = (kept.here, kept.copy) if back else (kept.copy, kept.here)
            if kept.moved:
                target.copy_(source, non_blocking=True)
            else:
                targets, sources = together.setdefault((target.device, target.dtype), ([], []))
                targets.append(target)
                sources.append(source)
        for targets, sources in together.values():
            torch._foreach_copy_(targets, sources)

    def _visit(self, optimizer: torch.optim.Optimizer) -> None:
        if any(optimizer is seen for seen, _, _ in self._optimizers):
            return
        state: dict[Any, Any] = {}
        attributes: dict[str, Any] = {}
        if self._optimizers:
            # the outer one's settings are its user's, too, and are put back with more care
            self._inner.append((optimizer, Settings(optimizer)))
            for parameter in parameters_of(optimizer):
                self._keep(parameter)
        self._optimizers.append((optimizer, state, attributes))
        for key, value in optimizer.state.items():
            state[key] = self._saved(value)
        for name, value in own_attributes(optimizer).items():
            attributes[name] = self._saved(value)

    def _saved(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._keep(value)
        if isinstance(value, dict):
            return _Dict(value, {key: self._saved(item) for key, item in value.items()})
        if isinstance(value, list):
            return _List(value, [self._saved(item) for item in value])
        if isinstance(value, tuple) and type(value) is tuple:
            return _Tuple([self._saved(item) for item in value])
        if isinstance(value, torch.optim.Optimizer):
            self._visit(value)
            return _Same(value)
        if isinstance(value, _PLAIN):
            return _Same(value)
        return self._deep(value)

    def _deep(self, value: Any) -> _Same:
        """Anything else, as some optimizers keep in their state, is copied whole and put back as that copy."""
        memo: dict[int, Any] = {}
        copy = deepcopy(value, memo)
        inside = [item for item in memo.values() if isinstance(item, torch.Tensor)]
        self._deep_bytes += sum(item.numel() * item.element_size() for item in inside)
        return _Same(copy)

    def _keep(self, tensor: torch.Tensor) -> _Kept:
        found = self._tensors.get(id(tensor))
        if found is None:
            found = self._tensors[id(tensor)] = _Kept.of(tensor, self._device)
        return found

    def _revived(self, saved: Any) -> Any:
        if isinstance(saved, _Kept):
            return saved.original
        if isinstance(saved, _Dict):
            items = {key: self._revived(item) for key, item in saved.items.items()}
            saved.original.clear()
            saved.original.update(items)
            return saved.original
        if isinstance(saved, _List):
            saved.original[:] = [self._revived(item) for item in saved.items]
            return saved.original
        if isinstance(saved, _Tuple):
            return tuple(self._revived(item) for item in saved.items)
        return saved.original


@dataclass(frozen=True, slots=True)
class _Kept:
    original: torch.Tensor
    here: torch.Tensor  # the part of it that lies on this rank
    copy: torch.Tensor
    moved: bool

    @property
    def nbytes(self) -> int:
        return self.here.numel() * self.here.element_size()

    @classmethod
    def of(cls, tensor: torch.Tensor, device: torch.device | None) -> _Kept:
        here = local(tensor.detach())
        if device is None or device.type == here.device.type:
            return cls(tensor, here, torch.empty_like(here), moved=False)
        pin = here.is_cuda and device.type == "cpu"
        return cls(tensor, here, torch.empty_like(here, device=device, pin_memory=pin), moved=True)


@dataclass(frozen=True, slots=True)
class _Dict:
    original: dict[Any, Any]
    items: dict[Any, Any]


@dataclass(frozen=True, slots=True)
class _List:
    original: list[Any]
    items: list[Any]


@dataclass(frozen=True, slots=True)
class _Tuple:
    items: list[Any]


@dataclass(frozen=True, slots=True)
class _Same:
    original: Any


def own_attributes(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Attributes that an optimizer from outside `torch.optim` may use as state."""
    if type(optimizer).__module__.startswith("torch.optim"):
        return {}
    return {name: value for name, value in vars(optimizer).items() if name not in _BASE and _is_state(value)}


def _is_state(value: Any) -> bool:
    if isinstance(value, dict | list | tuple | set | deque):
        return all(_is_state(item) for item in _items(value))
    return isinstance(value, (*_PLAIN, torch.Tensor, torch.optim.Optimizer))


def _items(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _base_attributes() -> frozenset[str]:
    """What every optimizer has; a learning-rate scheduler adds the names it counts calls by."""
    plain = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    return frozenset(vars(plain)) | {"_opt_called", "_step_count", "step", "grad_scale", "found_inf"}


_BASE = _base_attributes()
