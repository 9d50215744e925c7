"""Run an emitted schedule in AMD's Primus: ``zbsolve emit best.json --to primus -o best.primus.json``.

In the script that starts Primus, before training::

    from primus.backends.megatron.core.pipeline_parallel.primuspipe import pipeline_launcher
    made = schedule("best.primus.json")
    pipeline_launcher.produce_schedule_instance = lambda *_, **__: made

with ``pp_algorithm`` "zero-bubble" for one chunk a rank, "1f1b-interleaved" for looped ones, or "zbv-formatted" for a
V, so that Primus builds these stages.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

from primus.core.pipeline_parallel.scheduler.scheduler_node import FuncType, SchedulerNode


def schedule(path: str) -> SimpleNamespace:
    """What Primus asks of a schedule: its table, and the rank of the last stage."""
    with open(path, encoding="utf-8") as file:
        told = json.load(file)
    assert told["format"] == "zbsolve.primus/1", told["format"]
    table = [[SchedulerNode(FuncType[kind], *rest) for kind, *rest in row] for row in told["tables"]]
    return SimpleNamespace(
        schedule_table=table,
        generate_schedule_table=lambda: table,
        last_pp_stage_rank=lambda: told["last_pp_stage_rank"],
        print_schedule_table=lambda *_, **__: None,
    )
