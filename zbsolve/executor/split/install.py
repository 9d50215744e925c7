"""Putting the split forwards in and taking them out again.

A module's class, its state_dict and its hooks stay as they are: only the instance's ``forward``
is shadowed, and only while the stage runs a forward or a backward (which may run forwards again,
under activation checkpointing)::

    stage.forward(k)      [in ---- the user's forward ---- out]
    the user's eval                                               nothing is there
    stage.backward_input(k)                                       [in -- autograd -- out]

So deepcopy, pickling and calling the module by oneself see nothing of it, and a module that lies in
two stages of one rank is served by the stage that runs.
"""

from __future__ import annotations

from collections.abc import Collection
from types import TracebackType

import torch
from torch import nn

from zbsolve.errors import InvalidInput, RunError
from zbsolve.executor.split.modules import KINDS, Forward, Place, kind_of

__all__ = ["SplitForwards"]


class SplitForwards:
    """Context in which the modules of a stage that can be split have split forwards.

    Parameters
    ----------
    root
        The stage's module.
    place
        Where the split forwards look for the queue.
    keep_whole
        Names of submodules to leave as they are, with all below them.

    Attributes
    ----------
    reasons
        By id of a parameter: why its module is not split, as far as that is known before running.
    parameters
        The parameters of each module, by name: the modules' own dictionaries, so never out of date.

    Raises
    ------
    InvalidInput
        If `keep_whole` names what is not there.
    """

    def __init__(self, root: nn.Module, place: Place, keep_whole: Collection[str]) -> None:
        self._forwards: list[tuple[dict[str, object], Forward]] = []
        self.reasons: dict[int, str] = {}
        self.parameters: list[dict[str, torch.Tensor | None]] = []
        unknown = sorted(set(keep_whole) - {name for name, _ in root.named_modules()})
        if unknown:
            raise InvalidInput(f"keep_whole names {unknown[0]!r}, which is no submodule of the stage")
        seen: set[int] = set()
        self._visit(root, "", None, place, frozenset(keep_whole), seen)

    def _visit(
        self, module: nn.Module, name: str, why: str | None, place: Place, keep: Collection[str], seen: set[int]
    ) -> None:
        if id(module) in seen:
            return
        seen.add(id(module))
        if name in keep:
            why = "kept whole as asked"
        elif isinstance(module, torch.jit.ScriptModule):
            why = "inside TorchScript"
        elif module._compiled_call_impl is not None or "_orig_mod" in module._modules:
            why = "inside torch.compile"
        kind = kind_of(module)
        if why is None and kind is not None:
            self._forwards.append((module.__dict__, KINDS[kind](module, module.forward, place)))
        self.parameters.append(module._parameters)
        for key, parameter in module._parameters.items():
            if parameter is not None and (why is not None or kind is None):
                unknown = f"{type(module).__name__}.{key} is used by code unknown here"
                self.reasons.setdefault(id(parameter), why or unknown)
        for key, child in module._modules.items():
            if child is not None:
                self._visit(child, f"{name}.{key}" if name else key, why, place, keep, seen)

    def __enter__(self) -> SplitForwards:
        for attributes, forward in self._forwards:
            if "forward" in attributes:
                self._remove(forward)
                raise RunError(
                    "a module of this stage has another forward than when the stage was prepared: it is being run by "
                    "another stage at the same time (give each rank its own modules), or was changed (prepare again)"
                )
            attributes["forward"] = forward
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove(None)

    def _remove(self, until: Forward | None) -> None:
        for attributes, forward in self._forwards:
            if forward is until:
                return
            attributes.pop("forward", None)

    def __len__(self) -> int:
        return len(self._forwards)
