"""Where the numbers of a profile come from, and how far they spread."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from zbsolve.errors import ProfileError
from zbsolve.units import whole_amount


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpread:
    """Interquartile ranges of a stage's measured durations, in ns."""

    forward_ns: int = 0
    backward_input_ns: int = 0
    backward_weight_ns: int = 0
    backward_ns: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            whole_amount(getattr(self, field.name), f"spread: {field.name}", error=ProfileError)

    @classmethod
    def of(cls, laps: Mapping[str, Sequence[int]]) -> StageSpread:
        """The spread of measured durations, by the names of the fields above; 0 where fewer than two were measured."""
        return cls(**{field: _interquartile(values) for field, values in laps.items()})


def _interquartile(values: Sequence[int]) -> int:
    if len(values) < 2:
        return 0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return round(high - low)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSource:
    """Where a profile comes from.

    Parameters
    ----------
    host, device
        Names of the machine and of the device measured on.
    split
        Whose split backward was measured, such as ``"torch"``.
    versions
        Pairs of a library and its version.
    samples
        Measured repetitions behind each median; 0 if unknown.
    spread
        One entry a stage, or none.
    note
        Anything a reader should know.
    """

    host: str = ""
    device: str = ""
    split: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    samples: int = 0
    spread: tuple[StageSpread, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        whole_amount(self.samples, "source: samples", error=ProfileError)
        object.__setattr__(self, "versions", tuple((str(k), str(v)) for k, v in self.versions))
        object.__setattr__(self, "spread", tuple(self.spread))
