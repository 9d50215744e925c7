"""What every part of a profile asks of a name and of a bandwidth."""

from __future__ import annotations

from zbsolve.errors import ProfileError
from zbsolve.units import whole_amount


def check_name(name: object, what: str) -> None:
    """Refuse what is no short text."""
    if not isinstance(name, str) or len(name) > 200:
        raise ProfileError(f"{what} must be text of at most 200 characters")


def check_bandwidth(value: object, what: str) -> None:
    """Refuse what is neither None nor a positive whole number of bytes per second."""
    if value is not None and whole_amount(value, what, error=ProfileError) == 0:
        raise ProfileError(f"{what} must be positive; leave it out for an unlimited link")
