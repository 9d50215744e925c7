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
    beside
        What runs together with it, in one go: with a forward the `backward` or `backward_input` of another
        microbatch on the same rank. The *pair* starts when both could, and both are done at its end.
    """

    kind: Kind
    stage: int
    microbatch: int | None
    beside: Op | None = None

    @property
    def halves(self) -> tuple[Op, ...]:
        """The two operations of a pair, each by itself; any other operation alone."""
        if self.beside is None:
            return (self,)
        return (Op(self.kind, self.stage, self.microbatch), self.beside)

    @property
    def letters(self) -> str:
        """The letter of its kind, of a pair both with a plus between them."""
        return "+".join(half.kind.letter for half in self.halves)

    @property
    def fields(self) -> dict[str, object]:
        """Kind, stage and microbatch by name; of a pair those of its forward, and `beside` with the other's."""
        own: dict[str, object] = {"kind": self.kind.value, "stage": self.stage, "microbatch": self.microbatch}
        return own if self.beside is None else own | {"beside": self.beside.fields}

    @property
    def parts(self) -> tuple[Op, ...]:
        """The elementary operations it does: a fused backward does B and W, a pair those of both, others themselves."""
        if self.beside is not None:
            return tuple(part for half in self.halves for part in half.parts)
        if self.kind is Kind.BACKWARD:
            return (
                Op(Kind.BACKWARD_INPUT, self.stage, self.microbatch),
                Op(Kind.BACKWARD_WEIGHT, self.stage, self.microbatch),
            )
        return (self,)

    def __str__(self) -> str:
        if self.beside is not None:
            alone, beside = self.halves
            return f"{alone} with {beside}"
        if self.kind.of_iteration and self.microbatch is None:
            return f"{self.kind.value.replace('_', ' ')} of stage {self.stage}"
        microbatch = "" if self.microbatch is None else self.microbatch
        return f"{self.kind.letter}{microbatch} of stage {self.stage}"
