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

from collections.abc import Collection, Mapping

import torch
from torch import nn

from zbsolve.errors import InvalidInput, RunError
from zbsolve.executor.split.modules import KINDS, NORMS, Forward, kind_of
from zbsolve.executor.split.waiting import WeightQueue

__all__ = ["SplitForwards"]


def is_a(module: nn.Module, name: str) -> bool:
    """Whether a class of this name is among the module's own; asked by name, so that nothing is imported for it."""
    return any(kind.__name__ == name for kind in type(module).__mro__)


class _Place:
    """The queue of the microbatch under way, and the ticket into autograd."""

    __slots__ = ("queue", "ticket")

    def __init__(self) -> None:
        self.queue: WeightQueue | None = None
        self.ticket = torch.zeros((), device="cpu", requires_grad=True)


class SplitForwards:
    """The split forwards of a stage's modules, to put in and to take out.

    Parameters
    ----------
    root
        The stage's module.
    keep_whole
        Names of submodules to leave as they are, with all below them.
    norms_wait
        Whether norms leave their gradients to W.

    Attributes
    ----------
    norms
        Ids of the parameters of norms that could wait.
    sharded
        Modules under FSDP, which puts other parameters in and out as it goes.
    reasons
        By id of a parameter: why its module is not split, as far as that is known before running.
    parameters
        The parameters of each module that has any, by name: the modules' own dictionaries, so never out of date.

    Raises
    ------
    InvalidInput
        If `keep_whole` names what is not there, or the stage contains a wrapper for data parallelism.
    """

    def __init__(self, root: nn.Module, keep_whole: Collection[str], norms_wait: bool) -> None:
        self._place = _Place()
        self._forwards: list[tuple[dict[str, object], Forward]] = []
        self._kinds = {**KINDS, **NORMS} if norms_wait else KINDS
        self.norms: set[int] = set()
        self.sharded: list[nn.Module] = []
        self.reasons: dict[int, str] = {}
        self.parameters: list[Mapping[str, torch.Tensor | None]] = []
        unknown = sorted(set(keep_whole) - {name for name, _ in root.named_modules()})
        if unknown:
            raise InvalidInput(f"keep_whole names {unknown[0]!r}, which is no submodule of the stage")
        # by identity, since a shared module has several names
        whole = {id(m) for name in keep_whole for m in root.get_submodule(name).modules()}
        self._visit(root, "", None, whole, set())

    def _visit(self, module: nn.Module, name: str, why: str | None, whole: set[int], seen: set[int]) -> None:
        if id(module) in seen:
            return
        seen.add(id(module))
        for wrapper in ("DistributedDataParallel", "FullyShardedDataParallel"):
            if is_a(module, wrapper):
                raise InvalidInput(
                    f"{wrapper} inside a stage ({name or 'the stage itself'}): it reduces gradients when autograd adds "
                    "them and would never see those that W computes; pass the module it wraps, and let the pipeline "
                    "reduce over replicas"
                )
        if id(module) in whole:
            why = "kept whole as asked"
        elif is_a(module, "FSDPModule"):
            # it frees what it has gathered, and sends off gradients, at the end of its own backward
            why = "sharded by FSDP"
            self.sharded.append(module)
        elif isinstance(module, torch.jit.ScriptModule):
            why = "inside TorchScript"
        elif module._compiled_call_impl is not None or "_orig_mod" in module._modules:
            why = "inside torch.compile"
        kind = kind_of(module)
        if why is None and kind in self._kinds:
            self._forwards.append((module.__dict__, self._kinds[kind](module, module.forward, self._place)))
        if module._parameters:
            self.parameters.append(module._parameters)
        for key, parameter in module._parameters.items():
            if parameter is None:
                continue
            if why is None and kind in NORMS:
                self.norms.add(id(parameter))
            elif why is not None or kind is None:
                self.reasons.setdefault(
                    id(parameter), why or f"{type(module).__name__}.{key} is used by code unknown here"
                )
        for key, child in module._modules.items():
            if child is not None:
                self._visit(child, f"{name}.{key}" if name else key, why, whole, seen)

    @property
    def ticket(self) -> torch.Tensor:
        """A leaf that requires a gradient and never gets one."""
        return self._place.ticket

    def put_in(self, queue: WeightQueue) -> None:
        """Give every module its split forward, to serve the microbatch of this queue.

        Raises
        ------
        RunError
            If a module has another forward of its own already; none is then changed.
        """
        for i, (attributes, forward) in enumerate(self._forwards):
            if "forward" in attributes:
                for earlier, _ in self._forwards[:i]:
                    del earlier["forward"]
                raise RunError(
                    "a module of this stage has another forward than when the stage was prepared: it is being run by "
                    "another stage at the same time (give each rank its own modules), or was changed (prepare again)"
                )
            attributes["forward"] = forward
        self._place.queue = queue

    def take_out(self) -> None:
        """Give every module its own forward back."""
        self._place.queue = None
        for attributes, _ in self._forwards:
            attributes.pop("forward", None)
