"""One problem under trial: what is asked, what is known of it, and what became of each check."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from benchmarks.fuzz.oracle import Reading, Rows
from zbsolve.problem import Problem
from zbsolve.solution import Bound, Solution
from zbsolve.solver.driver import solve
from zbsolve.solver.incumbent import Incumbent

__all__ = ["ORACLE_OPERATIONS", "Report", "Trial"]

ORACLE_OPERATIONS = 60
"""Beyond this many the oracle is not asked."""


@dataclass
class Report:
    """What became of one problem: how often what was checked, and what failed."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def expect(self, holds: bool, what: str, *more: Any) -> None:
        """Count a check, and keep it with its circumstances if it fails."""
        self.counts[what] += 1
        if not holds:
            self.faults.append(" ".join([what, *map(repr, more)]))


@dataclass
class Trial:
    """A problem, how it is solved, and the best order known, whoever found it.

    Parameters
    ----------
    problem, reading
        What is asked.
    rng
        Decides what is tried.
    options
        Of `solve`.
    seconds
        For one question to the oracle.
    report
        Where checks are counted.
    rows, value_ns
        The best order known.
    optimal
        Whether it is certain that none is better.
    """

    problem: Problem
    reading: Reading
    rng: random.Random
    options: dict[str, Any]
    seconds: float
    report: Report
    rows: Rows = field(default_factory=list)
    value_ns: int = 0
    optimal: bool = False

    @property
    def operations(self) -> int:
        """F's, B's and W's."""
        return 3 * self.reading.stages * self.reading.microbatches

    def know(self, rows: Rows) -> None:
        """Learn of an order."""
        value = self.reading.value(rows)
        if not self.rows or value < self.value_ns:
            self.rows, self.value_ns = rows, value

    def solve(self, problem: Problem | None = None, **changes: Any) -> Solution:
        """Solve this problem, or another in the same way."""
        with _no_false_bounds(self.report):
            return solve(problem or self.problem, **{"time_limit_s": 60.0, **self.options, **changes})


@contextmanager
def _no_false_bounds(report: Report) -> Iterator[None]:
    """The incumbent passes a bound over that is above an attained value; here it is a fault."""
    true = Incumbent.prove

    def prove(self: Incumbent, bound: Bound) -> None:
        report.expect(bound.value_ns <= self.value_ns, "no arm hands in a bound above what is attained", bound)
        true(self, bound)

    with mock.patch.object(Incumbent, "prove", prove):
        yield
