"""A problem in which forwards may be computed again or moved away, without that choice: what every timetable keeps.

Take any timetable and leave out what is computed again, and all copies, each forward holding the least that it
ever can between its end and its backward::

    asked      F holds A, or C until it is computed again, or A less M while M is away in host memory;
               the backward runs with A on the rank
    lighter    F holds the lesser of C and A - M, as far as each is allowed; nothing is computed again or moved

Leaving operations out delays nothing, and at every moment the rank holds at most what it held: C and A - M are
at most A, and while B runs, taking what it leaves from there up instead of from A up ends no higher. So the
rest is a timetable of the lighter problem, with a value that is no larger: a bound for that problem is
one for what was asked, whatever is computed again or moved away.
"""

from __future__ import annotations

from dataclasses import replace

from zbsolve.problem import Problem

__all__ = ["lighter"]

_CHOICES = frozenset({"recompute", "offload"})


def lighter(problem: Problem) -> Problem:
    """The problem with the least that a forward can hold in place of activations, and nothing done again or moved."""
    chosen = problem.allow & _CHOICES
    if not chosen:
        return problem
    stages = []
    for cost in problem.profile.stages:
        least = cost.activation_bytes
        if "recompute" in chosen:
            least = min(least, cost.checkpoint)
        if "offload" in chosen:
            least = min(least, cost.activation_bytes - cost.offloadable)
        bare = replace(cost, checkpoint_bytes=None, recompute_ns=None, offload_bytes=None)
        stages.append(replace(bare, activation_bytes=least))
    return replace(
        problem,
        profile=replace(problem.profile, stages=tuple(stages), host_link=None),
        memory_limit=problem.limit_bytes,
        allow=problem.allow - _CHOICES,
    )
