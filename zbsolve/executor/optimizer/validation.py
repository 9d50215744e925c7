"""What a rank is told about a step once the full state is there."""

from __future__ import annotations

from dataclasses import dataclass

from zbsolve.executor.optimizer.inverse import UndoError
from zbsolve.executor.optimizer.verdict import Verdict

__all__ = ["Validation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """What became of a step.

    Parameters
    ----------
    step
        Its number, from 0.
    verdict
        What the full state said; the same on every rank.
    undone
        This rank had stepped at once and took it back.
    weights_changed
        This rank's weights were not right until now.
    wrong_ranks
        Positions of all ranks of which that is true; the same on every rank.
    norm
        Global norm of the (unscaled) gradients; None where nothing was checked.
    overflow
        Some gradient of some rank was infinite or NaN; None where nothing was checked.
    loss_scale
        What the loss of the next iteration is to be multiplied by.
    undo_error
        Bound on the error of an undo by inverse arithmetic; None where there was none.
    """

    step: int
    verdict: Verdict
    undone: bool
    weights_changed: bool
    wrong_ranks: range
    norm: float | None
    overflow: bool | None
    loss_scale: float
    undo_error: UndoError | None

    @property
    def rerun(self) -> bool:
        """Whether forwards that ran before validation must run again, somewhere; the same on every rank."""
        return bool(self.wrong_ranks)
