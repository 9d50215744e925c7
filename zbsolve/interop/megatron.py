"""Megatron-LM's ``--pipeline-model-parallel-layout``: which layers each stage of a looped placement holds.

::

    Ettt|tttt|tttt|ttL      stages in order: E the embedding, t a transformer layer, L the loss

Megatron runs these stages by its own schedule (1F1B, interleaved with several chunks); it takes no order.

Source: https://github.com/NVIDIA/Megatron-LM, ``megatron/core/transformer/pipeline_parallel_layer_layout.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from zbsolve.errors import ProblemError
from zbsolve.interop.layers import layers_by_stage
from zbsolve.interop.node_tables import layout_of
from zbsolve.interop.refuse import refuse_replicas, refuse_slices
from zbsolve.problem import Problem

__all__ = ["megatron_layout"]

_SPELLED_OUT = 8
"""Longer runs of layers are written ``t*n``."""


def megatron_layout(problem: Problem, layers: Sequence[int]) -> str:
    """The layout of a problem's stages.

    Parameters
    ----------
    problem
        Its placement has to be linear or looped.
    layers
        How many transformer layers each stage holds.

    Raises
    ------
    ProblemError
        If Megatron cannot build the placement.
    InvalidInput
        If `layers` do not fit.
    """
    refuse_slices(problem, "Megatron-LM")
    refuse_replicas(problem, "Megatron-LM")
    placement = problem.placement
    if layout_of(placement) != "looped":
        raise ProblemError(
            f"Megatron-LM lays stage s on rank s modulo the ranks, which the {placement.name} placement does not; "
            "choose linear or looped"
        )
    held = map(len, layers_by_stage(layers, placement.stages))
    stages = ["t" * count if count <= _SPELLED_OUT else f"t*{count}" for count in held]
    stages[0] = "E" + stages[0]
    stages[-1] += "L"
    return "|".join(stages)
