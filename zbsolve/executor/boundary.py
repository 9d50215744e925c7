"""What passes between two neighbouring stages: fixed by the first microbatch, checked ever after.

Tensors go over a boundary one way, the gradients of those that want one come back::

    stage s      outputs (x: float32, wants a gradient; mask: bool)   ->   inputs    stage s + 1
                 gradients (dx)                                       <-   gradients

Both sides fix the same `Boundary`: the sender from what its stage returned, the receiver from the
header that comes before the first message.

An output that the next stage makes no use of gets no gradient, as in the plain model: None comes back. Where
a message between processes has to say so, flags go ahead of the gradients, until all have come once::

    flags 1 0, dx      flags 1 1, dx, dm      dx, dm      dx, zeros for dm
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from zbsolve.errors import RunError

__all__ = ["Boundary", "TensorSpec", "described"]

Tensors = tuple[torch.Tensor, ...]
Gradients = tuple["torch.Tensor | None", ...]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and type of one tensor, and whether it wants a gradient."""

    shape: torch.Size
    dtype: torch.dtype
    requires_grad: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorSpec:
        """The one of a tensor."""
        return cls(tensor.shape, tensor.dtype, tensor.requires_grad)

    @property
    def bytes(self) -> int:
        """Of its values, densely."""
        return self.shape.numel() * self.dtype.itemsize

    def __str__(self) -> str:
        wants = ", wants a gradient" if self.requires_grad else ""
        return f"{str(self.dtype).removeprefix('torch.')} {tuple(self.shape)}{wants}"


class Boundary:
    """The boundary behind a stage.

    Parameters
    ----------
    stage
        The stage before it.

    Attributes
    ----------
    specs
        What passes; None until it is settled.
    wanted
        Places of the tensors that want a gradient.
    announced
        Whether the header has gone to the other side.
    complete
        Whether all gradients have come back once, so that messages carry all of them from now on.
    """

    __slots__ = ("_wants_all", "announced", "complete", "specs", "stage", "wanted")

    def __init__(self, stage: int) -> None:
        self.stage = stage
        self.specs: tuple[TensorSpec, ...] | None = None
        self.wanted: tuple[int, ...] = ()
        self.announced = False
        self.complete = False
        self._wants_all = False

    def fix(self, specs: Sequence[TensorSpec]) -> None:
        """Settle what passes from now on."""
        self.specs = tuple(specs)
        self.wanted = tuple(i for i, spec in enumerate(self.specs) if spec.requires_grad)
        self._wants_all = len(self.wanted) == len(self.specs)
        self.complete = not self.wanted

    def forget(self) -> None:
        """Let the next microbatch settle it anew."""
        self.specs = None
        self.announced = False

    def check(self, outputs: Sequence[Any], microbatch: int) -> None:
        """Fix the boundary by the first outputs, and refuse later ones that differ.

        Raises
        ------
        RunError
            With the stage, the tensor, what was expected and what came.
        """
        specs = self.specs
        if specs is None:
            for i, output in enumerate(outputs):
                if not isinstance(output, torch.Tensor):
                    raise RunError(f"stage {self.stage} gives {type(output).__name__} as output {i}; give a tensor")
            self.fix([TensorSpec.of(output) for output in outputs])
            return
        if len(outputs) != len(specs):
            raise RunError(
                f"stage {self.stage} gives {len(outputs)} tensors for microbatch {microbatch}, expected {len(specs)}: "
                f"{described(specs)}"
            )
        for i, (output, spec) in enumerate(zip(outputs, specs, strict=True)):
            if (
                output is None
                or output.shape != spec.shape
                or output.dtype is not spec.dtype
                or output.requires_grad is not spec.requires_grad
            ):
                got = "nothing" if output is None else TensorSpec.of(output)
                raise RunError(
                    f"stage {self.stage} gives tensor {i} of microbatch {microbatch} as {got}; expected {spec}, as "
                    "in the microbatch before; all microbatches need the same shapes, so pad or drop the odd one"
                )

    def returning(self, gradients: Sequence[torch.Tensor | None]) -> Gradients:
        """The gradients to send back: those of the tensors that want one, None where none came."""
        return tuple([gradients[i] for i in self.wanted])

    def filled(self, gradients: Gradients, device: torch.device) -> Tensors:
        """Those gradients with zeros where none came."""
        assert self.specs is not None
        wanted = (self.specs[i] for i in self.wanted)
        return tuple(
            torch.zeros(spec.shape, dtype=spec.dtype, device=device) if gradient is None else gradient
            for gradient, spec in zip(gradients, wanted, strict=True)
        )

    def returned(self, gradients: Gradients) -> Gradients:
        """One entry for each output again: None where none is wanted, or none came."""
        if self._wants_all:
            return gradients
        assert self.specs is not None
        full: list[torch.Tensor | None] = [None] * len(self.specs)
        for i, gradient in zip(self.wanted, gradients, strict=True):
            full[i] = gradient
        return tuple(full)

    def header(self) -> bytes:
        """The boundary as bytes, for the other side."""
        assert self.specs is not None
        rows = [[list(s.shape), str(s.dtype).removeprefix("torch."), s.requires_grad] for s in self.specs]
        return json.dumps(rows).encode()

    def read_header(self, header: bytes) -> None:
        """Fix this side by what the other side wrote."""
        rows = json.loads(header)
        self.fix([TensorSpec(torch.Size(shape), getattr(torch, dtype), grad) for shape, dtype, grad in rows])


def described(specs: Sequence[TensorSpec]) -> str:
    """Tensors for a message."""
    return "; ".join(str(spec) for spec in specs) or "none"
