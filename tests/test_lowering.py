"""Lowering, by cases small enough to see."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zbsolve.catalog import baseline
from zbsolve.errors import OrderError
from zbsolve.lowering import Action, Do, Lowered, faults, lower, verify
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Link, Profile, StageCost
from zbsolve.simulate import simulate
from zbsolve.timetable import Order, TimedOp, Timetable


def problem(placement: Placement, microbatches: int, **cost: int) -> Problem:
    costs = {
        "forward_ns": 10,
        "backward_input_ns": 10,
        "backward_weight_ns": 10,
        "activation_bytes": 4,
        "output_bytes": 100,
        **cost,
    }
    profile = Profile(stages=(StageCost(**costs),) * placement.stages, link=Link(latency_ns=1))
    return Problem(profile=profile, placement=placement, microbatches=microbatches)


def one_f_one_b(ranks: int, microbatches: int) -> Timetable:
    asked = problem(Placement.linear(ranks), microbatches)
    return simulate(asked, baseline("1f1b", asked))


def told(lowered: Lowered, rank: int) -> list[str]:
    short = {
        Do.POST: "post",
        Do.WAIT: "wait",
        Do.SEND: "send",
        Do.COMPLETE: "done",
        Do.RELEASE: "free",
        Do.HAND_OVER: "hand",
    }
    return [
        f"{'' if a.do is Do.COMPUTE else short[a.do] + ' '}{a.op.kind.letter}{a.op.microbatch}@{a.op.stage}"
        for a in lowered.rows[rank]
    ]


def move(lowered: Lowered, rank: int, source: int, target: int) -> Lowered:
    row = list(lowered.rows[rank])
    row.insert(target, row.pop(source))
    return replace(lowered, rows=tuple(tuple(row) if r == rank else old for r, old in enumerate(lowered.rows)))


def place(lowered: Lowered, rank: int, do: Do, op: Op) -> int:
    return next(i for i, a in enumerate(lowered.rows[rank]) if a.do is do and a.op == op)


def test_two_ranks_read_like_a_picture():
    lowered = lower(one_f_one_b(2, 2))
    verify(lowered)
    first = (
        "F0@0 / send F0@0 / F1@0 / send F1@0 / post BW0@0 / done F0@0 / done F1@0 / wait BW0@0 / BW0@0 / "
        "free BW0@0 / post BW1@0 / wait BW1@0 / BW1@0 / free BW1@0"
    )
    second = (
        "post F0@1 / post F1@1 / wait F0@1 / F0@1 / BW0@1 / send BW0@1 / free F0@1 / wait F1@1 / F1@1 / done BW0@1 / "
        "BW1@1 / send BW1@1 / free F1@1 / done BW1@1"
    )
    assert (" / ".join(told(lowered, 0)), " / ".join(told(lowered, 1))) == (first, second)


def test_buffers_do_not_grow_with_the_microbatches():
    few, many = lower(one_f_one_b(4, 8)).buffers, lower(one_f_one_b(4, 64)).buffers
    assert few == many
    # rank 1 has three microbatches in flight, and the receive of one more posted ahead
    assert many[1].forward_slots <= 4
    assert many[1].pool_bytes == 100 * (many[1].forward_slots + many[1].backward_slots)
    assert all(buffers.sends <= 4 for buffers in many)


def test_neighbours_on_one_rank_need_no_message():
    asked = problem(Placement.v(1), 2)
    lowered = lower(simulate(asked, baseline("gpipe", asked)))
    verify(lowered)
    assert all(message.local for message in lowered.messages)
    assert lowered.buffers[0].pool_bytes == lowered.buffers[0].under_way_bytes == 0
    assert {a.do for a in lowered.rows[0]} == {Do.COMPUTE, Do.HAND_OVER}


def test_bytes_under_way_end_where_the_operation_takes_the_message():
    lowered = lower(one_f_one_b(2, 1))
    assert lowered.buffers[0].under_way_bytes == 200  # its send is completed only after the gradient's post
    assert lowered.buffers[1].under_way_bytes == 100
    assert lowered.buffers[1].pool_bytes == 100


def test_times_that_no_order_can_have_are_refused():
    timetable = one_f_one_b(2, 1)
    early = TimedOp(timetable.rows[1][0].op, 0, 10)
    with pytest.raises(OrderError, match=r"F0 of stage 1 is planned to start at 0 ns, but F0 of stage 0"):
        lower(Timetable(problem=timetable.problem, rows=(timetable.rows[0], (early, *timetable.rows[1][1:]))))


def test_an_order_that_cannot_finish_is_told_as_a_story():
    asked = problem(Placement.linear(2), 1)
    free = replace(asked.profile.stages[0], forward_ns=0, backward_input_ns=0, backward_weight_ns=0, backward_ns=0)
    asked = replace(asked, profile=Profile(stages=(free, asked.profile.stages[1])))
    rows = (
        (Op(Kind.BACKWARD, 0, 0), Op(Kind.FORWARD, 0, 0)),
        (Op(Kind.FORWARD, 1, 0), Op(Kind.BACKWARD, 1, 0)),
    )
    timed = Timetable(problem=asked, rows=tuple(tuple(TimedOp(op, 0, 0) for op in row) for row in rows))
    with pytest.raises(OrderError, match=r"can never finish: BW0 of stage 0 .* stands ahead of F0 of stage 0"):
        lower(timed)


def test_a_dropped_send_is_named():
    lowered = lower(one_f_one_b(2, 1))
    row = tuple(a for a in lowered.rows[0] if a.do is not Do.SEND)
    found = faults(replace(lowered, rows=(row, lowered.rows[1])))
    assert found == (
        "send of message 0, the output of F0 of stage 0 for F0 of stage 1, is done by ranks []; expected [0]",
    )
    with pytest.raises(OrderError, match="these actions cannot be run"):
        verify(replace(lowered, rows=(row, lowered.rows[1])))


def test_swapped_receives_are_named():
    lowered = lower(one_f_one_b(2, 2))
    first, second = (place(lowered, 1, Do.POST, Op(Kind.FORWARD, 1, j)) for j in (0, 1))
    row = list(lowered.rows[1])
    row[first], row[second] = row[second], row[first]
    found = faults(replace(lowered, rows=(lowered.rows[0], tuple(row))))
    assert "from rank 0 to rank 1, send 0 is message 0 but receive 0 is for message 1" in found


def crossing() -> Lowered:
    """Two routes in opposite directions: both ranks send to each other at the same moment."""
    asked = problem(Placement.bidirectional(2), 2)
    order = Order(
        (
            (
                Op(Kind.FORWARD, 0, 0),
                Op(Kind.FORWARD, 1, 1),
                Op(Kind.BACKWARD, 1, 1),
                Op(Kind.BACKWARD, 0, 0),
            ),
            (
                Op(Kind.FORWARD, 0, 1),
                Op(Kind.FORWARD, 1, 0),
                Op(Kind.BACKWARD, 1, 0),
                Op(Kind.BACKWARD, 0, 1),
            ),
        )
    )
    return lower(simulate(asked, order))


def test_crossing_sends_do_not_hang():
    assert faults(crossing()) == ()


def test_blocking_sends_would_hang_where_sends_cross():
    lowered = crossing()
    for rank in (0, 1):
        op = Op(Kind.FORWARD, 0, rank)
        lowered = move(lowered, rank, place(lowered, rank, Do.COMPLETE, op), place(lowered, rank, Do.SEND, op) + 1)
    found = faults(lowered)
    assert [fault.split(":")[0] for fault in found] == [
        "deadlock with rendezvous sends",
        "deadlock with late rendezvous sends",
    ]
    assert found[0] == (
        "deadlock with rendezvous sends: rank 0 waits until rank 1 receives the output of F0 of stage 0 for "
        "F0 of stage 1; rank 1 waits until rank 0 receives the output of F1 of stage 0 for F1 of stage 1; "
        "so rank 0 waits for itself"
    )


def test_waiting_too_early_hangs_under_every_rule():
    lowered = crossing()
    for rank in (0, 1):
        op = Op(Kind.FORWARD, 1, 1 - rank)
        for do in (Do.POST, Do.WAIT):
            at = place(lowered, rank, do, op)
            lowered = move(lowered, rank, at, 0 if do is Do.POST else 1)
    found = faults(lowered)
    assert [fault.split(":")[0] for fault in found] == [
        f"deadlock with {rule} sends" for rule in ("buffered", "rendezvous", "late rendezvous")
    ]
    assert "rank 0, before F1 of stage 1, waits for F1 of stage 0 from rank 1" in found[0]


def test_an_action_of_no_message_is_named():
    lowered = lower(one_f_one_b(2, 1))
    stray = Action(Do.SEND, Op(Kind.FORWARD, 0, 0), 99)
    assert "is of no message" in faults(replace(lowered, rows=((stray,), ())))[0]


def test_forward_only_keeps_the_forwards_and_their_messages():
    lowered = lower(one_f_one_b(3, 2), forward_only=True)
    verify(lowered)
    assert {a.op.kind for row in lowered.rows for a in row} == {Kind.FORWARD}
    assert len(lowered.messages) == 4
