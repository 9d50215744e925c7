"""The judge on traces: whatever could have been measured passes, and each thing that could not is found."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import problems, random_order
from zbsolve.check import check, violations
from zbsolve.errors import InvalidInput, InvalidTimetable
from zbsolve.lowering import lower
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Profile, StageCost
from zbsolve.simulate import simulate
from zbsolve.timetable import TimedOp
from zbsolve.trace import Trace, Transfer

SEEDS = st.integers(0, 2**32)


def measured(problem: Problem, rng: random.Random, steps: int = 2) -> Trace:
    """A run in which every operation and message takes as long as it likes, by clocks that are a little apart."""
    table = simulate(problem, random_order(problem, rng.getrandbits(32), fused=0.3))
    messages = [m for m in lower(table).messages if not m.local]
    into: dict[tuple[int, Op], list] = {}
    for message in messages:
        into.setdefault((message.receiver, message.head), []).append(message)
    error = rng.choice([0, 40])
    offset = [rng.randint(0, error // 2) for _ in table.rows]
    offset[0] = 0
    sequence = sorted(
        ((timed.start_ns, timed.end_ns, place, rank, timed.op) for rank, row in enumerate(table.rows)
         for place, timed in enumerate(row)),
        key=lambda item: item[:3],
    )  # fmt: skip
    free = [0] * len(table.rows)
    all_rows, all_transfers = [], []
    for _ in range(steps):
        ended: dict[Op, int] = {}
        rows: list[list[TimedOp]] = [[] for _ in table.rows]
        transfers = []
        waiting = list(sequence)
        while waiting:
            # planned times may tie, so take whatever has all that it needs
            for item in waiting:
                _, _, place, rank, op = item
                if place == len(rows[rank]) and all(m.tail in ended for m in into.get((rank, op), ())):
                    break
            waiting.remove(item)
            start = free[rank]
            for message in into.get((rank, op), ()):
                sent = ended[message.tail] + rng.randint(0, 5)
                taken = max(sent + rng.randint(0, 20), free[rank])
                start = max(start, taken)
                transfers.append(
                    Transfer(
                        message.tail,
                        message.head,
                        message.sender,
                        message.receiver,
                        sent + offset[message.sender],
                        free[rank] + offset[rank],
                        taken + offset[rank],
                    )
                )
            start += rng.randint(0, 3)
            end = start + rng.randint(1, 50)
            free[rank] = ended[op] = end
            rows[rank].append(TimedOp(op, start + offset[rank], end + offset[rank]))
        all_rows.append(rows)
        all_transfers.append(tuple(transfers))
    return Trace(problem=problem, steps=tuple(all_rows), transfers=tuple(all_transfers), clock_error_ns=error)


def two_ranks() -> Problem:
    cost = StageCost(forward_ns=10, backward_input_ns=10, backward_weight_ns=10)
    return Problem(profile=Profile(stages=(cost, cost)), placement=Placement.linear(2), microbatches=1)


def codes(problem: Problem, trace: Trace) -> set[str]:
    return {violation.code for violation in violations(problem, trace)}


@settings(max_examples=80)
@given(problems(), SEEDS)
def test_what_could_have_been_measured_passes(problem, seed):
    check(dataclasses.replace(problem, memory_limit=None), measured(problem, random.Random(seed)))


def moved(trace: Trace, step: int, rank: int, place: int, start: int, end: int) -> Trace:
    """The trace with other times for one operation."""
    steps = [[list(row) for row in rows] for rows in trace.steps]
    steps[step][rank][place] = TimedOp(steps[step][rank][place].op, start, end)
    return dataclasses.replace(trace, steps=tuple(steps))


def somewhere(trace: Trace, rng: random.Random) -> tuple[int, int, int, TimedOp]:
    step = rng.randrange(len(trace.steps))
    rank = rng.choice([r for r, row in enumerate(trace.steps[step]) if row])
    place = rng.randrange(len(trace.steps[step][rank]))
    return step, rank, place, trace.steps[step][rank][place]


def ends_first(trace, rng):
    step, rank, place, timed = somewhere(trace, rng)
    return moved(trace, step, rank, place, timed.end_ns, timed.start_ns)


def before_time(trace, rng):
    step, rank, place, timed = somewhere(trace, rng)
    return moved(trace, step, rank, place, -1 - timed.start_ns, timed.end_ns)


def runs_into_the_next(trace, rng):
    step, rank, place, timed = somewhere(trace, rng)
    row = trace.steps[step][rank]
    return (
        moved(trace, step, rank, place, timed.start_ns, row[place + 1].start_ns + 1) if place + 1 < len(row) else None
    )


def runs_into_the_next_step(trace, rng):
    step, rank, place, timed = somewhere(trace, rng)
    if step + 1 == len(trace.steps) or place + 1 < len(trace.steps[step][rank]):
        return None
    return moved(trace, step, rank, place, timed.start_ns, trace.steps[step + 1][rank][0].start_ns + 1)


def starts_before_its_message(trace, rng):
    step = rng.randrange(len(trace.steps))
    if not trace.transfers[step]:
        return None
    transfer = rng.choice(trace.transfers[step])
    row = trace.steps[step][transfer.receiver]
    place = next(i for i, timed in enumerate(row) if timed.op == transfer.head)
    tail = next(timed for timed in trace.steps[step][transfer.sender] if timed.op == transfer.tail)
    start = tail.end_ns - trace.clock_error_ns - 1
    return moved(trace, step, transfer.receiver, place, start, row[place].end_ns) if start >= 0 else None


def with_transfer(trace, rng, change):
    step = rng.randrange(len(trace.steps))
    if not trace.transfers[step]:
        return None
    number = rng.randrange(len(trace.transfers[step]))
    transfers = [list(of_step) for of_step in trace.transfers]
    transfers[step][number] = change(transfers[step][number])
    return dataclasses.replace(trace, transfers=tuple(map(tuple, transfers)))


def sent_too_early(trace, rng):
    return with_transfer(trace, rng, lambda t: dataclasses.replace(t, sent_ns=-1))


def taken_before_it_was_sent(trace, rng):
    return with_transfer(
        trace, rng, lambda t: dataclasses.replace(t, waited_ns=0, taken_ns=t.sent_ns - trace.clock_error_ns - 1)
    )


def taken_too_late(trace, rng):
    return with_transfer(trace, rng, lambda t: dataclasses.replace(t, taken_ns=10**9))


def taken_before_it_was_waited_for(trace, rng):
    return with_transfer(trace, rng, lambda t: dataclasses.replace(t, waited_ns=t.taken_ns + 1))


def of_another_operation(trace, rng):
    return with_transfer(trace, rng, lambda t: dataclasses.replace(t, tail=dataclasses.replace(t.tail, stage=77)))


def twice_the_same(trace, rng):
    rank = rng.choice([r for r, row in enumerate(trace.steps[0]) if row])
    steps = [[list(row) for row in rows] for rows in trace.steps]
    for rows in steps:
        rows[rank].append(TimedOp(rows[rank][0].op, rows[rank][-1].end_ns, rows[rank][-1].end_ns))
    return dataclasses.replace(trace, steps=tuple(steps))


MUTATIONS: list[tuple[Callable, str]] = [
    (ends_first, "time"),
    (before_time, "time"),
    (runs_into_the_next, "overlap"),
    (runs_into_the_next_step, "row_order"),
    (starts_before_its_message, "transfer"),
    (sent_too_early, "transfer"),
    (taken_before_it_was_sent, "transfer"),
    (taken_too_late, "transfer"),
    (taken_before_it_was_waited_for, "transfer"),
    (of_another_operation, "transfer"),
    (twice_the_same, "duplicate"),
]


@pytest.mark.parametrize(("mutate", "code"), MUTATIONS, ids=[mutate.__name__ for mutate, _ in MUTATIONS])
@settings(max_examples=25)
@given(problem=problems(), seed=SEEDS)
def test_what_cannot_have_been_is_found(mutate, code, problem, seed):
    rng = random.Random(seed)
    broken = mutate(measured(problem, rng), rng)
    if broken is not None:
        assert code in codes(dataclasses.replace(problem, memory_limit=None), broken)


def test_times_between_ranks_are_judged_within_the_clock_error():
    rng = random.Random(0)
    problem = two_ranks()
    trace = measured(problem, rng, steps=1)
    transfer = trace.transfers[0][0]
    row = trace.steps[0][transfer.receiver]
    tail = next(timed for timed in trace.steps[0][transfer.sender] if timed.op == transfer.tail)
    early = dataclasses.replace(
        moved(trace, 0, transfer.receiver, 0, tail.end_ns - 7, row[0].end_ns), transfers=(), clock_error_ns=7
    )
    assert row[0].op == transfer.head
    assert codes(problem, early) == set()
    assert codes(problem, dataclasses.replace(early, clock_error_ns=6)) == {"transfer"}
    (found,) = violations(problem, dataclasses.replace(early, clock_error_ns=6))
    assert found.message.startswith("step 0: F0 of stage 1 on rank 1 starts at")
    assert found.message.endswith("the clocks are at most 6 ns apart")


def test_nothing_can_be_claimed_for_a_trace():
    problem = two_ranks()
    trace = measured(problem, random.Random(1))
    with pytest.raises(InvalidInput, match="a trace was measured, so no value can be claimed for it"):
        violations(problem, trace, claimed_ns=5)


def test_a_trace_has_what_an_order_must_have():
    problem = two_ranks()
    trace = measured(problem, random.Random(1))
    steps = tuple(tuple(row[:-1] for row in rows) for rows in trace.steps)
    with pytest.raises(InvalidTimetable) as refused:
        check(problem, dataclasses.replace(trace, steps=steps, transfers=()))
    assert {v.code for v in refused.value.violations} == {"missing"}
    assert {v.ops[0].kind for v in refused.value.violations} <= {Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT}


def test_transfers_belong_to_the_steps():
    problem = two_ranks()
    trace = measured(problem, random.Random(1))
    (found,) = violations(problem, dataclasses.replace(trace, transfers=trace.transfers[:1]))
    assert (found.code, found.message) == ("transfer", "step 0: the trace has 2 steps, but transfers of 1")
