"""Lowered plans of random problems: every message arrives once, in order, into a free buffer, and nothing hangs."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import orders, problems
from zbsolve.lowering import Do, Lowered, faults, lower
from zbsolve.ops import Kind
from zbsolve.simulate import simulate
from zbsolve.timetable import Timetable


@st.composite
def timetables(draw: st.DrawFn) -> Timetable:
    problem = draw(problems(variants=True))
    return simulate(problem, draw(orders(problem)))


def chaotic_run(lowered: Lowered, rng: random.Random, *, rendezvous: bool) -> None:
    """An executor in miniature: ranks take turns at random, channels deliver in order; asserts what it sees."""
    at = [0] * len(lowered.rows)
    sent: dict[tuple[int, int], list[int]] = {}
    posted: dict[tuple[int, int], list[int]] = {}
    slots: dict[tuple[int, str, int], int] = {}
    done = set()
    while True:
        moved = False
        for rank in rng.sample(range(len(at)), len(at)):
            for _ in range(rng.randint(1, 6)):
                if at[rank] == len(lowered.rows[rank]):
                    break
                action = lowered.rows[rank][at[rank]]
                if action.do is Do.COMPUTE:
                    done.update(action.op.halves)
                else:
                    m = action.message
                    message = lowered.messages[m]
                    edge = message.sender, message.receiver
                    out, into = sent.setdefault(edge, []), posted.setdefault(edge, [])
                    if action.do is Do.POST:
                        into.append(m)
                        assert slots.setdefault((rank, message.direction, message.slot), m) == m
                    elif action.do is Do.SEND:
                        assert message.tail in done
                        out.append(m)
                    elif action.do is Do.WAIT:
                        place = into.index(m)
                        if len(out) <= place:
                            break
                        assert out[place] == m
                    elif action.do is Do.COMPLETE and rendezvous:
                        if len(into) <= out.index(m):
                            break
                    elif action.do is Do.RELEASE:
                        assert slots.pop((rank, message.direction, message.slot)) == m
                at[rank] += 1
                moved = True
        if all(place == len(row) for place, row in zip(at, lowered.rows, strict=True)):
            return
        assert moved or rng.random() < 0.9, "hangs"


@given(timetables(), st.booleans(), st.integers(0, 2**32))
def test_every_message_is_sent_and_received_once_in_order_and_nothing_hangs(timetable, forward_only, seed):
    lowered = lower(timetable, forward_only=forward_only)
    assert faults(lowered) == ()
    counts = Counter((a.do, a.message) for row in lowered.rows for a in row if a.message >= 0)
    assert set(counts.values()) <= {1}
    crossing = {m for m, message in enumerate(lowered.messages) if not message.local}
    for do in (Do.SEND, Do.COMPLETE, Do.POST, Do.WAIT, Do.RELEASE):
        assert {m for d, m in counts if d is do} == crossing
    for rendezvous in (False, True):
        chaotic_run(lowered, random.Random(seed), rendezvous=rendezvous)


@given(timetables())
def test_rows_and_messages_are_those_of_the_timetable(timetable):
    lowered = lower(timetable)
    computed = [[a.op for a in row if a.do is Do.COMPUTE] for row in lowered.rows]
    assert computed == [[op for op in row if not op.kind.of_iteration] for row in timetable.order.rows]
    stages, microbatches = timetable.problem.placement.stages, timetable.problem.microbatches
    kinds = Counter((message.direction, message.head.microbatch) for message in lowered.messages)
    for microbatch in range(microbatches):
        assert kinds["forward", microbatch] == stages - 1
        assert kinds["backward", microbatch] == (0 if timetable.problem.forward_only else stages - 1)
    forward = lower(timetable, forward_only=True)
    assert [[a.op for a in row if a.do is Do.COMPUTE] for row in forward.rows] == [
        [op.halves[0] for op in row if op.kind is Kind.FORWARD] for row in timetable.order.rows
    ]


@given(timetables())
def test_pools_are_as_large_as_the_most_alive_at_once(timetable):
    lowered = lower(timetable)
    for row, buffers in zip(lowered.rows, lowered.buffers, strict=True):
        for direction in ("forward", "backward"):
            mine = [a for a in row if a.message >= 0 and lowered.messages[a.message].direction == direction]
            alive = [0]
            for action in mine:
                alive.append(alive[-1] + (action.do is Do.POST) - (action.do is Do.RELEASE))
            assert alive[-1] == 0
            assert buffers.slots(direction) == max(alive)
        sends = [0]
        for action in row:
            sends.append(sends[-1] + (action.do is Do.SEND) - (action.do is Do.COMPLETE))
        assert buffers.sends == max(sends)


@settings(max_examples=60)
@given(timetables(), st.randoms(use_true_random=False))
def test_damage_is_seen(timetable, rng):
    lowered = lower(timetable)
    where = [(r, i) for r, row in enumerate(lowered.rows) for i, a in enumerate(row) if a.message >= 0]
    if not where:
        return
    rank, place = rng.choice(where)
    row = list(lowered.rows[rank])
    action = row.pop(place)
    damage = rng.choice(["drop", "double", "other message", "other rank"])
    rows = [*lowered.rows]
    if damage == "double":
        row[place:place] = [action, action]
    elif damage == "other message":
        if len(lowered.messages) == 1:
            return
        other = rng.choice([m for m in range(len(lowered.messages)) if m != action.message])
        row.insert(place, replace(action, message=other))
    elif damage == "other rank":
        if len(rows) == 1:
            return
        other = rng.choice([r for r in range(len(rows)) if r != rank])
        rows[other] = (*rows[other], action)
    rows[rank] = tuple(row)
    assert faults(replace(lowered, rows=tuple(rows)))


@settings(max_examples=60)
@given(timetables(), st.randoms(use_true_random=False))
def test_two_receives_of_one_edge_swapped_are_seen(timetable, rng):
    lowered = lower(timetable)
    pairs = []
    for rank, row in enumerate(lowered.rows):
        posts = [(i, lowered.messages[a.message].sender) for i, a in enumerate(row) if a.do is Do.POST]
        pairs += [(rank, i, k) for i, x in posts for k, y in posts if i < k and x == y]
    if not pairs:
        return
    rank, i, k = rng.choice(pairs)
    row = list(lowered.rows[rank])
    row[i], row[k] = row[k], row[i]
    rows = tuple(tuple(row) if r == rank else other for r, other in enumerate(lowered.rows))
    assert any(
        "but receive" in fault or "before it is posted" in fault for fault in faults(replace(lowered, rows=rows))
    )


@settings(max_examples=60)
@given(timetables(), st.randoms(use_true_random=False))
def test_a_smaller_pool_or_a_shared_slot_is_seen(timetable, rng):
    lowered = lower(timetable)
    crossing = [m for m, message in enumerate(lowered.messages) if not message.local]
    if not crossing:
        return
    chosen = rng.choice(crossing)
    receiver, direction = lowered.messages[chosen].receiver, lowered.messages[chosen].direction
    buffers = list(lowered.buffers)
    field = f"{direction}_slots"
    buffers[receiver] = replace(buffers[receiver], **{field: getattr(buffers[receiver], field) - 1})
    assert faults(replace(lowered, buffers=tuple(buffers)))
