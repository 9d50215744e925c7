"""The independent judge of orders, timetables and traces.

It stands below the operation graph and shares nothing with it: every rule is said here a second
time, in words of its own, from the problem and the rows alone; one function a rule. It assumes no
order among microbatches and nothing about the rows beyond their types.

=============  ===================================================================================
code           what is wrong
=============  ===================================================================================
`rows`         there is not one row a rank
`unknown`      an operation that the problem does not have: its kind, stage or microbatch; what runs together
               and is not a forward with a backward of another microbatch
`not_allowed`  a kind that `Problem.allow` does not let an order choose
`misplaced`    an operation in the row of a rank that does not hold its stage for its microbatch
`missing`      a part (F, B or W of a stage and microbatch) that nothing does; of offload, release
               and reload, one that is missing where another stands
`duplicate`    a part done more than once; a fused backward does B and W
`needless`     a forward that is both moved to host memory and computed again
`memory`       a rank holds more bytes than its limit somewhere along its row
`precedence`   an operation comes before one of its own rank that it needs: in the row, or in time
`deadlock`     ranks wait for each other in a circle, so that none of them can go on
=============  ===================================================================================

and for timetables also

=============  ===================================================================================
`time`         a start or an end that is not a whole number of ns from 0 on
`first_start`  the first start is not 0
`duration`     an operation takes longer or shorter than it costs
`overlap`      two operations of one lane of a rank run at the same time
`row_order`    an operation runs before the one that stands ahead of it in its row
`transfer`     an operation starts before what it needs from another rank has arrived, its turn on a
               link where transfers queue included
`claim`        the times do not attain the claimed value of the objective
=============  ===================================================================================

A trace is judged as an order and, step by step, by what was measured: `time`, `overlap`, `row_order` (steps
of a rank included) and `precedence` by the rank's own clock, exactly; `transfer` between ranks, within the clock
error. How long operations and messages took is nobody's to judge.

Codes are stable; messages are for people. All violations are reported, with one exception: the
rows are issued until nothing moves any more, so a circle that lies behind another is not seen.
"""

from __future__ import annotations

from zbsolve.check.links import early_over_queueing_links
from zbsolve.check.measured import backwards, early_between_ranks, steps_in_each_other, strange_transfers
from zbsolve.check.membership import (
    duplicate_parts,
    kinds_not_allowed,
    misplaced_operations,
    missing_parts,
    needless_moves,
    number_of_rows,
    unknown_operations,
)
from zbsolve.check.memory import exceeded_limits, peaks_of
from zbsolve.check.sheet import Sheet
from zbsolve.check.times import (
    early_in_rank,
    early_over_links,
    first_start,
    overlaps,
    readable_times,
    row_against_time,
    unattained_claim,
    wrong_durations,
)
from zbsolve.check.waiting import circles_of_ranks, row_against_need
from zbsolve.errors import InvalidInput, InvalidTimetable
from zbsolve.problem import Problem
from zbsolve.timetable import Order, Timetable, Violation
from zbsolve.trace import Trace

__all__ = ["check", "peaks", "violations"]

_RULES = (
    number_of_rows,
    unknown_operations,
    kinds_not_allowed,
    misplaced_operations,
    missing_parts,
    duplicate_parts,
    needless_moves,
    exceeded_limits,
    row_against_need,
    circles_of_ranks,
)

_RULES_OF_TIME = (
    readable_times,
    first_start,
    wrong_durations,
    overlaps,
    row_against_time,
    early_in_rank,
    early_over_links,
    early_over_queueing_links,
)


_RULES_OF_MEASURED_TIME = (readable_times, backwards, overlaps, row_against_time, early_in_rank)


def violations(
    problem: Problem, x: Order | Timetable | Trace, *, claimed_ns: int | None = None
) -> tuple[Violation, ...]:
    """Judge an order, a timetable or a trace against what was asked.

    Parameters
    ----------
    problem
        What was asked; the problem that a timetable or a trace carries is not looked at.
    x
        What to judge: any number of rows, of any length, with any operations and times.
    claimed_ns
        The value in ns that somebody claims for a timetable, of the problem's objective: its period
        (the longest time from a rank's first start to its last end) or its makespan (the same over
        all ranks).

    Returns
    -------
    Everything that is wrong, in the order of the rules; nothing if all is well.

    Raises
    ------
    InvalidInput
        If `x` is none of them, or a value is claimed for something else than a timetable.
    """
    sheet = Sheet.of(problem, x)
    found = [violation for rule in _RULES for violation in rule(sheet)]
    if isinstance(x, Timetable):
        found += [violation for rule in _RULES_OF_TIME for violation in rule(sheet)]
        if claimed_ns is not None:
            found += unattained_claim(sheet, claimed_ns)
    elif claimed_ns is not None:
        raise InvalidInput(
            "a trace was measured, so no value can be claimed for it"
            if isinstance(x, Trace)
            else "an order has no times, so no value can be claimed for it; judge its timetable"
        )
    if isinstance(x, Trace):
        found += _measured(problem, x)
    return tuple(found)


def _measured(problem: Problem, trace: Trace) -> list[Violation]:
    """What is wrong with the times of a trace."""
    found = []
    sheets = [Sheet(problem, rows) for rows in trace.steps]
    for step, sheet in enumerate(sheets):
        wrong = [violation for rule in _RULES_OF_MEASURED_TIME for violation in rule(sheet)]
        wrong += early_between_ranks(sheet, trace.clock_error_ns)
        wrong += strange_transfers(sheet, trace, step)
        found += [Violation(v.code, f"step {step}: {v.message}", v.ops) for v in wrong]
    return [*found, *steps_in_each_other(sheets)]


def check(problem: Problem, x: Order | Timetable | Trace, *, claimed_ns: int | None = None) -> None:
    """Raise if an order, a timetable or a trace breaks a rule; the arguments are those of `violations`.

    Raises
    ------
    InvalidTimetable
        With every violation.
    InvalidInput
        If `x` is none of them, or a value is claimed for something else than a timetable.
    """
    found = violations(problem, x, claimed_ns=claimed_ns)
    if found:
        raise InvalidTimetable(found)


def peaks(problem: Problem, x: Order | Timetable | Trace) -> tuple[int, ...]:
    """The most bytes that each rank ever holds, static bytes included.

    Operations that the problem does not have hold nothing; the others count where they stand.
    """
    return peaks_of(Sheet.of(problem, x))
