"""The pieces of search that run in workers, and what they find, as data.

A task is what a worker needs beyond the case it has been told once (`zbsolve.solver.case`);
`zbsolve.solver.running` does it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zbsolve.solution import Bound
from zbsolve.solver.budget import Budget

__all__ = [
    "Anneal",
    "AnnealParts",
    "Bounded",
    "Done",
    "Find",
    "Found",
    "Int8",
    "Int32",
    "Length",
    "Prove",
    "Publish",
    "Rearrange",
    "Relax",
    "Repeat",
    "Rule",
    "Scan",
    "Shrink",
    "Tabu",
    "Task",
    "Tune",
    "Tuned",
    "Warm",
]

Int32 = NDArray[np.int32]
Int8 = NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Length:
    """How long a task may go on: in seconds from when it begins, or in steps."""

    seconds: float | None = None
    steps: int | None = None

    def from_now(self, deadline: float) -> Budget:
        """The budget of a task that begins now and ends by a deadline on the clock of `time.perf_counter`."""
        until = deadline if self.seconds is None else min(deadline, time.perf_counter() + self.seconds)
        return Budget(until, self.steps)


@dataclass(frozen=True, slots=True)
class Warm:
    """Load the compiled kernels, or compile them."""


@dataclass(frozen=True, slots=True)
class Publish:
    """A published schedule, see `zbsolve.solver.portfolio.published`."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """List schedules, by plain rules or by random ones; the best `keep` of them are handed out."""

    plain: bool
    length: Length
    seed: int
    keep: int
    target_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Anneal:
    """An annealing run from an order.

    Parameters
    ----------
    sequence, fused
        The order to begin with, as nodes of the network.
    first, ratio
        The temperature at the start as a part of the value, and at the end as a part of that.
    target_ns
        Stop at this value.
    length, seed
        Of the run.
    """

    sequence: Int32
    fused: Int8
    first: float
    ratio: float
    target_ns: int
    length: Length
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tabu:
    """A tabu search from an order.

    Parameters
    ----------
    sequence, fused
        The order to begin with, as nodes of the network.
    slack
        How much worse the next order may be than the present one, as a part of the value.
    target_ns
        Stop at this value.
    length, seed
        Of the search.
    line
        Of the order to begin with (`zbsolve.solver.pool`), which what is found continues.
    """

    sequence: Int32
    fused: Int8
    slack: float
    target_ns: int
    length: Length
    seed: int
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnealParts:
    """Annealing of parts of an order, see `zbsolve.solver.parts`."""

    sequence: Int32
    fused: Int8
    target_ns: int
    length: Length
    seed: int
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrink:
    """Orders of a problem with fewer microbatches, stretched; by list schedules, or by an order with loops left out."""

    sequence: Int32
    fused: Int8
    length: Length
    seed: int


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """What a list scheduler prefers: the value it gave, a plain choice of what is fused, the rule, its chance."""

    value_ns: int
    choice: int
    table: NDArray[np.int64]
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tune:
    """Rules of the list scheduler near given ones, on so many microbatches, see `zbsolve.solver.tuning`."""

    microbatches: int
    rules: tuple[Rule, ...]
    target_ns: int
    length: Length
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """A steady state of windows of `size` microbatches, unrolled and annealed, see `zbsolve.solver.rhythm`.

    Parameters
    ----------
    size
        Microbatches of a window.
    value_ns
        The best value known: a window that takes longer for its share is of no interest.
    target_ns
        Stop at this value.
    length, seed
        Of CP-SAT and annealing together.
    """

    size: int
    value_ns: int
    target_ns: int
    length: Length
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prove:
    """CP-SAT on the whole problem, hinted with an order."""

    sequence: Int32
    fused: Int8
    value_ns: int
    bound_ns: int
    length: Length
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rearrange:
    """CP-SAT on parts of an order, one after the other."""

    sequence: Int32
    fused: Int8
    value_ns: int
    length: Length
    seed: int
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Relax:
    """Better bounds by relaxations, see `zbsolve.solver.relaxation`."""

    value_ns: int
    bound: Bound
    length: Length
    seed: int


Task = Warm | Publish | Scan | Anneal | AnnealParts | Tabu | Shrink | Tune | Repeat | Prove | Rearrange | Relax


@dataclass(frozen=True, slots=True)
class Found:
    """An order, with its exact value, and what made it where the arm alone does not tell."""

    value_ns: int
    sequence: Int32
    fused: Int8
    method: str = ""


@dataclass(frozen=True, slots=True)
class Bounded:
    """A bound proved."""

    bound: Bound


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best rules for so many microbatches."""

    microbatches: int
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a task: the steps it took, and why it was lost if it was, in words that follow its name."""

    steps: int = 0
    why: str = ""

    @property
    def lost(self) -> bool:
        """True if it raised, or its worker ended or did not come back."""
        return bool(self.why)


Find = Found | Bounded | Tuned | Done
