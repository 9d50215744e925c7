"""The schedules that are run: four ranks, eight microbatches, all operations 20 ms."""

from __future__ import annotations

from dataclasses import dataclass

from zbsolve.catalog import baseline
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Profile
from zbsolve.simulate import simulate
from zbsolve.timetable import Timetable

__all__ = ["BARRIER", "MICROBATCHES", "OPERATION_MS", "PLANS", "RANKS", "Plan"]

RANKS = 4
MICROBATCHES = 8
OPERATION_MS = 20


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule of the catalog on a placement.

    Parameters
    ----------
    name
        In the tables.
    schedule
        In the catalog.
    placement
        Where its stages are.
    """

    name: str
    schedule: str
    placement: Placement

    @property
    def timetable(self) -> Timetable:
        """With the planned times; links cost nothing."""
        nanoseconds = OPERATION_MS * 1_000_000
        profile = Profile.uniform(
            self.placement.stages,
            forward_ns=nanoseconds,
            backward_input_ns=nanoseconds,
            backward_weight_ns=nanoseconds,
        )
        problem = Problem(profile=profile, placement=self.placement, microbatches=MICROBATCHES)
        return simulate(problem, baseline(self.schedule, problem))


PLANS = (
    Plan("gpipe", "gpipe", Placement.linear(RANKS)),
    Plan("1f1b", "1f1b", Placement.linear(RANKS)),
    Plan("zb-h1", "zb-h1", Placement.linear(RANKS)),
    Plan("interleaved", "interleaved-1f1b", Placement.looped(RANKS, 2)),
    Plan("zb-v", "zb-v", Placement.v(RANKS)),
)
BARRIER = Plan("zb-h2", "zb-h2", Placement.linear(RANKS))
"""Without a barrier its period has no bubble at all."""
