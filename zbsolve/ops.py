"""What can be done: kinds of operations, operations, and the parts they do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Kind", "Op"]


class Kind(StrEnum):
    """The kind of an operation; its value is the name used in files."""

    FORWARD = "forward"
    BACKWARD_INPUT = "backward_input"
    BACKWARD_WEIGHT = "backward_weight"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"
    REDUCE_GRADIENT = "reduce_gradient"
    OPTIMIZER = "optimizer"

    @property
    def letter(self) -> str:
        """How pictures and messages show it: F, B, W, BW for both gradients in one; C to recompute; R, O at the end."""
        return _LETTERS[self]

    @property
    def of_iteration(self) -> bool:
        """Whether it is done once an iteration on each rank that holds the stage, and so has no microbatch."""
        return self in (Kind.REDUCE_GRADIENT, Kind.OPTIMIZER)


_LETTERS = {
    Kind.FORWARD: "F",
    Kind.BACKWARD_INPUT: "B",
    Kind.BACKWARD_WEIGHT: "W",
    Kind.BACKWARD: "BW",
    Kind.RECOMPUTE: "C",
    Kind.REDUCE_GRADIENT: "R",
    Kind.OPTIMIZER: "O",
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
