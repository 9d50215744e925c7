"""Run an emitted schedule in the zero-bubble code: ``zbsolve emit best.json --to zero-bubble -o best.zb.json``.

In ``megatron/core/pipeline_parallel/zerobubble/runtime.py``, where a scheduler is asked for its order, ask this::

    schedule = nodes("best.zb.json")

It places the messages, and the validation of the optimizer, by the planned times.
"""

from __future__ import annotations

import json

from megatron.core.pipeline_parallel.zerobubble.scheduler.communication import run_communication_passes
from megatron.core.pipeline_parallel.zerobubble.scheduler.graph import FuncType, GraphConfig, ScheduledNode


def nodes(path: str) -> list[list[ScheduledNode]]:
    """The nodes of each rank, with messages."""
    with open(path, encoding="utf-8") as file:
        told = json.load(file)
    assert told["format"] == "zbsolve.zero-bubble/1", told["format"]
    config = GraphConfig(mem_f=[], mem_b=[], mem_w=[], **told["config"])
    order = [[ScheduledNode(**{**node, "type": FuncType(node["type"])}) for node in row] for row in told["nodes"]]
    return run_communication_passes(config, order, None, None, None, None)
