"""A problem in which forwards may be computed again, without that choice: what every timetable of it keeps.

Take any timetable and leave out what is computed again, each forward holding its checkpoint alone::

    asked      F holds A, or C until it is computed again; the backward runs with A on the rank
    lighter    F holds C;                                   nothing is computed again

Leaving operations out delays nothing, and at every moment the rank holds at most what it held: C is
at most A, and while B runs, taking what it leaves from C up instead of from A up ends no higher. So the
rest is a timetable of the lighter problem, with a value that is no larger: a bound for that problem is
one for what was asked, whatever is computed again.
"""

from __future__ import annotations

from dataclasses import replace

from zbsolve.problem import Problem

__all__ = ["lighter"]


def lighter(problem: Problem) -> Problem:
    """The problem with checkpoints in place of activations, and nothing to be computed again."""
    if "recompute" not in problem.allow:
        return problem
    stages = tuple(
        replace(cost, activation_bytes=cost.checkpoint, checkpoint_bytes=None, recompute_ns=None)
        for cost in problem.profile.stages
    )
    return replace(
        problem,
        profile=replace(problem.profile, stages=stages),
        memory_limit=problem.limit_bytes,
        allow=problem.allow - {"recompute"},
    )
