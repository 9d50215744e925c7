"""Classes of operations that may change places for nothing."""

from __future__ import annotations

import numpy as np

from zbsolve.opgraph.kinds import AGAIN, BW, KINDS, OFFLOAD, Int8, Int32
from zbsolve.opgraph.pairs import Beside
from zbsolve.problem import Problem


def twins_of(problem: Problem, kind: Int8, stage: Int32, microbatch: Int32, rank: Int32, beside: Beside) -> Int32:
    """Microbatches alike in route, costs and what is fused, computed again or moved share classes of operations.

    Of sequences in slices whole ones are alike, and share a class for each place in them: giving every class
    out in turn keeps the slices of a sequence one behind the other only if all its places change together.
    What ends the iteration has no twin, and neither has a sequence of which something runs together with another's.
    """
    lonely = set(beside.microbatch.tolist()) | set(microbatch[beside.node].tolist())
    form = np.zeros((3, problem.microbatches, problem.placement.stages), dtype=bool)
    for chosen, code in zip(form, (BW, AGAIN, OFFLOAD), strict=True):
        chosen[microbatch[kind == code], stage[kind == code]] = True
    signature: dict[tuple[object, ...], int] = {}
    alike = np.zeros(problem.microbatches, dtype=np.int64)
    for first in range(0, problem.microbatches, problem.slices):
        run = slice(first, first + problem.slices)
        costs = tuple(problem.cost(s, j) for j in range(run.start, run.stop) for s in range(problem.placement.stages))
        route = (problem.route_of or ())[first]
        own = first if lonely & set(range(run.start, run.stop)) else -1
        number = signature.setdefault((route, costs, form[:, run].tobytes(), own), len(signature))
        alike[run] = number * problem.slices + np.arange(problem.slices)
    stages = problem.placement.stages
    key = (alike[microbatch] * len(KINDS) + kind) * stages + stage
    once = microbatch < 0
    key[once] = ((problem.microbatches + rank[once].astype(np.int64)) * len(KINDS) + kind[once]) * stages + stage[once]
    classes: Int32 = np.unique(key, return_inverse=True)[1].astype(np.int32)
    return classes
