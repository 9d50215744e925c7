"""Which calls the ranks have made: told apart by what they publish, with time handed in."""

from __future__ import annotations

import re

import pytest

from zbsolve.executor.transports.calls import CallLog, CallWatch, Standing


def log(*kinds, inside=True, left=""):
    made = CallLog()
    for kind in kinds:
        made.begin({"kind": kind} if isinstance(kind, str) else kind)
        made.end()
    if inside and kinds:
        made._inside = True
    if left:
        made.leave(left)
    return made


class Rank0:
    """Rank 0 watching others, at times of the test's own."""

    def __init__(self, *kinds, **how):
        self.log = log(*kinds, **how)
        self.watch = CallWatch("rank 0", self.log)

    def sees(self, now=0.0, *, away_s=300.0, all_seen=True, busy=False, **others):
        mine = self.log.standing("rank 0 waits for B0 of stage 1 from rank 1", busy=busy)
        named = {name.replace("_", " "): None if other is None else other.standing() for name, other in others.items()}
        return self.watch.look(mine, named, now, away_s=away_s, all_seen=all_seen)


def test_a_standing_survives_the_way():
    made = log("step", {"kind": "eval", "batch": "float32 (8, 4)"})
    standing = made.standing("rank 1 waits", busy=True)
    assert Standing.unpack(standing.pack()) == standing
    assert standing.made == 2
    assert standing.call() == "call 2 (eval 1)"


def test_equal_calls_and_being_ahead_are_no_fault():
    rank = Rank0("step", "eval", "step")
    for others in (
        [log("step", "eval", "step")],
        [log("step", "eval")],
        [log("step", "eval", "step", "step", "step", inside=False)],
        [log("step", inside=False)],
        [log("step", "eval", "step", inside=False, left="has closed the pipeline")],
    ):
        assert rank.sees(rank_1=others[0]) is None


@pytest.mark.parametrize("swapped", [False, True])
def test_a_call_of_another_kind_is_told_at_once(swapped):
    ours, theirs = ("step", "step", "step"), ("step", "eval")
    mine, other = (theirs, ours) if swapped else (ours, theirs)
    found = Rank0(*mine).sees(rank_1=log(*other))
    assert found.fatal
    assert re.match(r"call 2 is (step 2|eval 1) on rank 0, but (step 2|eval 1) on rank 1: all ranks must", found.text)


def test_a_rank_that_is_far_ahead_finds_what_the_one_behind_did_otherwise():
    ahead = Rank0("step", *["eval"] * 100)
    assert "call 2 is eval 1 on rank 0, but step 2 on rank 1" in ahead.sees(rank_1=log("step", "step")).text


def test_other_shapes_are_told_where_both_are_given_some():
    ours = {"kind": "step", "batch": "float32 (8, 4)"}
    found = Rank0(ours).sees(rank_1=log({"kind": "step", "batch": "float32 (16, 4)"}))
    assert found.text.startswith(
        "in call 1 (step 1) the batch is float32 (8, 4) on rank 0, but float32 (16, 4) on rank"
    )
    assert Rank0(ours).sees(rank_1=log({"kind": "step", "target": "float32 (16, 4)"})) is None


def test_a_rank_that_has_left_early_is_told_at_once_and_one_that_is_done_is_not():
    rank = Rank0("step", "step", "step")
    gone = log("step", "step", inside=False, left="has closed the pipeline")
    found = rank.sees(rank_1=log("step", "step", "step"), rank_2=gone)
    assert found.fatal
    assert found.text.startswith("rank 0 is in call 3 (step 3), but rank 2 has closed the pipeline after 2 calls: all")
    between = Rank0("step", "step", "step", inside=False)
    assert between.sees(rank_2=gone) is None


def test_staying_away_ends_at_its_limit_with_a_word_before():
    rank, away = Rank0("step", "step"), log("step", inside=False)
    times = [t / 2 for t in range(700)]
    said = [(t, found) for t in times if (found := rank.sees(t, rank_1=away)) is not None]
    notice, failure = said[0], said[1]
    assert (notice[0], notice[1].fatal) == (10.5, False)
    assert "rank 1 is between calls, 1 call made. This ends after 300 s (away_s)" in notice[1].text
    assert (failure[0], failure[1].fatal) == (300.5, True)
    assert "away_s = 300" in failure[1].text


def test_staying_away_counts_from_when_it_is_waited_for():
    rank = Rank0("step", "step")
    assert rank.sees(0.0, away_s=5, rank_1=log("step", inside=False)) is None
    assert rank.sees(4.0, away_s=5, rank_1=log("step", "step")) is None
    rank.log.begin({"kind": "step"})
    assert not rank.sees(6.0, away_s=5, rank_1=log("step", "step", inside=False))
    assert not rank.sees(8.0, away_s=5, rank_1=log("step", "step", inside=False))
    assert rank.sees(11.5, away_s=5, rank_1=log("step", "step", inside=False)).fatal


@pytest.mark.parametrize("busy", [True, False])
def test_whoever_works_or_is_inside_an_earlier_call_keeps_nobody_waiting(busy):
    rank = Rank0("step", "step")
    for t in range(0, 2000, 10):
        other = log("step", inside=False) if busy else log("step")
        found = rank.sees(float(t), busy=busy, all_seen=False, rank_1=other)
        assert found is None


def test_no_limit_is_no_limit():
    rank = Rank0("step", "step")
    found = [rank.sees(float(t), away_s=float("inf"), rank_1=log("step", inside=False)) for t in range(0, 10**6, 1000)]
    assert not any(one.fatal for one in found if one is not None)


def test_a_rank_that_has_not_come_is_waited_for():
    rank = Rank0("making a pipeline")
    assert rank.sees(0.0, rank_1=None) is None
    assert "rank 1 has not come to its pipeline" in rank.sees(11.0, rank_1=None).text
    assert rank.sees(301.0, rank_1=None).fatal


def test_when_nothing_moves_for_long_everyone_is_told_what_all_are_at():
    rank = Rank0("step")
    other = log("step")
    assert rank.sees(0.0, rank_1=other) is None
    assert rank.sees(299.0, rank_1=other) is None
    found = rank.sees(301.0, rank_1=other)
    assert found.fatal
    assert found.text.startswith("nothing has moved for 301 s: rank 0 waits for B0 of stage 1 from rank 1")


def test_reading_the_log_while_calls_are_made_never_shifts_numbers():
    made = CallLog()
    for number in range(1, 10_000):
        made.begin({"kind": "step" if number % 3 else "eval"})
        standing = made.standing()
        for place, call in standing.numbered():
            assert call["kind"] == ("step" if place % 3 else "eval")
            assert made.call(place) == call
    assert made.call(1) is None
