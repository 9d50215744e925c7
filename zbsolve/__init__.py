"""zbsolve: the best timetable for pipeline-parallel training, with a proof.

The names below are the public interface. Importing them loads none of the heavy libraries;
`solve` loads OR-Tools when it needs it.
"""

from __future__ import annotations

from zbsolve.analysis.compare import Compared, compare
from zbsolve.analysis.explain import Explanation, explain
from zbsolve.analysis.jitter import Blame, Jittered, under_jitter
from zbsolve.analysis.robust import RobustSolution, solve_robust
from zbsolve.analysis.sweep import SweepOutcome, SweepPoint, sweep
from zbsolve.analysis.whatif import Effort
from zbsolve.bounds import lower_bound, lower_bounds
from zbsolve.catalog import Schedule, baseline, schedules
from zbsolve.check import check, violations
from zbsolve.draw.progress import ProgressLine
from zbsolve.draw.report import write_report
from zbsolve.errors import (
    FileFormatError,
    Infeasible,
    InvalidInput,
    InvalidTimetable,
    MissingExtra,
    NothingFound,
    NotProvenOptimal,
    OrderError,
    ScheduleConditionError,
    ZbsolveError,
)
from zbsolve.files import SolverRecord, read_profile, read_timetable, write_profile, write_timetable
from zbsolve.interop.perfetto import write_perfetto
from zbsolve.interop.torch import read_torch_csv, write_torch_csv
from zbsolve.metrics import memory_curve, metrics
from zbsolve.opgraph import OpGraph
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import (
    HostLink,
    HostLinkOverride,
    Link,
    LinkOverride,
    Overlap,
    Profile,
    ProfileSource,
    StageCost,
    StageSpread,
)
from zbsolve.simulate import simulate
from zbsolve.solution import Bound, Metrics, Solution
from zbsolve.solver import Progress, solve
from zbsolve.timetable import Order, TimedOp, Timetable, Violation

__version__ = "0.1.0"

__all__ = [
    "Blame",
    "Bound",
    "Compared",
    "Effort",
    "Explanation",
    "FileFormatError",
    "HostLink",
    "HostLinkOverride",
    "Infeasible",
    "InvalidInput",
    "InvalidTimetable",
    "Jittered",
    "Kind",
    "Link",
    "LinkOverride",
    "Metrics",
    "MissingExtra",
    "NotProvenOptimal",
    "NothingFound",
    "Op",
    "OpGraph",
    "Order",
    "OrderError",
    "Overlap",
    "Placement",
    "Problem",
    "Profile",
    "ProfileSource",
    "Progress",
    "ProgressLine",
    "RobustSolution",
    "Schedule",
    "ScheduleConditionError",
    "Solution",
    "SolverRecord",
    "StageCost",
    "StageSpread",
    "SweepOutcome",
    "SweepPoint",
    "TimedOp",
    "Timetable",
    "Violation",
    "ZbsolveError",
    "__version__",
    "baseline",
    "check",
    "compare",
    "explain",
    "lower_bound",
    "lower_bounds",
    "memory_curve",
    "metrics",
    "read_profile",
    "read_timetable",
    "read_torch_csv",
    "schedules",
    "simulate",
    "solve",
    "solve_robust",
    "sweep",
    "under_jitter",
    "violations",
    "write_perfetto",
    "write_profile",
    "write_report",
    "write_timetable",
    "write_torch_csv",
]
