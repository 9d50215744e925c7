"""Memory that waits for a validation."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HeldBytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBytes:
    """What a rank keeps between a step and its validation, that it would not keep otherwise.

    Parameters
    ----------
    parameters, state
        Bytes of the snapshot: of the parameters, and of the optimizer state.
    gradients
        Bytes of the gradients kept for a repair, which a synchronous step would have freed.
    host
        Of these, the bytes in host memory whose originals lie on a device.
    """

    parameters: int = 0
    state: int = 0
    gradients: int = 0
    host: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.parameters + self.state + self.gradients
