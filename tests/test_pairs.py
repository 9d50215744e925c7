"""Pairs: a forward and a backward of two microbatches that run together, from the profile to files."""

from __future__ import annotations

from dataclasses import replace

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import orders, problems
from zbsolve.check import check, peaks, violations
from zbsolve.errors import FileFormatError, OrderError, ProblemError, ProfileError
from zbsolve.files.profile import profile_bytes, read_profile, read_profile_bytes, write_profile
from zbsolve.files.schemas import schema
from zbsolve.files.text import json_bytes
from zbsolve.files.timetable import read_timetable_bytes, timetable_bytes
from zbsolve.lowering import lower, verify
from zbsolve.metrics import metrics
from zbsolve.opgraph import OpGraph
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Link, Overlap, Profile, StageCost
from zbsolve.simulate import simulate
from zbsolve.timetable import Order, TimedOp, Timetable

BOTH = frozenset({"split", "fused"})
PAIRED = BOTH | {"paired"}


def op(text: str) -> Op:
    """``F0@1`` is the forward of microbatch 0 on stage 1; ``F1@0+BW0@1`` a pair."""
    first, _, second = text.partition("+")
    kinds = {kind.letter: kind for kind in Kind}
    name, stage = first.split("@")
    letters = name.rstrip("0123456789")
    return Op(kinds[letters], int(stage), int(name[len(letters) :]), op(second) if second else None)


def order(*rows: str) -> Order:
    return Order(tuple(tuple(op(text) for text in row.split()) for row in rows))


def problem(placement: Placement | None = None, microbatches: int = 2, **changes: object) -> Problem:
    where = placement or Placement.v(1)
    cost = StageCost(
        forward_ns=4,
        backward_input_ns=5,
        backward_weight_ns=3,
        activation_bytes=10,
        backward_weight_bytes=6,
        workspace_bytes=1,
    )
    overlaps = (Overlap(forward_stage=0, backward_stage=1, forward_backward_overlap_ns=9),)
    asked: dict[str, object] = {"allow": PAIRED, **changes}
    return Problem(
        profile=Profile(stages=(cost,) * where.stages, overlaps=overlaps),
        placement=where,
        microbatches=microbatches,
        **asked,  # type: ignore[arg-type]
    )


GOOD = "F0@0 F0@1 F1@0+BW0@1 F1@1 BW0@0 BW1@1 BW1@0"


def codes(asked: Problem, x: Order | Timetable) -> set[str]:
    return {violation.code for violation in violations(asked, x)}


# ------------------------------------------------------------------------------------------ operations and profile


def test_a_pair_has_two_halves_and_the_parts_of_both():
    pair = op("F1@0+BW0@1")
    assert pair.halves == (op("F1@0"), op("BW0@1"))
    assert pair.parts == (op("F1@0"), op("B0@1"), op("W0@1"))
    assert op("F1@0").halves == (op("F1@0"),)
    assert str(pair) == "F1 of stage 0 with BW0 of stage 1"
    assert order("F1@0+BW0@1").apart() == order("F1@0 BW0@1")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"forward_backward_overlap_ns": 0}, "must be positive"),
        ({"forward_backward_overlap_ns": -1}, "forward_backward_overlap_ns"),
        ({"forward_backward_input_overlap_ns": 0}, "must be positive"),
        ({"forward_stage": 2}, "stage 2"),
        ({"backward_stage": True}, "backward_stage"),
        ({"forward_stage": 1, "backward_stage": 0}, "given twice"),
    ],
)
def test_overlaps_that_mean_nothing_are_refused(wrong, says):
    whole = {"forward_stage": 0, "backward_stage": 1, "forward_backward_overlap_ns": 5}
    known = Overlap(forward_stage=1, backward_stage=0, forward_backward_overlap_ns=5)
    stages = Profile.uniform(2, forward_ns=1, backward_input_ns=1, backward_weight_ns=1).stages
    with pytest.raises(ProfileError, match=says):
        Profile(stages=stages, overlaps=(known, Overlap(**(whole | wrong))))


def test_overlaps_are_scaled_by_the_rank_and_by_the_share_that_the_two_have():
    one = problem()
    pair = op("F1@0+BW0@1")
    assert one.overlap_ns(pair) == 9
    assert one.overlap_ns(op("F1@0+B0@1")) is None, "the input gradient alone was not measured"
    assert one.overlap_ns(op("F1@1+BW0@0")) is None
    assert problem(rank_factors=(2,)).overlap_ns(pair) == 18
    sized = problem(microbatch_factors=("2", "1"))
    assert sized.overlap_ns(pair) == (9 * (1 * 4 + 2 * 8) * 2 + 12) // 24, "9 of 12, at the sizes of both, half up"
    assert problem(microbatch_factors=("3", "3")).overlap_ns(pair) == 27


def test_the_fingerprint_of_old_problems_stays():
    bare = problem(allow=BOTH)
    none = replace(bare, profile=replace(bare.profile, overlaps=()))
    assert bare.digest == none.digest, "an overlap that may not be used decides nothing"
    assert none.digest != problem().digest != replace(problem(), profile=none.profile).digest


# ------------------------------------------------------------------------------------------- graph, judge, memory


def test_a_pair_takes_what_was_measured_and_is_done_at_its_end():
    asked = problem()
    timetable = simulate(asked, order(GOOD))
    check(asked, timetable, claimed_ns=timetable.period_ns)
    assert [(t.start_ns, t.end_ns) for t in timetable.rows[0][:4]] == [(0, 4), (4, 8), (8, 17), (17, 21)]
    graph = OpGraph.build(asked, order(GOOD).rows)
    assert graph.decode(graph.encode(order(GOOD))) == order(GOOD)
    assert graph.index(0, op("F1@0+BW0@1")) == 2
    with pytest.raises(OrderError, match="not an operation"):
        graph.index(0, op("F1@0"))
    with pytest.raises(OrderError, match="cannot run"):
        graph.encode(order(GOOD.replace("+", " ")))


def test_a_pair_that_was_not_measured_takes_what_one_after_the_other_takes():
    asked = problem()
    made = simulate(asked, order("F0@0 F0@1 F1@0+B0@1 W0@1 F1@1+BW0@0 BW1@1 BW1@0"))
    check(asked, made)
    assert made.rows[0][2].end_ns - made.rows[0][2].start_ns == 4 + 5
    assert made.rows[0][4].end_ns - made.rows[0][4].start_ns == 4 + 8


def test_a_pair_takes_at_its_start_what_both_take_and_frees_at_its_end_what_both_free():
    asked = problem()
    apart, together = order(GOOD).apart(), order(GOOD)
    assert peaks(asked, apart) == (31,), "three held and the workspace of one"
    assert peaks(asked, together) == (32,), "three held and the workspace of both"
    for x in (apart, together):
        assert metrics(simulate(asked, x)).peak_bytes == peaks(asked, x)
    assert codes(problem(memory_limit=31), together) == {"memory"}


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (GOOD.replace("F1@0+BW0@1", "BW0@1+F1@0"), "unknown"),
        (GOOD.replace("F1@0+BW0@1", "F1@0+F0@1"), "unknown"),
        ("F0@0 F0@1+BW0@1 F1@0 F1@1 BW0@0 BW1@1 BW1@0", "unknown"),
        (GOOD.replace("BW0@1", "BW0@7"), "unknown"),
        (GOOD.replace("F1@0+BW0@1", "F1@0+BW0@1+BW1@1"), "unknown"),
        (GOOD + " BW0@1", "duplicate"),
        ("F0@0 F1@0+BW0@1 F0@1 F1@1 BW0@0 BW1@1 BW1@0", "precedence"),
    ],
)
def test_the_judge_and_the_graph_refuse_strange_pairs(row, code):
    asked = problem()
    assert code in codes(asked, order(row))
    with pytest.raises(OrderError):
        simulate(asked, order(row))


def test_pairs_have_to_be_allowed():
    found = violations(problem(allow=BOTH), order(GOOD))
    assert [(v.code, "paired" in v.message) for v in found] == [("not_allowed", True)]
    split = problem(allow=frozenset({"split", "paired"}))
    assert codes(split, order(GOOD)) == {"not_allowed"}
    with pytest.raises(ProblemError, match="at least one of fused and split"):
        problem(allow=frozenset({"paired"}))


def test_pairs_and_queueing_links_are_not_asked_together():
    link = Link(bytes_per_second=10**9, queueing="link")
    profile = replace(problem(Placement.linear(2)).profile, link=link)
    with pytest.raises(ProblemError, match="have no turn"):
        Problem(profile=profile, placement=Placement.linear(2), microbatches=2, allow=PAIRED)


def test_both_halves_belong_on_the_rank():
    asked = problem(Placement.linear(2))
    x = order("F0@0 F1@0+BW0@1 BW0@0 BW1@0", "F0@1 F1@1 BW1@1")
    assert "misplaced" in codes(asked, x)
    with pytest.raises(OrderError, match="does not lie"):
        simulate(asked, x)


def test_the_judge_knows_how_long_a_pair_takes():
    asked = problem()
    timetable = simulate(asked, order(GOOD))
    row = list(timetable.rows[0])
    longer = [TimedOp(t.op, t.start_ns + (at > 2), t.end_ns + (at >= 2)) for at, t in enumerate(row)]
    assert codes(asked, Timetable(problem=asked, rows=(tuple(longer),))) == {"duration"}


def test_two_pairs_may_hand_each_other_two_tensors():
    where = Placement.bidirectional(2)
    cost = StageCost(forward_ns=2, backward_input_ns=2, backward_weight_ns=0, output_bytes=3)
    asked = Problem(
        profile=Profile(stages=(cost, replace(cost, output_bytes=5))),
        placement=where,
        microbatches=4,
        allow=PAIRED,
    )
    # microbatches 0, 2 go down, 1, 3 the other way
    x = order(
        "F0@0 F1@1 F2@0+BW1@1 BW0@0 F3@1 BW2@0 BW3@1",
        "F1@0 F0@1 BW0@1 F2@1+BW1@0 F3@0 BW2@1 BW3@0",
    )
    timetable = simulate(asked, x)
    check(asked, timetable)
    lowered = lower(timetable)
    verify(lowered)
    graph = OpGraph.build(asked, x.rows)
    tail, head = graph.index(0, op("F2@0+BW1@1")), graph.index(1, op("F2@1+BW1@0"))
    assert sorted(graph.arc_bytes[(graph.arc_tail == tail) & (graph.arc_head == head)].tolist()) == [3, 3]
    both = [(str(m.tail), str(m.head)) for m in lowered.messages if m.tail in op("F2@0+BW1@1").halves]
    assert both == [("F2 of stage 0", "F2 of stage 1"), ("BW1 of stage 1", "BW1 of stage 0")]
    assert graph.to_networkx().edges[graph.op(tail), graph.op(head)]["bytes"] == 6
    verify(lower(timetable, forward_only=True))


@settings(max_examples=60, deadline=None)
@given(problems(paired=True, variants=True), st.data())
def test_judge_and_simulation_agree_on_every_order_with_pairs(asked, data):
    x = data.draw(orders(asked))
    timetable = simulate(asked, x)
    check(asked, timetable)
    assert peaks(asked, x) == metrics(timetable).peak_bytes
    verify(lower(timetable))
    again, _ = read_timetable_bytes(timetable_bytes(timetable), "x"), None
    assert again == timetable


# ----------------------------------------------------------------------------------------------------------- files


def test_profiles_with_overlaps_go_to_files_and_back(tmp_path):
    stages = Profile.uniform(2, forward_ns=4, backward_input_ns=5, backward_weight_ns=3).stages
    overlaps = (
        Overlap(forward_stage=0, backward_stage=1, forward_backward_overlap_ns=9, forward_backward_input_overlap_ns=6),
        Overlap(forward_stage=1, backward_stage=1, forward_backward_overlap_ns=10),
    )
    profile = Profile(stages=stages, overlaps=overlaps)
    for name in ("x.json", "x.toml"):
        write_profile(tmp_path / name, profile)
        assert read_profile(tmp_path / name) == profile
    jsonschema.validate(__import__("json").loads(profile_bytes(profile)), schema("profile"))
    assert b"overlaps" not in profile_bytes(Profile(stages=stages))


@pytest.mark.parametrize(
    ("overlap", "where"),
    [
        ({"forward_stage": 0, "backward_stage": 9, "forward_backward_overlap_ns": 5}, "$"),
        ({"forward_stage": 0, "backward_stage": 0, "forward_backward_overlap_ns": 0}, "$.overlaps[0]"),
        ({"forward_stage": 0, "backward_stage": 0}, "$.overlaps[0]"),
        ({"forward_stage": 0, "backward_stage": 0, "forward_backward_overlap_ns": "5 GB"}, "$.overlaps[0]."),
    ],
)
def test_files_with_wrong_overlaps_say_where(overlap, where):
    stage = {"forward_ns": 4, "backward_input_ns": 5, "backward_weight_ns": 3}
    content = json_bytes({"format": "zbsolve.profile/1", "stages": [stage], "overlaps": [overlap]})
    with pytest.raises(FileFormatError) as refused:
        read_profile_bytes(content, "x.json")
    assert where in str(refused.value)


def test_a_pair_is_a_sixth_element_in_a_timetable_file():
    asked = problem()
    timetable = simulate(asked, order(GOOD))
    content = timetable_bytes(timetable)
    assert b'["forward", 0, 1, 8, 17, ["backward", 1, 0]]' in content
    jsonschema.validate(__import__("json").loads(content), schema("timetable"))
    assert read_timetable_bytes(content, "x") == timetable
    for damage, says in (
        (b'["backward", 1, 9]', "ranks[0][2][5][2]"),
        (b'["backward", 7, 0]', "ranks[0][2][5][1]"),
        (b'["forward", 1, 0]', "ranks[0][2][5]"),
        (b'["backward", 1, 0], 5', "ranks[0][2]"),
    ):
        with pytest.raises(FileFormatError) as refused:
            read_timetable_bytes(content.replace(b'["backward", 1, 0]', damage, 1), "x")
        assert says in str(refused.value)
    with pytest.raises(FileFormatError, match="only beside a forward"):
        read_timetable_bytes(content.replace(b'["forward", 0, 1, 8', b'["backward", 0, 1, 8'), "x")
