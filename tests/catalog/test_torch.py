"""Cell by cell against the orders that torch.distributed.pipelining makes of itself."""

import pytest

from tests.catalog.helpers import uniform
from zbsolve.catalog import baseline
from zbsolve.interop.torch import torch_rows
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Profile

schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

LETTERS = {"FORWARD": "F", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W", "FULL_BACKWARD": "B"}


class Stage:
    """As much of a pipeline stage as a schedule looks at while it makes its order."""

    def __init__(self, ranks, stages, index):
        self.group_size, self.group_rank = ranks, 0
        self.num_stages, self.stage_index = stages, index


class Runtime:
    """Stands in for torch's runtime: an order needs no process group and no communication."""

    def __init__(self, stages, n_microbatches, **_):
        self._stages, self._n_microbatches = stages, n_microbatches
        self.pp_group_size, self.rank = stages[0].group_size, 0
        self.num_stages = self._num_stages = stages[0].num_stages

    def _prepare_schedule_with_comms(self, *_, **__):
        pass


def pipeline_order(name, ranks, chunks, microbatches):
    stages = [Stage(ranks, ranks * chunks, k * ranks) for k in range(chunks)]
    return getattr(schedules, name)(stages, microbatches).pipeline_order


@pytest.fixture
def cells_of(order_of):
    """Rows of cells as torch writes them."""

    def cells(*asked):
        made = pipeline_order(*asked)
        return [[str(action) for action in made[rank] if action is not None] for rank in range(asked[1])]

    return cells


@pytest.fixture
def order_of(monkeypatch):
    """Rows of cells that a class of torch's makes; two paired operations count as the one after the other."""
    runtime = schedules._PipelineScheduleRuntime
    monkeypatch.setattr(runtime, "__init__", Runtime.__init__)
    monkeypatch.setattr(runtime, "_prepare_schedule_with_comms", Runtime._prepare_schedule_with_comms)
    monkeypatch.setattr(schedules, "_check_torch_compile_compatibility", lambda *_: None)

    def order(name, ranks, chunks, microbatches):
        made = pipeline_order(name, ranks, chunks, microbatches)
        return [
            [
                f"{single.stage_index}{LETTERS[single.computation_type.name]}{single.microbatch_index}"
                for action in made[rank]
                if action is not None
                for single in (action.sub_actions or (action,))
            ]
            for rank in range(ranks)
        ]

    return order


LOOPED = [(p, v, m) for p in range(1, 7) for v in (2, 3, 4) for m in range(1, 15)]


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("torch-looped-bfs", "ScheduleLoopedBFS"),
        ("interleaved-1f1b-grouped", "ScheduleInterleaved1F1B"),
        ("interleaved-zb", "ScheduleInterleavedZeroBubble"),
    ],
)
def test_looped_placements(order_of, name, theirs):
    compared = 0
    for ranks, chunks, microbatches in LOOPED:
        try:
            expected = order_of(theirs, ranks, chunks, microbatches)
        except ValueError:
            continue  # torch takes only numbers of microbatches that its rounds divide
        problem = uniform(Placement.looped(ranks, chunks), microbatches)
        assert torch_rows(baseline(name, problem)) == expected, (ranks, chunks, microbatches)
        compared += 1
    assert compared > 150


def test_interleaved_1f1b_where_the_ranks_divide_the_microbatches(order_of):
    for ranks, chunks, microbatches in LOOPED:
        if microbatches % ranks == 0:
            problem = uniform(Placement.looped(ranks, chunks), microbatches)
            expected = order_of("ScheduleInterleaved1F1B", ranks, chunks, microbatches)
            assert torch_rows(baseline("interleaved-1f1b", problem)) == expected
            assert baseline("interleaved-1f1b", problem) == baseline("interleaved-1f1b-grouped", problem)


def test_looped_bfs_differs_in_the_turn_of_backwards_only(order_of):
    problem = uniform(Placement.looped(3, 2), 4)
    for mine, theirs in zip(
        torch_rows(baseline("looped-bfs", problem)), order_of("ScheduleLoopedBFS", 3, 2, 4), strict=True
    ):
        assert sorted(mine) == sorted(theirs)
        assert [cell for cell in mine if "F" in cell] == [cell for cell in theirs if "F" in cell]


def test_zb_v(order_of):
    for ranks in range(1, 8):
        for microbatches in range(1, 3 * ranks + 4):
            problem = uniform(Placement.v(ranks), microbatches)
            expected = order_of("ScheduleZBVZeroBubble", ranks, 2, microbatches)
            assert torch_rows(baseline("torch-zb-v", problem)) == expected


def test_dualpipe_v_with_pairs(order_of, cells_of):
    """Paired operations as torch writes them, cell by cell; torch's own parser reads ours."""
    paired = 0
    for ranks in range(1, 7):
        for microbatches in range(2 * ranks, 2 * ranks + 5):
            where = Placement.v(ranks)
            profile = Profile.uniform(
                where.stages, forward_ns=1, backward_input_ns=1, backward_weight_ns=1, overlap_ns=2
            )
            allow = frozenset({"split", "fused", "paired"})
            problem = Problem(profile=profile, placement=where, microbatches=microbatches, allow=allow)
            rows = torch_rows(baseline("dualpipe-v", problem))
            assert rows == cells_of("ScheduleDualPipeV", ranks, 2, microbatches)
            paired += sum(cell.startswith("(") for row in rows for cell in row)
            for row in rows:
                assert [str(schedules._Action.from_str(cell)) for cell in row] == row
    assert paired > 300


def test_dualpipe_v(order_of):
    for ranks in range(1, 8):
        for microbatches in range(2 * ranks, 2 * ranks + 7):
            problem = uniform(Placement.v(ranks), microbatches)
            expected = order_of("ScheduleDualPipeV", ranks, 2, microbatches)
            assert torch_rows(baseline("dualpipe-v", problem)) == expected
