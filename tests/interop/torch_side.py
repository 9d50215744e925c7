"""torch's end of the tests: its schedules, its parser, its dry run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from torch.distributed.pipelining.schedules import (
    _ComputationType,
    _PipelineScheduleRuntime,
    _simulate_comms_compute,
    get_schedule_class,
)

from zbsolve.problem import Problem

OF_WEIGHTS = {_ComputationType.UNSHARD, _ComputationType.RESHARD, _ComputationType.REDUCE_GRAD}

IR_SCHEDULES = ("LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
"""torch's own schedules that are written in its actions."""


def stages_of_rank_0(of: list[int], stages: int, ranks: int) -> list[SimpleNamespace]:
    """What a schedule asks of its stages before it runs."""
    return [SimpleNamespace(stage_index=s, num_stages=stages, group_size=ranks, group_rank=0, submod=None) for s in of]


def torchs_own(name: str, ranks: int, microbatches: int, **options: object) -> _PipelineScheduleRuntime:
    """One of torch's schedules with two stages a rank."""
    mine = [0, 2 * ranks - 1] if name in ("ZBVZeroBubble", "DualPipeV") else [0, ranks]
    stages = stages_of_rank_0(mine, 2 * ranks, ranks)
    return get_schedule_class(name)(stages, n_microbatches=microbatches, loss_fn=lambda o, t: o, **options)


def loaded(csv: Path, problem: Problem, csv_format: str) -> _PipelineScheduleRuntime:
    """Load a CSV as rank 0 of torch's runtime would."""
    placement = problem.placement
    stages = stages_of_rank_0(list(placement.stages_of(0)), placement.stages, placement.ranks)
    schedule = _PipelineScheduleRuntime(stages, n_microbatches=problem.microbatches)
    schedule._load_csv(str(csv), format=csv_format)
    return schedule


def dry_run(schedule: _PipelineScheduleRuntime) -> None:
    """torch's simulation of the actions, which knows computation, sends and receives only."""
    lowered = schedule.pipeline_order_with_comms
    actions = {rank: [a for a in row if a.computation_type not in OF_WEIGHTS] for rank, row in lowered.items()}
    _simulate_comms_compute(actions, lambda s: schedule.stage_index_to_group_rank[s], schedule._num_stages)
