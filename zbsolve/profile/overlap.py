"""What a forward and a backward take that run together."""

from __future__ import annotations

from dataclasses import dataclass, fields

from zbsolve.errors import ProfileError
from zbsolve.units import whole_amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """What a forward of one stage and a backward of another microbatch take, run together on one rank; in ns.

    Parameters
    ----------
    forward_stage, backward_stage
        Their stages, which may be the same.
    forward_backward_overlap_ns
        With a whole backward. Less than the longer of the two, or more than both one after the other, is for the
        measurement to say.
    forward_backward_input_overlap_ns
        With the input gradient alone; None where that was not measured: then they take what one after the other
        takes.

    Raises
    ------
    ProfileError
        If a number is not a whole one in ``0..2**62``, or a duration is 0.
    """

    forward_stage: int
    backward_stage: int
    forward_backward_overlap_ns: int
    forward_backward_input_overlap_ns: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.name == "forward_backward_input_overlap_ns":
                continue
            if whole_amount(value, f"overlap: {field.name}", error=ProfileError) == 0 and field.name.endswith("_ns"):
                raise ProfileError(
                    f"overlap: {field.name} must be positive; two operations that take no time need none"
                )
