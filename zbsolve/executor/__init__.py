"""Running and measuring on real hardware; the only part of zbsolve, with the demo, that needs torch.

Importing anything from here loads torch, and raises `MissingExtra` where it is not installed.
"""

from __future__ import annotations

from zbsolve.errors import MissingExtra

try:
    import torch as _torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise MissingExtra("torch", "torch") from None

del _torch
