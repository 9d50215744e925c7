"""torch's own parser, validation and lowering accept every CSV that is written."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.pipelining.schedules import (
    _ComputationType,
    _PipelineScheduleRuntime,
    _simulate_comms_compute,
)

from tests.strategies import placements, problems, random_order
from zbsolve.catalog import baseline
from zbsolve.errors import FileFormatError, OrderError, ProblemError
from zbsolve.interop.torch import merged, numbered_by_loss, torch_rows, write_torch_csv
from zbsolve.metrics import metrics
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Profile
from zbsolve.simulate import simulate
from zbsolve.timetable import Order, TimedOp, Timetable

F, B, W, BW = Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT, Kind.BACKWARD


def one_route(placement: Placement) -> bool:
    return len(placement.routes) == 1


def uniform(placement: Placement, microbatches: int, **costs: int) -> Problem:
    costs = {"forward_ns": 1000, "backward_input_ns": 1000, "backward_weight_ns": 1000, "latency_ns": 10} | costs
    return Problem(profile=Profile.uniform(placement.stages, **costs), placement=placement, microbatches=microbatches)


def torch_loads(csv, problem: Problem) -> _PipelineScheduleRuntime:
    """Load a CSV as rank 0 of torch's runtime would; the constructor asks its stages for these numbers only."""
    placement = problem.placement
    stages = [
        SimpleNamespace(stage_index=s, num_stages=placement.stages, group_size=placement.ranks, group_rank=0)
        for s in placement.stages_of(0)
    ]
    schedule = _PipelineScheduleRuntime(stages, n_microbatches=problem.microbatches)
    schedule._load_csv(str(csv), format="compute_only")
    return schedule


def torch_simulates(schedule: _PipelineScheduleRuntime) -> None:
    """torch's dry run of the lowered actions, which knows computation, sends and receives only."""
    other = {_ComputationType.UNSHARD, _ComputationType.RESHARD, _ComputationType.REDUCE_GRAD}
    lowered = schedule.pipeline_order_with_comms
    actions = {rank: [a for a in row if a.computation_type not in other] for rank, row in lowered.items()}
    _simulate_comms_compute(actions, lambda s: schedule.stage_index_to_group_rank[s], schedule._num_stages)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    problem=problems(placement=placements().filter(one_route)),
    seed=st.integers(0, 2**32),
    fused=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_torch_accepts_every_csv(tmp_path, problem, seed, fused):
    order = random_order(problem, seed, fused=fused)
    timetable = simulate(problem, order)
    csv, _ = write_torch_csv(timetable, tmp_path / "x.csv")
    schedule = torch_loads(csv, problem)
    assert schedule.stage_index_to_group_rank == dict(enumerate(problem.placement.routes[0]))
    rows = [[str(action) for action in schedule.pipeline_order[rank]] for rank in range(problem.placement.ranks)]
    assert rows == torch_rows(numbered_by_loss(problem, merged(timetable))[0])
    torch_simulates(schedule)


def test_losses_meet_their_microbatches(tmp_path):
    """torch gives the n-th loss to microbatch n, so the last stage's forwards must come in that order."""
    problem = uniform(Placement.linear(1), 3)
    row = [Op(F, 0, 2), Op(F, 0, 0), Op(BW, 0, 2), Op(F, 0, 1), Op(BW, 0, 0), Op(BW, 0, 1)]
    csv, beside = write_torch_csv(simulate(problem, Order((tuple(row),))), tmp_path / "x.csv")
    assert csv.read_bytes() == b"0F0,0F1,0B0,0F2,0B1,0B2\n"
    assert json.loads(beside.read_bytes())["microbatch_in_timetable"] == [2, 0, 1]


@pytest.mark.parametrize(
    "placement",
    [
        Placement.linear(1),
        Placement.linear(4),
        Placement.looped(2, 3),
        Placement.v(4),
        Placement.wave(2, 4),
        Placement.custom([0, 1, 1, 0, 2]),
        Placement.custom([2, 0, 1]),
    ],
    ids=lambda placement: f"{placement.name}{placement.routes[0]}",
)
def test_torch_accepts_every_placement(tmp_path, placement):
    problem = uniform(placement, 6)
    csv, _ = write_torch_csv(simulate(problem, random_order(problem, 1)), tmp_path / "x.csv")
    torch_simulates(torch_loads(csv, problem))


def test_the_csv_of_two_ranks_reads_like_this(tmp_path):
    problem = uniform(Placement.linear(2), 2)
    first = [Op(F, 0, 0), Op(F, 0, 1), Op(B, 0, 0), Op(B, 0, 1), Op(W, 0, 0), Op(W, 0, 1)]
    second = [Op(F, 1, 0), Op(BW, 1, 0), Op(F, 1, 1), Op(B, 1, 1), Op(W, 1, 1)]  # rank 0 waits for the last B
    csv, beside = write_torch_csv(simulate(problem, Order((tuple(first), tuple(second)))), tmp_path / "zb.csv")
    assert csv.read_bytes() == b"0F0,0F1,0I0,0I1,0W0,0W1\n1F0,1B0,1F1,1I1,1W1\n"
    assert beside == tmp_path / "zb.csv.json"
    assert json.loads(beside.read_bytes()) == {
        "format": "zbsolve.torch-csv/1",
        "csv": "zb.csv",
        "csv_format": "compute_only",
        "ranks": 2,
        "stages": 2,
        "microbatches": 2,
        "placement": {"name": "linear", "routes": [[0, 1]]},
        "stages_of_rank": [[0], [1]],
        "objective": "period",
        "planned_period_ns": 9020,
        "planned_makespan_ns": 9020,
        "merged_backwards": 0,
        "emitted_period_ns": 9020,
        "emitted_makespan_ns": 9020,
        "microbatch_in_timetable": [0, 1],
        "digest": problem.digest,
        "torch": {
            "class": "torch.distributed.pipelining.schedules._PipelineScheduleRuntime",
            "construct": "_PipelineScheduleRuntime(stages, n_microbatches=2, loss_fn=loss_fn)",
            "load": 'schedule._load_csv("zb.csv", format="compute_only")',
            "stages": "the PipelineStage objects of this rank, ascending by stage_index, see stages_of_rank",
        },
    }


def test_b_and_w_are_merged_where_nobody_waits_for_the_gradient():
    problem = uniform(Placement.linear(2), 2)
    first = [Op(F, 0, 0), Op(F, 0, 1), Op(B, 0, 0), Op(W, 0, 0), Op(B, 0, 1), Op(W, 0, 1)]  # nobody waits for stage 0
    second = [Op(F, 1, 0), Op(B, 1, 0), Op(W, 1, 0), Op(F, 1, 1), Op(B, 1, 1), Op(W, 1, 1)]
    timetable = simulate(problem, Order((tuple(first), tuple(second))))
    assert torch_rows(merged(timetable)) == [
        ["0F0", "0F1", "0B0", "0B1"],
        ["1F0", "1I0", "1W0", "1F1", "1I1", "1W1"],
    ]


def test_only_neighbours_of_one_stage_and_microbatch_are_merged():
    problem = uniform(Placement.linear(1), 3)
    row = [Op(F, 0, 0), Op(F, 0, 1), Op(F, 0, 2), Op(BW, 0, 0), Op(B, 0, 1), Op(B, 0, 2), Op(W, 0, 2), Op(W, 0, 1)]
    timetable = simulate(problem, Order((tuple(row),)))
    assert torch_rows(timetable.order) == [["0F0", "0F1", "0F2", "0B0", "0I1", "0I2", "0W2", "0W1"]]
    assert torch_rows(merged(timetable)) == [["0F0", "0F1", "0F2", "0B0", "0I1", "0B2", "0W1"]]


def test_a_backward_that_is_dearer_than_its_parts_is_not_merged():
    problem = uniform(Placement.linear(1), 1, backward_ns=2001)
    timetable = simulate(problem, Order(((Op(F, 0, 0), Op(B, 0, 0), Op(W, 0, 0)),)))
    assert torch_rows(merged(timetable)) == [["0F0", "0I0", "0W0"]]


@settings(max_examples=60, deadline=None)
@given(problem=problems(placement=placements().filter(one_route)), seed=st.integers(0, 2**32))
def test_merging_is_never_slower_than_planned_and_needs_no_more_memory(problem, seed):
    timetable = simulate(problem, random_order(problem, seed))
    planned, emitted = metrics(timetable), metrics(simulate(problem, merged(timetable)))
    if problem.objective == "period":
        assert emitted.period_ns <= planned.period_ns
    assert emitted.makespan_ns <= timetable.makespan_ns
    assert all(a <= b for a, b in zip(emitted.peak_bytes, planned.peak_bytes, strict=True))


def test_the_figures_beside_the_csv(tmp_path):
    for seed in range(5):
        problem = uniform(Placement.v(3), 4, backward_weight_ns=700 + seed)
        timetable = simulate(problem, random_order(problem, seed))
        _, beside = write_torch_csv(timetable, tmp_path / "x.csv")
        about = json.loads(beside.read_bytes())
        emitted = merged(timetable)
        figures = metrics(simulate(problem, emitted))
        assert about["planned_period_ns"] == metrics(timetable).period_ns
        assert (about["emitted_period_ns"], about["emitted_makespan_ns"]) == (figures.period_ns, figures.makespan_ns)
        assert about["merged_backwards"] == sum(map(len, timetable.rows)) - sum(map(len, emitted.rows))


def test_the_same_bytes_again(tmp_path):
    problem = uniform(Placement.looped(2, 2), 3)
    timetable = simulate(problem, random_order(problem, 3))
    first = [path.read_bytes() for path in write_torch_csv(timetable, tmp_path / "x.csv")]
    assert [path.read_bytes() for path in write_torch_csv(timetable, str(tmp_path / "x.csv"))] == first


def test_replicas_are_refused_with_the_reason(tmp_path):
    problem = uniform(Placement.bidirectional(4), 4)
    with pytest.raises(ProblemError, match=r"each stage on one rank, but stage 0 lies on ranks 0, 3 \(bidirectional"):
        write_torch_csv(simulate(problem, random_order(problem, 0)), tmp_path / "x.csv")
    assert list(tmp_path.iterdir()) == []


def test_orders_that_torch_would_hang_on_or_misread_are_refused(tmp_path):
    problem = uniform(Placement.linear(2), 2)
    rows = [list(row) for row in simulate(problem, random_order(problem, 0)).rows]
    rng = random.Random(0)
    for damage in ("drop", "repeat", "move", "reverse"):
        broken = [list(row) for row in rows]
        at = rng.randrange(len(broken[0]))
        if damage == "drop":
            del broken[0][at]
        elif damage == "repeat":
            broken[0].append(broken[0][at])
        elif damage == "move":
            broken[1].append(broken[0].pop(at))
        else:
            broken[0].reverse()
        with pytest.raises(OrderError):
            write_torch_csv(Timetable(problem=problem, rows=tuple(map(tuple, broken))), tmp_path / "x.csv")
    stray = [[*rows[0], TimedOp(Op(F, 9, 0), 0, 1)], rows[1]]
    with pytest.raises(OrderError, match="F0 of stage 9"):
        write_torch_csv(Timetable(problem=problem, rows=tuple(map(tuple, stray))), tmp_path / "x.csv")
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_cannot_be_written(tmp_path):
    problem = uniform(Placement.linear(2), 2)
    timetable = simulate(problem, random_order(problem, 0))
    (tmp_path / "x.csv.json").mkdir()
    for target in (tmp_path, "", "/", tmp_path / "x.csv"):
        with pytest.raises(FileFormatError, match="is a directory"):
            write_torch_csv(timetable, target)
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv.json"]


def test_every_field_beside_the_csv_is_explained(tmp_path):
    problem = uniform(Placement.linear(2), 2)
    _, beside = write_torch_csv(simulate(problem, baseline("zb-h1", problem)), tmp_path / "x.csv")
    told = (Path(__file__).parents[1] / "docs" / "files.md").read_text(encoding="utf-8").split("## `x.csv`")[1]
    assert [field for field in json.loads(beside.read_text()) if f"`{field}`" not in told] == []
