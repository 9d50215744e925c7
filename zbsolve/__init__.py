"""zbsolve: the best timetable for pipeline-parallel training, with a proof."""

from __future__ import annotations

from zbsolve.errors import ZbsolveError
from zbsolve.metrics import metrics
from zbsolve.opgraph import OpGraph
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Link, LinkOverride, Profile, StageCost
from zbsolve.simulate import simulate
from zbsolve.solution import Bound, Metrics, Solution
from zbsolve.timetable import Order, TimedOp, Timetable, Violation

__version__ = "0.1.0"

__all__ = [
    "Bound",
    "Kind",
    "Link",
    "LinkOverride",
    "Metrics",
    "Op",
    "OpGraph",
    "Order",
    "Placement",
    "Problem",
    "Profile",
    "Solution",
    "StageCost",
    "TimedOp",
    "Timetable",
    "Violation",
    "ZbsolveError",
    "__version__",
    "metrics",
    "simulate",
]
