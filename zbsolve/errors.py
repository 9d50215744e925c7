"""Every error zbsolve raises on purpose, and the exit code each one becomes.

ZbsolveError                       exit code
├── InvalidInput                       2      what you gave cannot be used
│   ├── UnitError                              a duration or a size that cannot be read
│   ├── ProfileError                           costs, links or their source
│   ├── PlacementError                         routes of a pipeline
│   ├── ProblemError                           a question that makes no sense
│   ├── OrderError                             rows that are no order of the problem
│   ├── ScheduleConditionError                 a published schedule whose conditions do not hold
│   └── FileFormatError                        a file that is not what it should be
├── InvalidTimetable                   1      violations found by the judge
├── RunError                           1      an execution failed
├── Infeasible                         3      no timetable can fit; names the smallest limit that would do
├── NothingFound                       4      none found in time
├── NotProvenOptimal                   5      `--require-optimal` was not met
└── MissingExtra                       6      an optional dependency is absent; names the pip command
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zbsolve.timetable import Violation

__all__ = [
    "FileFormatError",
    "Infeasible",
    "InvalidInput",
    "InvalidTimetable",
    "MissingExtra",
    "NotProvenOptimal",
    "NothingFound",
    "OrderError",
    "PlacementError",
    "ProblemError",
    "ProfileError",
    "RunError",
    "ScheduleConditionError",
    "UnitError",
    "ZbsolveError",
]


class ZbsolveError(Exception):
    """Root of every error raised on purpose; its message says what, where, and what to do."""

    exit_code: ClassVar[int] = 1


class InvalidInput(ZbsolveError):
    """Something given to zbsolve cannot be used as it is."""

    exit_code: ClassVar[int] = 2


class UnitError(InvalidInput):
    """A duration or a size that cannot be read."""


class ProfileError(InvalidInput):
    """Costs, links or their source are not acceptable."""


class PlacementError(InvalidInput):
    """The routes do not describe a pipeline."""


class ProblemError(InvalidInput):
    """Profile, placement, microbatches and limits do not fit together."""


class OrderError(InvalidInput):
    """Rows that are not an order of the problem's operations, or that can never finish."""


class ScheduleConditionError(InvalidInput):
    """A published schedule was asked for where its conditions do not hold."""


class FileFormatError(InvalidInput):
    """A file is not what it should be.

    Parameters
    ----------
    path
        The file.
    message
        What is wrong and what to do.
    where
        Place inside the file (a JSON path, or row and cell), if known.
    """

    def __init__(self, path: object, message: str, where: str | None = None) -> None:
        self.path = str(path)
        self.where = where
        place = f"{self.path}: at {where}" if where else self.path
        super().__init__(f"{place}: {message}")


class InvalidTimetable(ZbsolveError):
    """The judge found violations.

    Attributes
    ----------
    violations
        All of them, in the order the rules are stated.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, violations: Sequence[Violation]) -> None:
        self.violations = tuple(violations)
        head = "1 violation" if len(self.violations) == 1 else f"{len(self.violations)} violations"
        lines = [f"  {v.code}: {v.message}" for v in self.violations[:20]]
        if len(self.violations) > 20:
            lines.append(f"  ... and {len(self.violations) - 20} more")
        super().__init__("\n".join([f"{head}:", *lines]))


class RunError(ZbsolveError):
    """Executing a timetable failed."""

    exit_code: ClassVar[int] = 1


class Infeasible(ZbsolveError):
    """No timetable fits the memory limit.

    Attributes
    ----------
    smallest_limit_bytes
        The least limit of each rank with which a timetable exists.
    at_a_time
        What takes the least memory one at a time: a microbatch, or a sequence where microbatches are slices.
    """

    exit_code: ClassVar[int] = 3

    def __init__(self, message: str, smallest_limit_bytes: tuple[int, ...], at_a_time: str = "microbatch") -> None:
        self.smallest_limit_bytes = smallest_limit_bytes
        self.at_a_time = at_a_time
        super().__init__(message)


class NothingFound(ZbsolveError):
    """No timetable was found within the time or work limit."""

    exit_code: ClassVar[int] = 4


class NotProvenOptimal(ZbsolveError):
    """An optimal timetable was required and the proof did not come in time."""

    exit_code: ClassVar[int] = 5


class MissingExtra(ZbsolveError):
    """An optional dependency is not installed.

    Parameters
    ----------
    package
        What could not be imported.
    extra
        The extra of zbsolve that brings it.
    """

    exit_code: ClassVar[int] = 6

    def __init__(self, package: str, extra: str) -> None:
        self.package = package
        self.extra = extra
        super().__init__(f"{package} is not installed; install it with: pip install 'zbsolve[{extra}]'")
