"""The small state that travels between ranks, and what it means; pure arithmetic on the host.

Each rank adds its own part to the state of the ranks before it and passes the result on::

    rank 0            rank 1            rank 2
    own part  ----->  + own part -----> + own part  = the full state
              prefix            prefix

The combination order is the definition of the norm: the squares of one rank are summed in the
order of its optimizer's parameters, the ranks' sums in the order of their positions, all in
float64: ``((s0 + s1) + s2) + ...``. The result is one float64 that is passed on as it is, so
every rank holds the same bits.

A prefix that looks bad stays bad: overflow is a logical or, and the sums of squares can only
grow, also after rounding (``a + b >= a`` for floats where ``b >= 0``), and with them square root,
norm in float32 and, downwards, the clip coefficient. So a rank that does not step at once never
regrets it; only ranks that stepped can be wrong. `State.first_bad` remembers where the prefix
turned, which is all that anyone needs to know which ranks did step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch

from zbsolve.errors import InvalidInput

__all__ = ["Rule", "State", "Verdict", "Words", "clip_coefficient", "total_norm", "wrong_ranks"]

Words = tuple[float, ...]
"""A state as five float64 numbers, which hold it exactly."""

_NOBODY = -1


class Verdict(StrEnum):
    """What a state says is to be done with a step."""

    KEPT = "kept"
    CLIPPED = "clipped"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What is known of the gradients of the ranks up to some position.

    Parameters
    ----------
    step
        Number of the step, from 0; it travels along to catch ranks that are out of step.
    overflow
        Some gradient element is infinite or NaN.
    square_sum
        Sum of the squares of all counted gradient elements (float64).
    wide
        Some gradient is float64, so norm and coefficient are computed in float64, not float32.
    first_bad
        First position whose prefix did not look good; None if all did.
    """

    step: int
    overflow: bool
    square_sum: float
    wide: bool = False
    first_bad: int | None = None

    def pack(self) -> Words:
        """The state as five numbers, exact in float64."""
        bad = _NOBODY if self.first_bad is None else self.first_bad
        return (float(self.step), float(self.overflow), self.square_sum, float(self.wide), float(bad))

    @classmethod
    def unpack(cls, words: Sequence[float]) -> State:
        """The state from its five numbers."""
        if len(words) != 5:
            raise InvalidInput(f"a state has 5 numbers, the channel gave {len(words)}: let it pass them on unchanged")
        step, overflow, square_sum, wide, bad = words
        return cls(
            step=int(step),
            overflow=bool(overflow),
            square_sum=float(square_sum),
            wide=bool(wide),
            first_bad=None if bad == _NOBODY else int(bad),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What makes a step bad: the norm's limit, and whether overflow counts.

    Parameters
    ----------
    max_grad_norm
        Limit of the global L2 norm; None for no clipping.
    check_overflow
        Skip the step where some gradient element is infinite or NaN.
    """

    max_grad_norm: float | None = None
    check_overflow: bool = False

    def __post_init__(self) -> None:
        limit = self.max_grad_norm
        if limit is not None and not limit >= 0:
            raise InvalidInput(f"max_grad_norm must be at least 0, not {limit}; leave it None for no clipping")

    @property
    def off(self) -> bool:
        """Nothing is checked, so no step can be wrong."""
        return self.max_grad_norm is None and not self.check_overflow

    def verdict(self, state: State) -> Verdict:
        """What the state says, taken as if it were the full one."""
        if self.check_overflow and state.overflow:
            return Verdict.SKIPPED
        if self.max_grad_norm is None:
            return Verdict.KEPT
        # a NaN is not 1 either: without overflow checks it goes through clipping, as it does in torch
        return Verdict.KEPT if clip_coefficient(state, self.max_grad_norm) == 1.0 else Verdict.CLIPPED

    def combine(self, prefix: State | None, own: State, position: int) -> State:
        """The prefix with this position's own part added; ``prefix`` is None at position 0."""
        total = (
            own
            if prefix is None
            else State(
                step=own.step,
                overflow=prefix.overflow or own.overflow,
                square_sum=prefix.square_sum + own.square_sum,
                wide=prefix.wide or own.wide,
                first_bad=prefix.first_bad,
            )
        )
        if total.first_bad is None and self.verdict(total) is not Verdict.KEPT:
            return State(
                step=total.step,
                overflow=total.overflow,
                square_sum=total.square_sum,
                wide=total.wide,
                first_bad=position,
            )
        return total


def total_norm(state: State) -> torch.Tensor:
    """The global norm, 0-dimensional on the host: float32, or float64 where some gradient is."""
    norm = math.sqrt(state.square_sum) if state.square_sum >= 0 else math.nan
    return torch.tensor(norm, dtype=torch.float64 if state.wide else torch.float32, device="cpu")


def clip_coefficient(state: State, max_grad_norm: float) -> float:
    """What `torch.nn.utils.clip_grads_with_norm_` multiplies by, given this norm: the same operations.

    They run on the host on every rank, so that devices whose reciprocals differ in the last bit agree.
    """
    return float(torch.clamp(float(max_grad_norm) / (total_norm(state) + 1e-6), max=1.0))


def wrong_ranks(full: State, verdict: Verdict, ranks: int) -> range:
    """Positions whose weights change at validation, so whose forwards before it used wrong weights.

    Everyone works this out alone from the full state. A rank stepped at once if it stands before
    `State.first_bad`; the last one knows the full state and is always right at once.

    ======== ===================== =========================== =====
    verdict  before ``first_bad``  from there to the last but  last
                                   one
    ======== ===================== =========================== =====
    kept     stepped: right        held back: steps now        right
    clipped  undone, steps again   held back: steps now        right
    skipped  undone                held back: right            right
    ======== ===================== =========================== =====
    """
    last = ranks - 1
    bad = last if full.first_bad is None else min(full.first_bad, last)
    if verdict is Verdict.CLIPPED:
        return range(last)
    return range(bad) if verdict is Verdict.SKIPPED else range(bad, last)
