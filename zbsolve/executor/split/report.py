"""What of the weight gradients waits for W, and what B had to compute, with the reasons."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Fallback", "SplitReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """A parameter whose gradient, or part of it, is computed in B.

    Parameters
    ----------
    name
        Of the parameter, as in the module's state_dict.
    reason
        Why it is not deferred.
    flops
        Estimate of its weight gradient: two operations an element and position, positions being
        those of the stage's first input (all dimensions but the last of a floating-point one).
    """

    name: str
    reason: str
    flops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitReport:
    """How much of a stage's weight gradients is deferred to W, from one microbatch.

    Parameters
    ----------
    stage
        Its name.
    deferred_flops
        Floating-point operations that W does for one microbatch.
    norm_flops
        Those of norms that B does by choice, because keeping their inputs for W would cost more.
    fallback
        The parameters that autograd weighs in B.
    """

    stage: str
    deferred_flops: int
    norm_flops: int
    fallback: tuple[Fallback, ...]

    @property
    def fallback_flops(self) -> int:
        """Estimate of the floating-point operations of weight gradients in B."""
        return sum(f.flops for f in self.fallback)

    @property
    def share(self) -> float:
        """Deferred over all, between 0 and 1; 1 where there is nothing to weigh."""
        total = self.deferred_flops + self.norm_flops + self.fallback_flops
        return self.deferred_flops / total if total else 1.0

    def __str__(self) -> str:
        text = f"{100 * self.share:.1f} % of weight-gradient FLOPs deferred"
        if self.norm_flops:
            text += "; scales and biases of norms in B"
        names = ", ".join(f.name for f in self.fallback)
        return f"{text}; fallback: {names}" if names else text
