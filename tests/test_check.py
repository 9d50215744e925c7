"""Every rule of the judge by a case small enough to see."""

import ast
import re
from pathlib import Path

import pytest

from zbsolve.check import check, peaks, violations
from zbsolve.errors import InvalidInput, InvalidTimetable
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Link, LinkOverride, Profile, StageCost
from zbsolve.timetable import Order, TimedOp, Timetable

KIND = {"F": Kind.FORWARD, "B": Kind.BACKWARD_INPUT, "W": Kind.BACKWARD_WEIGHT, "BW": Kind.BACKWARD}
STAGE = StageCost(
    forward_ns=3,
    backward_input_ns=2,
    backward_weight_ns=1,
    activation_bytes=10,
    backward_weight_bytes=4,
    workspace_bytes=1,
    static_bytes=100,
    output_bytes=8,
)


def op(text: str) -> Op:
    """``F2@1`` is F of stage 1 with microbatch 2."""
    kind, microbatch, stage = re.fullmatch(r"([A-Z]+)(\d+)@(\d+)", text).groups()
    return Op(KIND[kind], int(stage), int(microbatch))


def order(*rows: str) -> Order:
    return Order(tuple(tuple(op(word) for word in row.split()) for row in rows))


def timetable(problem: Problem, *rows: str) -> Timetable:
    """Words such as ``F2@1:0-3``."""

    def timed(word: str) -> TimedOp:
        what, start, end = re.fullmatch(r"(.*):(-?\d+)-(-?\d+)", word).groups()
        return TimedOp(op(what), int(start), int(end))

    return Timetable(problem=problem, rows=tuple(tuple(timed(word) for word in row.split()) for row in rows))


def two_ranks(microbatches: int = 2, *, placement: Placement | None = None, **asked) -> Problem:
    """Two equal stages on two ranks; a transfer takes 1 + ceil(8 / 4) = 3 ns."""
    where = placement or Placement.linear(2)
    link = Link(latency_ns=1, bytes_per_second=4_000_000_000)
    profile = Profile(stages=(STAGE,) * where.stages, link=link)
    return Problem(profile=profile, placement=where, microbatches=microbatches, **asked)


def codes(problem: Problem, x: Order | Timetable, **claim) -> list[str]:
    return [violation.code for violation in violations(problem, x, **claim)]


def only(problem: Problem, x: Order | Timetable, code: str, **claim) -> str:
    """The message of the one violation there is."""
    found = violations(problem, x, **claim)
    assert [violation.code for violation in found] == [code], found
    return found[0].message


GOOD = ("F0@0 F1@0 B0@0 W0@0 BW1@0", "F0@1 B0@1 F1@1 BW1@1 W0@1")
TIMED = (
    "F0@0:0-3 F1@0:3-6 B0@0:14-16 W0@0:16-17 BW1@0:20-23",
    "F0@1:6-9 B0@1:9-11 F1@1:11-14 BW1@1:14-17 W0@1:17-18",
)
ALONE = ("F0@0:0-3 BW0@0:15-18", "F0@1:6-9 BW0@1:9-12")


def test_a_good_order_and_a_good_timetable_pass():
    assert violations(two_ranks(), order(*GOOD)) == ()
    assert violations(two_ranks(), timetable(two_ranks(), *TIMED)) == ()
    assert violations(two_ranks(1), timetable(two_ranks(1), *ALONE)) == ()
    check(two_ranks(), order(*GOOD))


def test_check_raises_with_every_violation():
    with pytest.raises(InvalidTimetable, match=r"2 violations:\n  missing: .*\n  missing: ") as caught:
        check(two_ranks(), order("F0@0 F1@0 B0@0 W0@0", GOOD[1]))
    assert [v.code for v in caught.value.violations] == ["missing", "missing"]


# which operations stand where


@pytest.mark.parametrize("rows", [GOOD[:1], (*GOOD, ""), ()])
def test_a_wrong_number_of_rows(rows):
    found = violations(two_ranks(), order(*rows))
    assert found[0].message == f"the problem has 2 ranks, but there are {len(rows)} rows"


def test_a_surplus_row_may_not_run_anything():
    found = violations(two_ranks(), order(GOOD[0][:-6], GOOD[1], "BW1@0"))
    assert [v.code for v in found] == ["rows", "misplaced"]
    assert found[1].message == "BW1 of stage 0 on rank 2 (place 0) belongs on rank 0"


@pytest.mark.parametrize(
    ("foreign", "why"),
    [
        (Op(Kind.FORWARD, 2, 0), "stage 2 and microbatch 0"),
        (Op(Kind.FORWARD, 0, 2), "stage 0 and microbatch 2"),
        (Op(Kind.BACKWARD, -1, 0), "stage -1 and microbatch 0"),
        (Op(Kind.BACKWARD_INPUT, 0, -1), "stage 0 and microbatch -1"),
        (Op(Kind.FORWARD, 1, -1), "stage 1 and microbatch -1"),
        (Op(Kind.BACKWARD_WEIGHT, 0, None), "no microbatch"),
        (Op(Kind.FORWARD, 10**5000, 0), "stage (a number of 16610 bits) and microbatch 0"),
        (Op(Kind.FORWARD, 0, -(10**5000)), "stage 0 and microbatch (-a number of 16610 bits)"),
        (Op(Kind.FORWARD, True, 0), "a stage of type bool, which must be an int"),
        (Op(Kind.FORWARD, 0, 0.0), "a microbatch of type float, which must be an int"),
        (Op("forward", 0, 0), "the kind forward"),
    ],
)
def test_an_operation_that_the_problem_does_not_have(foreign, why):
    good = order(*GOOD)
    message = only(two_ranks(), Order(((*good.rows[0], foreign), good.rows[1])), "unknown")
    assert message.endswith(f"which has stages 0 to 1 and microbatches 0 to 1; it has {why}")


def test_kinds_that_are_not_allowed():
    assert codes(two_ranks(allow={"split"}), order(*GOOD)) == ["not_allowed"] * 2
    assert codes(two_ranks(allow={"fused"}), order(*GOOD)) == ["not_allowed"] * 4
    found = violations(two_ranks(allow={"split"}), order(*GOOD))
    assert found[0].message == "BW1 of stage 0 on rank 0: the problem does not allow fused backwards"


def test_a_part_that_nothing_does():
    assert only(two_ranks(), order("F0@0 F1@0 B0@0 BW1@0", GOOD[1]), "missing") == (
        "nothing does W0 of stage 0, which belongs on rank 0"
    )


def test_an_operation_that_stands_twice():
    found = violations(two_ranks(), order("F0@0 F1@0 F1@0 B0@0 W0@0 BW1@0", GOOD[1]))
    assert [v.code for v in found] == ["duplicate"]
    assert found[0].message == (
        "F1 of stage 0 is done 2 times, by F1 of stage 0 on rank 0 (place 1), F1 of stage 0 on rank 0 (place 2)"
    )
    assert found[0].ops == (op("F1@0"), op("F1@0"))


def test_a_fused_backward_does_the_weight_gradient_too():
    message = only(two_ranks(), order("F0@0 F1@0 BW0@0 W0@0 BW1@0", GOOD[1]), "duplicate")
    assert message.startswith("W0 of stage 0 is done 2 times, by BW0 of stage 0")


def test_an_operation_in_the_wrong_row():
    message = only(two_ranks(), order("F0@0 F1@0 B0@0 BW1@0", f"{GOOD[1]} W0@0"), "misplaced")
    assert message == "W0 of stage 0 on rank 1 (place 5) belongs on rank 0"


def test_the_right_row_depends_on_the_microbatch_s_route():
    problem = two_ranks(placement=Placement.bidirectional(2))  # microbatch 1 starts on rank 1
    rows = ("F0@0 F1@1 BW1@1 BW0@0", "F1@0 F0@1 BW0@1 BW1@0")
    assert codes(problem, order(*rows)) == []
    assert codes(problem, order(*rows[::-1])) == ["misplaced"] * 8


# memory


def test_memory_along_the_row():
    # F 100+10+1, F 110+10+1, B frees 6, W frees 4, BW frees 10 at their ends
    assert peaks(two_ranks(), order(*GOOD)) == (121, 115)
    assert codes(two_ranks(memory_limit=(121, 115)), order(*GOOD)) == []
    assert codes(two_ranks(memory_limit=(100, 100)), order("", "")) == ["missing"] * 12
    assert only(two_ranks(memory_limit=(121, 114)), order(*GOOD), "memory") == (
        "rank 1 exceeds its limit of 114 bytes, first at F1 of stage 1 (place 2); "
        "its peak is 115 bytes (1 too many), there"
    )
    assert only(two_ranks(memory_limit=(110, 115)), order(*GOOD), "memory") == (
        "rank 0 exceeds its limit of 110 bytes, first at F0 of stage 0 (place 0); "
        "its peak is 121 bytes (11 too many), at F1 of stage 0 (place 1)"
    )


def test_static_bytes_may_be_too_many_by_themselves():
    assert only(two_ranks(memory_limit=(99, 999)), order(*GOOD), "memory").startswith(
        "rank 0 exceeds its limit of 99 bytes, first before its first operation, by static bytes alone"
    )
    assert "memory" in codes(two_ranks(memory_limit=(99, 999)), order())


def test_static_bytes_of_a_stage_count_on_every_rank_that_holds_it_once():
    where = Placement.custom((0, 1), (1, 0), (0, 1))
    assert peaks(two_ranks(placement=where), order("", "")) == (200, 200)


def test_what_b_leaves_for_w_may_exceed_what_it_frees():
    stage = StageCost(
        forward_ns=1, backward_input_ns=1, backward_weight_ns=1, activation_bytes=2, backward_weight_bytes=7
    )
    problem = Problem(profile=Profile(stages=(stage,)), placement=Placement.linear(1), microbatches=1)
    assert peaks(problem, order("F0@0 B0@0 W0@0")) == (7,)
    assert peaks(problem, order("F0@0 BW0@0")) == (2,)


def test_what_an_operation_frees_it_holds_until_its_end():
    first = StageCost(forward_ns=1, backward_input_ns=1, backward_weight_ns=1, activation_bytes=10)
    second = StageCost(forward_ns=1, backward_input_ns=1, backward_weight_ns=1, activation_bytes=3, workspace_bytes=5)
    problem = Problem(profile=Profile(stages=(first, second)), placement=Placement.custom([0, 0]), microbatches=2)
    # at BW0 of stage 1: 10 + 3 + 10 and its workspace
    assert peaks(problem, order("F0@0 F0@1 F1@0 BW0@1 BW0@0 F1@1 BW1@1 BW1@0")) == (28,)


def test_w_frees_what_b_left_for_it():
    assert peaks(two_ranks(3), order("F0@0 B0@0 W0@0 F1@0 B1@0 W1@0 F2@0", "")) == (111, 100)
    assert peaks(two_ranks(3), order("F0@0 B0@0 F1@0 B1@0 F2@0 W0@0 W1@0", "")) == (119, 100)


# who waits for whom


def test_an_operation_ahead_of_what_it_needs_in_its_own_row():
    message = only(two_ranks(1), order("F0@0 BW0@0", "BW0@1 F0@1"), "precedence")
    assert message == (
        "BW0 of stage 1 on rank 1 (place 0) stands ahead of F0 of stage 1 (place 1), which it needs: "
        "the rank waits for itself"
    )
    assert codes(two_ranks(1), order("F0@0 W0@0 B0@0", "F0@1 BW0@1")) == ["precedence"]


def test_neighbouring_stages_of_one_rank_wait_within_its_row():
    problem = two_ranks(1, placement=Placement.v(2))
    assert codes(problem, order("F0@0 F0@3 BW0@3 BW0@0", "F0@1 F0@2 BW0@2 BW0@1")) == []
    found = violations(problem, order("F0@0 F0@3 BW0@3 BW0@0", "F0@2 F0@1 BW0@2 BW0@1"))
    assert [(v.code, v.ops) for v in found] == [("precedence", (op("F0@2"), op("F0@1")))]


def test_two_ranks_that_wait_for_each_other():
    found = violations(two_ranks(), order("F0@0 BW0@0 F1@0 BW1@0", "F0@1 F1@1 BW0@1 BW1@1"))
    assert [v.code for v in found] == ["deadlock"]
    assert found[0].message == (
        "rank 0, at BW0 of stage 0, waits for BW0 of stage 1 on rank 1, which stands there behind F1 of stage 1; "
        "rank 1, at F1 of stage 1, waits for F1 of stage 0 on rank 0, which stands there behind BW0 of stage 0; "
        "so rank 0 waits for itself"
    )
    assert found[0].ops == (op("BW0@0"), op("BW0@1"), op("F1@1"), op("F1@0"))


ONE_AHEAD = "F0@{0} BW0@{0} F1@{0} BW1@{0}"  # gives a microbatch back before it takes the next
TWO_AHEAD = "F0@{0} F1@{0} BW0@{0} BW1@{0}"  # takes both before it gives one back


def test_who_hangs_on_a_circle_is_no_part_of_it():
    rows = [row.format(s) for s, row in enumerate((ONE_AHEAD, ONE_AHEAD, TWO_AHEAD, TWO_AHEAD))]
    found = violations(two_ranks(placement=Placement.linear(4)), order(*rows))
    assert [v.code for v in found] == ["deadlock"]
    assert found[0].message == (
        "rank 1, at BW0 of stage 1, waits for BW0 of stage 2 on rank 2, which stands there behind F1 of stage 2; "
        "rank 2, at F1 of stage 2, waits for F1 of stage 1 on rank 1, which stands there behind BW0 of stage 1; "
        "so rank 1 waits for itself"
    )


def test_two_circles_are_told_apart():
    # two routes over two ranks each, alike and apart from each other
    problem = two_ranks(4, placement=Placement.custom((0, 1), (2, 3)), route_of=(0, 0, 1, 1))
    later = [row.format(s).replace("1@", "3@").replace("0@", "2@") for s, row in enumerate((ONE_AHEAD, TWO_AHEAD))]
    found = violations(problem, order(ONE_AHEAD.format(0), TWO_AHEAD.format(1), *later))
    assert [v.code for v in found] == ["deadlock", "deadlock"]
    assert [v.message.split(",")[0] for v in found] == ["rank 0", "rank 2"]


def test_a_circle_in_which_what_is_waited_for_comes_next():
    # rank 1 has nothing else to do first: it only passes on what rank 2 keeps it waiting for
    problem = two_ranks(placement=Placement.custom((2, 1, 0, 2)))
    rows = ("F1@2 F0@2 BW0@2 BW1@2", "F0@1 F1@1 BW0@1 BW1@1", "F0@0 F0@3 F1@0 F1@3 BW0@3 BW1@3 BW0@0 BW1@0")
    assert only(problem, order(*rows), "deadlock") == (
        "rank 0, at F1 of stage 2, waits for F1 of stage 1 on rank 1; "
        "rank 1, at F1 of stage 1, waits for F1 of stage 0 on rank 2, which stands there behind F0 of stage 3; "
        "rank 2, at F0 of stage 3, waits for F0 of stage 2 on rank 0, which stands there behind F1 of stage 2; "
        "so rank 0 waits for itself"
    )


def test_a_missing_operation_is_no_deadlock():
    assert codes(two_ranks(1), order("F0@0 BW0@0", "BW0@1")) == ["missing"]


# times


def test_times_must_be_whole_numbers_from_0_on():
    good = timetable(two_ranks(1), *ALONE)
    for start, said in [
        (-1, "is -1 ns, but must not be negative"),
        (0.0, "is of type float, but must be an int of ns"),
        (None, "is of type NoneType, but must be an int of ns"),
        (float("nan"), "is of type float, but must be an int of ns"),
    ]:
        first = TimedOp(op("F0@0"), start, 3)
        bad = Timetable(problem=good.problem, rows=((first, good.rows[0][1]), good.rows[1]))
        message = only(good.problem, bad, "time")
        assert message == f"the start of F0 of stage 0 on rank 0 (place 0) {said}"


def test_the_first_start_is_0():
    late = timetable(two_ranks(1), "F0@0:1-4 BW0@0:16-19", "F0@1:7-10 BW0@1:10-13")
    assert only(two_ranks(1), late, "first_start") == (
        "F0 of stage 0 on rank 0 starts first, at 1 ns, but the first start must be 0"
    )


@pytest.mark.parametrize(("end", "planned"), [(19, 4), (17, 2), (14, -1)])
def test_durations_are_exact(end, planned):
    bad = timetable(two_ranks(1), f"F0@0:0-3 BW0@0:15-{end}", ALONE[1])
    assert only(two_ranks(1), bad, "duration") == (
        f"BW0 of stage 0 on rank 0 takes 3 ns, but is planned for {planned} ns, from 15 to {end} ns"
    )


def test_a_fused_backward_takes_its_own_time():
    stage = StageCost(forward_ns=1, backward_input_ns=2, backward_weight_ns=3, backward_ns=4)
    problem = Problem(profile=Profile(stages=(stage,)), placement=Placement.linear(1), microbatches=1)
    assert codes(problem, timetable(problem, "F0@0:0-1 BW0@0:1-5")) == []
    assert codes(problem, timetable(problem, "F0@0:0-1 BW0@0:1-6")) == ["duration"]


def test_a_rank_runs_one_operation_at_a_time():
    bad = timetable(two_ranks(), TIMED[0].replace("F1@0:3-6", "F1@0:2-5"), TIMED[1])
    assert only(two_ranks(), bad, "overlap") == (
        "F1 of stage 0 on rank 0 runs from 2 to 5 ns, while F0 of stage 0 runs from 0 to 3 ns"
    )


def test_a_row_stands_in_the_order_of_its_times():
    bad = timetable(two_ranks(), "F1@0:3-6 F0@0:0-3 B0@0:14-16 W0@0:16-17 BW1@0:20-23", TIMED[1])
    assert only(two_ranks(), bad, "row_order") == (
        "F0 of stage 0 on rank 0 (place 1, 0 to 3 ns) stands behind F1 of stage 0 (place 0, 3 to 6 ns), "
        "but runs before it"
    )


def test_precedence_in_time_within_a_rank():
    # the row stands right, but its times put W ahead of B
    bad = timetable(two_ranks(), TIMED[0].replace("B0@0:14-16 W0@0:16-17", "B0@0:14-16 W0@0:13-14"), TIMED[1])
    found = violations(two_ranks(), bad)
    assert [v.code for v in found] == ["row_order", "precedence"]
    assert found[1].message == (
        "W0 of stage 0 on rank 0 starts at 13 ns, 3 ns too early: it needs B0 of stage 0, which ends at 16 ns"
    )


def test_a_transfer_takes_its_time():
    bad = timetable(two_ranks(1), "F0@0:0-3 BW0@0:14-17", "F0@1:5-8 BW0@1:9-12")
    found = violations(two_ranks(1), bad)
    assert [v.code for v in found] == ["transfer", "transfer"]
    assert found[0].message == (
        "BW0 of stage 0 on rank 0 starts at 14 ns, 1 ns too early: it needs BW0 of stage 1 on rank 1, "
        "which ends at 12 ns and takes 3 ns to come over"
    )
    assert found[1].ops == (op("F0@1"), op("F0@0"))


def test_transfers_follow_direction_and_size_of_the_boundary():
    stages = (
        StageCost(forward_ns=1, backward_input_ns=1, backward_weight_ns=0, output_bytes=5),
        StageCost(forward_ns=1, backward_input_ns=1, backward_weight_ns=0, output_bytes=999),
    )
    back = LinkOverride(sender=1, receiver=0, latency_ns=10, bytes_per_second=2_000_000_000)
    link = Link(latency_ns=1, overrides=(back,))
    problem = Problem(profile=Profile(stages=stages, link=link), placement=Placement.linear(2), microbatches=1)
    # forward: 1 ns, unlimited; back: 10 + ceil(5 / 2) = 13 ns for the gradient of stage 0's output
    assert codes(problem, timetable(problem, "F0@0:0-1 BW0@0:17-18", "F0@1:2-3 BW0@1:3-4")) == []
    assert codes(problem, timetable(problem, "F0@0:0-1 BW0@0:16-17", "F0@1:2-3 BW0@1:3-4")) == ["transfer"]


def test_operations_of_no_duration_share_instants_but_keep_their_order():
    stage = StageCost(forward_ns=1, backward_input_ns=0, backward_weight_ns=0)
    problem = Problem(profile=Profile(stages=(stage,)), placement=Placement.linear(1), microbatches=2)
    assert codes(problem, timetable(problem, "F0@0:0-1 B0@0:1-1 W0@0:1-1 F1@0:1-2 BW1@0:2-2")) == []
    assert codes(problem, timetable(problem, "F0@0:0-1 F1@0:1-2 B0@0:1-1 W0@0:2-2 BW1@0:2-2")) == ["row_order"]


def test_ranks_that_wait_for_each_other_at_one_instant_are_found_though_their_times_fit():
    nothing = StageCost(forward_ns=0, backward_input_ns=0, backward_weight_ns=0)
    some = StageCost(forward_ns=1, backward_input_ns=0, backward_weight_ns=0)
    problem = Problem(profile=Profile(stages=(nothing, nothing, some)), placement=Placement.linear(3), microbatches=2)
    rows = ("F0@0:0-0 BW0@0:1-1 F1@0:1-1 BW1@0:2-2", "F0@1:0-0 F1@1:1-1 BW0@1:1-1 BW1@1:2-2")
    found = codes(problem, timetable(problem, *rows, "F0@2:0-1 BW0@2:1-1 F1@2:1-2 BW1@2:2-2"))
    assert found == ["deadlock"]


# what is claimed


def test_a_claimed_value_is_attained_exactly():
    good = timetable(two_ranks(), *TIMED)
    assert codes(two_ranks(), good, claimed_ns=23) == []
    for claimed in (22, 24):
        assert only(two_ranks(), good, "claim", claimed_ns=claimed) == (
            f"a period of {claimed} ns is claimed, the times attain 23 ns"
        )


def test_a_period_is_counted_from_a_rank_s_own_first_start():
    # rank 0 waits for a stage on rank 1 that starts first: 0 to 11, but each rank is busy for less
    problem = two_ranks(1, placement=Placement.custom((1, 0)))
    times = timetable(problem, "F0@1:6-9 BW0@1:9-12", "F0@0:0-3 BW0@0:15-18")
    assert codes(problem, times, claimed_ns=18) == []
    single = Problem(profile=Profile(stages=(STAGE,) * 2), placement=Placement.linear(2), microbatches=1)
    late = timetable(single, "F0@0:0-3 BW0@0:9-12", "F0@1:3-6 BW0@1:6-9")
    assert codes(single, late, claimed_ns=12) == []


def test_claims_follow_the_objective():
    rows = ("F0@0:0-1 BW0@0:1-2", "F1@0:5-6 BW1@0:6-7")
    stage = StageCost(forward_ns=1, backward_input_ns=1, backward_weight_ns=0)
    for objective, value in (("period", 2), ("makespan", 7)):
        problem = Problem(
            profile=Profile(stages=(stage,)),
            placement=Placement.custom([0], [1]),
            microbatches=2,
            objective=objective,
        )
        assert codes(problem, timetable(problem, *rows), claimed_ns=value) == []
        assert codes(problem, timetable(problem, *rows), claimed_ns=value + 1) == ["claim"]


# what is judged


def test_an_order_can_claim_nothing():
    with pytest.raises(InvalidInput, match="judge its timetable"):
        violations(two_ranks(), order(*GOOD), claimed_ns=23)


def test_other_things_cannot_be_judged():
    class Answer:
        timetable = None

    with pytest.raises(InvalidInput, match=r"not a Answer; give its \.timetable"):
        violations(two_ranks(), Answer())
    with pytest.raises(InvalidInput, match=r"not a list$"):
        check(two_ranks(), [])


def test_a_timetable_is_judged_against_what_was_asked_not_against_what_it_carries():
    carried = timetable(two_ranks(1), *ALONE)
    assert set(codes(two_ranks(2), carried)) == {"missing"}


def test_hostile_times_and_rows_are_judged_like_any_others():
    huge = 10**5000
    rows = (
        (TimedOp(op("F0@0"), huge, 2 * huge), TimedOp(Op(Kind.BACKWARD, huge, None), huge, 0)),
        (TimedOp(op("BW0@1"), 0, huge), TimedOp(op("F0@1"), -huge, 0)),
        (),
    )
    found = violations(two_ranks(1), Timetable(problem=two_ranks(1), rows=rows), claimed_ns=huge)
    assert {"rows", "unknown", "missing", "precedence", "time", "duration", "row_order"} <= {v.code for v in found}
    assert all(len(v.message) < 500 for v in found)


def test_a_long_circle_is_told_by_its_ends():
    # down all ranks goes F1; the last rank cannot take it before F0 of the stage that follows on rank 0
    ranks = 40
    problem = two_ranks(placement=Placement.custom([*range(ranks), 0]))
    rows = [f"F0@{s} F1@{s} BW0@{s} BW1@{s}" for s in range(ranks)]
    rows[0] = f"F0@0 F0@{ranks} F1@0 F1@{ranks} BW0@{ranks} BW1@{ranks} BW0@0 BW1@0"
    rows[-1] = f"F1@{ranks - 1} F0@{ranks - 1} BW0@{ranks - 1} BW1@{ranks - 1}"
    (found,) = violations(problem, order(*rows))
    assert found.message.count(" waits for ") == 13
    assert "; ... (28 more ranks) ...; rank 6, at F1 of stage 6," in found.message
    assert found.message.endswith("; so rank 0 waits for itself")
    assert len(found.ops) == 42


def test_the_judge_shares_nothing_with_what_it_judges():
    folder = Path(__file__).parents[1] / "zbsolve" / "check"
    used = {
        node.module.split(".")[1]
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module.startswith("zbsolve.")
    }
    assert used == {"check", "errors", "ops", "problem", "profile", "timetable", "trace"}
