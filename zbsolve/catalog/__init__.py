"""The catalog: published schedules as orders for any costs, one module a family.

`schedules` lists them, `baseline` makes the order of one for a problem. An order that does not fit
the problem's memory limit is returned all the same: `check` and `metrics` tell.
"""

from __future__ import annotations

from zbsolve.catalog import (
    bidirectional,
    controllable_memory,
    forward_only,
    hanayo,
    interleaved,
    looped,
    one_f_one_b,
    sequence_slices,
    sequential,
    zb_v,
    zero_bubble,
)
from zbsolve.catalog.closing import closed, open_ended
from zbsolve.catalog.conditions import require_backwards, require_whole_sequences
from zbsolve.catalog.schedule import Member, Schedule
from zbsolve.errors import InvalidInput
from zbsolve.problem import Problem
from zbsolve.timetable import Order

__all__ = ["Schedule", "baseline", "schedules"]

_FAMILIES = (
    sequential,
    one_f_one_b,
    looped,
    interleaved,
    zero_bubble,
    zb_v,
    controllable_memory,
    bidirectional,
    hanayo,
    sequence_slices,
    forward_only,
)
_MEMBERS: dict[str, Member] = {member.schedule.name: member for family in _FAMILIES for member in family.MEMBERS}


def schedules() -> tuple[Schedule, ...]:
    """All published schedules, oldest idea first."""
    return tuple(member.schedule for member in _MEMBERS.values())


def baseline(name: str, problem: Problem) -> Order:
    """Make the order of a published schedule for a problem.

    Parameters
    ----------
    name
        One of the names in `schedules`.
    problem
        What is asked. Schedules made for a memory limit (``zb-1p``, ``zb-2p``) take the problem's,
        and their own on ranks that have none; the others do not look at it.

    Raises
    ------
    InvalidInput
        If there is no such schedule.
    ScheduleConditionError
        If its conditions do not hold.
    """
    member = _MEMBERS.get(name)
    if member is None:
        raise InvalidInput(f"there is no schedule {name!r}; choose one of {', '.join(_MEMBERS)}")
    if member.schedule.family != forward_only.FAMILY:
        require_backwards(problem, name)
    if not member.slices:
        require_whole_sequences(problem, name)
    return closed(problem, member.build(open_ended(problem)))
