"""The solver: `solve` finds the best timetable of a problem and proves how good it is."""

from __future__ import annotations

from zbsolve.solver.driver import solve
from zbsolve.solver.incumbent import Progress

__all__ = ["Progress", "solve"]
