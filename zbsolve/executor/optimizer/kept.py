"""Gradients kept for a repair: the tensors themselves where the optimizer only reads them, else copies.

A repair has to start from the gradients of before the step. Most steps read them only; some write
into them: torch's SGD with Nesterov momentum in its foreach flavour (the default on CUDA), step hooks
that clip, and many an optimizer from elsewhere. Whoever is known to, or might, gets copies made;
for the others the tensors' version counters tell if the step wrote after all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch

from zbsolve.errors import RunError
from zbsolve.executor.optimizer.gradients import local

__all__ = ["Keep", "KeptGradients"]

Keep = Literal["reference", "copy"]


class KeptGradients:
    """Gradients of some parameters, as they were when this was made.

    Parameters
    ----------
    optimizer
        Whose step comes next.
    parameters
        Its parameters; those without a gradient are left out.
    keep
        ``reference``, ``copy``, or None to decide by the optimizer.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, parameters: Iterable[torch.Tensor], keep: Keep | None = None
    ) -> None:
        copy = keep == "copy" or (keep is None and _may_write(optimizer))
        found = {p: p.grad for p in parameters if p.grad is not None}
        self.of = {p: g.detach().clone() for p, g in found.items()} if copy else found
        self._optimizer = type(optimizer).__name__
        self._versions = None if copy else [local(g)._version for g in found.values()]

    @property
    def nbytes(self) -> int:
        """Of all of them."""
        return sum(local(g).numel() * g.element_size() for g in self.of.values())

    def refuse_written(self) -> None:
        """After the step: make sure that it only read.

        Raises
        ------
        RunError
            If it wrote into a gradient that is kept by reference.
        """
        if self._versions is not None and self._versions != [local(g)._version for g in self.of.values()]:
            raise RunError(
                f"the step of {self._optimizer} wrote into its gradients, so it could not be repeated: "
                "build PostValidatedOptimizer with keep_gradients='copy'"
            )


def _may_write(optimizer: torch.optim.Optimizer) -> bool:
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return True
    if not type(optimizer).__module__.startswith("torch.optim"):
        return True
    return isinstance(optimizer, torch.optim.SGD) and any(
        group["nesterov"] and not group["fused"] and _foreach(group["foreach"], group["params"])
        for group in optimizer.param_groups
    )


def _foreach(asked: bool | None, parameters: Iterable[torch.Tensor]) -> bool:
    # unless told otherwise torch takes this flavour wherever the parameters are on a device
    return any(p.device.type != "cpu" for p in parameters) if asked is None else asked
