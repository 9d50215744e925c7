"""Loss scaling for float16: the rule of `torch.amp.GradScaler`, decided from the full state.

Every rank applies the same rule to the same full state, so all hold the same scale with no more
messages::

    overflow                    scale * backoff_factor, start counting anew
    growth_interval good steps  scale * growth_factor unless that overflows, start counting anew

The scale is a float32 number, as the scaler's is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from zbsolve.errors import InvalidInput

__all__ = ["LossScale"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale:
    """The factor of the loss, and how it changes.

    Parameters
    ----------
    scale
        What the loss is multiplied by before the backward.
    growth_factor, backoff_factor
        Applied after `growth_interval` good steps in a row, and after each overflow.
    growth_interval
        Good steps before the scale grows; None for a scale that never changes.
    good_steps
        Good steps since the scale changed or a step was skipped.
    """

    scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int | None = 2000
    good_steps: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise InvalidInput(f"a loss scale must be finite and above 0, not {self.scale}")
        if not self.growth_factor > 1.0:
            raise InvalidInput(f"growth_factor must be above 1, not {self.growth_factor}")
        if not 0.0 < self.backoff_factor < 1.0:
            raise InvalidInput(f"backoff_factor must lie between 0 and 1, not {self.backoff_factor}")
        if self.growth_interval is not None and self.growth_interval < 1:
            raise InvalidInput(f"growth_interval must be at least 1, or None, not {self.growth_interval}")
        object.__setattr__(self, "scale", _float32(self.scale))

    @property
    def inverse(self) -> float:
        """What gradients are multiplied by: the reciprocal in float64, rounded to float32."""
        return _float32(1.0 / self.scale)

    def after(self, overflow: bool) -> LossScale:
        """The scale after a step that did or did not overflow."""
        if self.growth_interval is None:
            return self
        if overflow:
            smaller = _float32(self.scale * self.backoff_factor)
            # a scale of 0 would turn every later gradient into NaN
            return replace(self, scale=smaller if smaller > 0 else self.scale, good_steps=0)
        if self.good_steps + 1 < self.growth_interval:
            return replace(self, good_steps=self.good_steps + 1)
        larger = _float32(self.scale * self.growth_factor)
        return replace(self, scale=larger if math.isfinite(larger) else self.scale, good_steps=0)

    def state_dict(self) -> dict[str, float | int]:
        """What `load_state_dict` needs to go on from here."""
        return {"scale": self.scale, "good_steps": self.good_steps}

    def loaded(self, state: dict[str, float | int]) -> LossScale:
        """The same rule with a scale and a count from `state_dict`."""
        return replace(self, scale=float(state["scale"]), good_steps=int(state["good_steps"]))


def _float32(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float64).to(torch.float32))
