"""What can be done: kinds of operations, operations, and the parts they do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

__all__ = ["Kind", "Op", "Resource"]

Resource = Literal["compute", "network", "copy out", "copy in"]
"""What of a rank runs an operation: each runs one at a time, beside the others."""


class Kind(StrEnum):
    """The kind of an operation; its value is the name used in files."""

    FORWARD = "forward"
    BACKWARD_INPUT = "backward_input"
    BACKWARD_WEIGHT = "backward_weight"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"
    OFFLOAD = "offload"
    RELEASE = "release"
    RELOAD = "reload"
    REDUCE_GRADIENT = "reduce_gradient"
    OPTIMIZER = "optimizer"

    @property
    def letter(self) -> str:
        """How it is shown: F, B, W, BW for both gradients in one; C again; U, X, L away and back; R, O at the end."""
        return _LETTERS[self]

    @property
    def of_iteration(self) -> bool:
        """Whether it is done once an iteration on each rank that holds the stage, and so has no microbatch."""
        return self in (Kind.REDUCE_GRADIENT, Kind.OPTIMIZER)

    @property
    def moves(self) -> bool:
        """Whether it is one of the three with which a forward's activations are away in host memory for a while."""
        return self in (Kind.OFFLOAD, Kind.RELEASE, Kind.RELOAD)

    @property
    def resource(self) -> Resource:
        """What of its rank runs it."""
        return _BESIDE.get(self, "compute")


_LETTERS = {
    Kind.FORWARD: "F",
    Kind.BACKWARD_INPUT: "B",
    Kind.BACKWARD_WEIGHT: "W",
    Kind.BACKWARD: "BW",
    Kind.RECOMPUTE: "C",
    Kind.OFFLOAD: "U",
    Kind.RELEASE: "X",
    Kind.RELOAD: "L",
    Kind.REDUCE_GRADIENT: "R",
    Kind.OPTIMIZER: "O",
}

_BESIDE: dict[Kind, Resource] = {
    Kind.OFFLOAD: "copy out",
    Kind.RELOAD: "copy in",
    Kind.REDUCE_GRADIENT: "network",
}


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of an iteration.

    Parameters
    ----------
    kind
        What it does.
    stage
        The stage it does it for, from 0.
    microbatch
        The microbatch it does it with, from 0; None for operations of the whole iteration.
    """

    kind: Kind
    stage: int
    microbatch: int | None

    @property
    def parts(self) -> tuple[Op, ...]:
        """The elementary operations it does: a fused backward does B and W, others themselves."""
        if self.kind is Kind.BACKWARD:
            return (
                Op(Kind.BACKWARD_INPUT, self.stage, self.microbatch),
                Op(Kind.BACKWARD_WEIGHT, self.stage, self.microbatch),
            )
        return (self,)

    def __str__(self) -> str:
        if self.kind.of_iteration and self.microbatch is None:
            return f"{self.kind.value.replace('_', ' ')} of stage {self.stage}"
        microbatch = "" if self.microbatch is None else self.microbatch
        return f"{self.kind.letter}{microbatch} of stage {self.stage}"
