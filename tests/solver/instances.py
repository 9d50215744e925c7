"""The shared instances, and small problems the solver's tests use."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import strategies as st

from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Link, Profile, StageCost

_FILE = Path(__file__).parents[2] / "benchmarks" / "instances" / "schedule_instances.json"

INSTANCES = {found["name"]: found for found in json.loads(_FILE.read_text(encoding="utf-8"))["instances"]}
"""The shared file's content, by name."""


def instance(name: str, memory_limit=None, **changes) -> Problem:
    """An instance of the shared file at a memory limit."""
    found = INSTANCES[name]
    given = {
        "profile": Profile(
            stages=tuple(StageCost(**stage) for stage in found["profile"]["stages"]),
            link=Link(**found["profile"]["link"]),
        ),
        "placement": Placement.linear(found["ranks"]),
        "microbatches": found["microbatches"],
        "memory_limit": memory_limit,
    }
    return Problem(**{**given, **changes})


def one_chunk() -> st.SearchStrategy[Placement]:
    """One stage a rank, the ranks in any order."""
    return st.integers(1, 4).flatmap(
        lambda ranks: st.permutations(range(ranks)).map(lambda r: Placement.custom(list(r)))
    )


def unequal(microbatches: int = 6, memory_limit="1x", scale: int = 1, **changes) -> Problem:
    """Three unequal stages, small enough to solve in no time and large enough to need a search."""
    stages = tuple(
        StageCost(
            forward_ns=f * scale,
            backward_input_ns=b * scale,
            backward_weight_ns=w * scale,
            activation_bytes=4,
            backward_weight_bytes=2,
        )
        for f, b, w in ((10, 12, 7), (14, 15, 9), (11, 10, 12))
    )
    return Problem(
        **{
            "profile": Profile(stages=stages, link=Link(latency_ns=2 * scale)),
            "placement": Placement.linear(3),
            "microbatches": microbatches,
            "memory_limit": memory_limit,
            **changes,
        }
    )
