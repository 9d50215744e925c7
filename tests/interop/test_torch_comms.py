"""compute_comms CSVs: accepted by torch's parser and dry run, in an order that no transport can hang on."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from tests.interop.torch_side import OF_WEIGHTS, dry_run, loaded
from tests.strategies import random_order
from zbsolve.catalog import baseline
from zbsolve.errors import OrderError, ProblemError
from zbsolve.interop.torch import comms_rows, parse_torch_csv, torch_csv_bytes, write_torch_csv
from zbsolve.interop.torch.cells import Cell, cells_of
from zbsolve.interop.torch.messages import circle, message_faults
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Link, Profile, StageCost
from zbsolve.simulate import simulate
from zbsolve.timetable import Order, TimedOp, Timetable

F, B, W, BW = Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT, Kind.BACKWARD


def some_timetable(seed: int) -> Timetable:
    """Any placement with one route, any costs (zero durations too), any order that can finish."""
    rng = random.Random(seed)
    ranks = rng.randint(1, 4)
    placement = rng.choice(
        [
            Placement.linear(ranks),
            Placement.looped(ranks, rng.randint(1, 4)),
            Placement.v(ranks),
            Placement.wave(ranks, 4),
            Placement.custom(
                [*rng.sample(range(ranks), ranks), *(rng.randrange(ranks) for _ in range(rng.randint(0, 4)))]
            ),
        ]
    )
    low = rng.choice([0, 0, 1, 1000])
    stages = tuple(
        StageCost(
            forward_ns=rng.randint(low, low + 3) + 1,
            backward_input_ns=rng.randint(low, low + 3),
            backward_weight_ns=rng.randint(low, low + 3),
            output_bytes=rng.randint(0, 5),
        )
        for _ in range(placement.stages)
    )
    profile = Profile(stages=stages, link=Link(latency_ns=rng.choice([0, 0, 1, 50])))
    objective = rng.choice(["period", "makespan"])
    problem = Problem(profile=profile, placement=placement, microbatches=rng.randint(1, 4), objective=objective)
    return simulate(problem, random_order(problem, seed, fused=rng.choice([0.0, 0.3, 1.0])))


@pytest.mark.parametrize("hundred", range(5))
def test_torch_accepts_both_csvs_of_500_random_timetables(tmp_path, hundred):
    csv = tmp_path / "x.csv"
    for seed in range(100 * hundred, 100 * hundred + 100):
        timetable = some_timetable(seed)
        problem = timetable.problem
        read = []
        lowered = []
        for csv_format in ("compute_only", "compute_comms"):
            content, about = torch_csv_bytes(timetable, "x.csv", csv_format=csv_format)
            assert json.loads(about)["csv_format"] == csv_format
            csv.write_bytes(content)
            schedule = loaded(csv, problem, csv_format)
            assert schedule.stage_index_to_group_rank == dict(enumerate(problem.placement.routes[0]))
            dry_run(schedule)
            lowered.append(schedule.pipeline_order_with_comms)
            found = parse_torch_csv(content, csv)
            assert found.notes == ()
            read.append((found.order, found.placement, found.microbatches))
        assert read[0] == read[1]
        torchs, ours = lowered
        for rank, row in torchs.items():
            mine = ours[rank]
            assert Counter(a for a in mine if a.computation_type not in OF_WEIGHTS) == Counter(
                a for a in row if a.computation_type not in OF_WEIGHTS
            )
            reduced = [a for a in row if a.computation_type.value == "REDUCE_GRAD"]
            assert sorted(a for a in mine if a.computation_type.value == "REDUCE_GRAD") == sorted(reduced)


def test_weights_are_gathered_ahead_of_their_use_three_at_a_time():
    problem = Problem(profile=uniform(10), placement=Placement.looped(2, 5), microbatches=3)
    for row in comms_rows(simulate(problem, random_order(problem, 4))):
        gathered: set[int] = set()
        for cell in row:
            if cell.action == "UNSHARD":
                assert cell.stage not in gathered
                gathered.add(cell.stage)
            elif cell.action == "RESHARD":
                gathered.remove(cell.stage)
            elif cell.kind is not None:
                assert cell.stage in gathered
            assert len(gathered) <= 3
        assert gathered == set()


def uniform(stages: int, **costs: int) -> Profile:
    return Profile.uniform(
        stages,
        **({"forward_ns": 1000, "backward_input_ns": 1000, "backward_weight_ns": 1000, "latency_ns": 10} | costs),
    )


def test_the_csv_of_two_ranks_reads_like_this(tmp_path):
    problem = Problem(profile=uniform(2), placement=Placement.linear(2), microbatches=2)
    first = [Op(F, 0, 0), Op(F, 0, 1), Op(B, 0, 0), Op(B, 0, 1), Op(W, 0, 0), Op(W, 0, 1)]
    second = [Op(F, 1, 0), Op(B, 1, 0), Op(F, 1, 1), Op(W, 1, 0), Op(BW, 1, 1)]
    csv, beside = write_torch_csv(
        simulate(problem, Order((tuple(first), tuple(second)))), tmp_path / "zb.csv", csv_format="compute_comms"
    )
    assert csv.read_text().splitlines() == [
        "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0I0,0RECV_B1,0I1,0W0,0W1,0REDUCE_GRAD,0RESHARD",
        "1RECV_F0,1RECV_F1,1UNSHARD,1F0,1I0,1SEND_B0,1F1,1W0,1B1,1SEND_B1,1REDUCE_GRAD,1RESHARD",
    ]
    assert 'format="compute_comms"' in json.loads(beside.read_bytes())["torch"]["load"]


def test_two_that_send_to_each_other_at_once_agree_who_is_first():
    """A queue of messages a rank: had each its own send first, both would wait for ever."""
    problem = Problem(profile=uniform(4, latency_ns=0), placement=Placement.looped(2, 2), microbatches=4)
    for name in ("interleaved-1f1b", "looped-bfs"):
        rows = [list(enumerate(row)) for row in comms_rows(simulate(problem, baseline(name, problem)))]
        assert circle(rows, problem.placement.routes[0]) is None


def test_microbatches_are_numbered_by_loss(tmp_path):
    problem = Problem(profile=uniform(1), placement=Placement.linear(1), microbatches=3)
    row = [Op(F, 0, 2), Op(F, 0, 0), Op(BW, 0, 2), Op(F, 0, 1), Op(BW, 0, 0), Op(BW, 0, 1)]
    csv, _ = write_torch_csv(simulate(problem, Order((tuple(row),))), tmp_path / "x.csv", csv_format="compute_comms")
    assert csv.read_text() == "0UNSHARD,0F0,0F1,0B0,0F2,0B1,0B2,0REDUCE_GRAD,0RESHARD\n"


def test_impossible_timetables_are_refused(tmp_path):
    problem = Problem(profile=uniform(2), placement=Placement.linear(2), microbatches=2)
    rows = simulate(problem, random_order(problem, 0)).rows
    backwards = tuple(tuple(TimedOp(t.op, 0, 0) for t in row)[::-1] for row in rows)
    with pytest.raises(OrderError):
        write_torch_csv(Timetable(problem=problem, rows=backwards), tmp_path / "x.csv", csv_format="compute_comms")
    both_ways = Problem(profile=uniform(4), placement=Placement.bidirectional(4), microbatches=4)
    with pytest.raises(ProblemError, match="each stage on one rank"):
        write_torch_csv(simulate(both_ways, random_order(both_ways, 0)), tmp_path / "x.csv", csv_format="compute_comms")
    assert list(tmp_path.iterdir()) == []


def located(*rows: str) -> list[list[tuple[int, Cell]]]:
    return [[(at, cell) for at, text in enumerate(row.split(",")) for cell in cells_of(text) or ()] for row in rows]


GOOD = ("0F0,0SEND_F0,0RECV_B0,0B0", "1RECV_F0,1F0,1B0,1SEND_B0")


@pytest.mark.parametrize(
    ("rows", "row", "place", "told"),
    [
        (("0F0,0RECV_B0,0B0", GOOD[1]), 1, 0, "1RECV_F0 waits for 0SEND_F0, which stands nowhere"),
        (("0F0,0SEND_F0,0B0,0RECV_B0", GOOD[1]), 0, 2, "0B0 runs before its 0RECV_B0"),
        ((GOOD[0], "1F0,1RECV_F0,1B0,1SEND_B0"), 1, 0, "1F0 runs before its 1RECV_F0"),
        ((GOOD[0], "1RECV_F0,1F0,1SEND_B0,1B0"), 1, 2, "1SEND_B0 sends what has not been computed yet"),
        (("0F0,0SEND_F0,0SEND_F0,0RECV_B0,0B0", GOOD[1]), 0, 2, "stands twice"),
        ((GOOD[0], "1RECV_F0,1F0,1B0,1SEND_B0,1SEND_F0"), 1, 4, "no stage at its other end"),
        ((GOOD[0] + ",0RECV_B1", GOOD[1]), 0, 4, "waits for 1SEND_B1"),
        ((GOOD[0] + ",0SEND_F1", GOOD[1]), 0, 4, "not been computed"),
    ],
)
def test_what_is_wrong_with_messages_is_told(rows, row, place, told):
    assert list(message_faults(located(*GOOD), (0, 1))) == []
    found = next(message_faults(located(*rows), (0, 1)))
    assert (found.row, found.place) == (row, place)
    assert told in found.message


def test_messages_in_another_order_at_their_other_end_are_told():
    rows = located("0F0,0F1,0SEND_F1,0SEND_F0", "1RECV_F0,1RECV_F1,1F0,1F1")
    found = next(message_faults(rows, (0, 1)))
    assert (found.row, found.place) == (1, 0)
    assert "1RECV_F0 would take what 0SEND_F1 sends" in found.message


def test_messages_within_a_rank_are_told():
    assert "which lie on one rank" in next(message_faults(located("0F0,0SEND_F0,1F0"), (0, 0))).message


def test_a_circle_of_queues_is_told():
    a_row = "0F0,0F1,0SEND_F0,0RECV_B9,0B9"
    other = "1F9,1B9,1SEND_B9,1RECV_F0,1F0"
    found = circle(located(a_row, other), (0, 1))
    assert found is not None
    assert (found.row, found.place) == (0, 2)
    assert circle(located(a_row, "1F9,1B9,1RECV_F0,1SEND_B9,1F0"), (0, 1)) is None
