"""What every operation takes: time, and memory at its start and its end."""

from __future__ import annotations

import numpy as np

from zbsolve.errors import ProblemError
from zbsolve.opgraph.away import copies_ns
from zbsolve.opgraph.kinds import AGAIN, MICROBATCH_KINDS, OFFLOAD, REDUCE, RELEASE, RELOAD, Int8, Int32, Int64
from zbsolve.opgraph.pairs import Beside, with_pairs
from zbsolve.opgraph.parts import Parts
from zbsolve.problem import Problem
from zbsolve.units import MAX_AMOUNT


def effects(
    problem: Problem, parts: Parts, kind: Int8, stage: Int32, microbatch: Int32, rank: Int32, beside: Beside
) -> tuple[Int64, Int64, Int64]:
    """Duration and memory effect of every node: the one table of what each kind does.

    What ends the iteration holds no memory of its own: its buffers are static. A pair has the effects of both halves.
    """
    shape = (MICROBATCH_KINDS, problem.placement.stages, problem.microbatches)
    duration, start, end = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    for s in range(problem.placement.stages):
        for j in range(problem.microbatches):
            c = problem.cost(s, j)
            held, left, extra = c.activation_bytes, c.backward_weight_bytes, c.workspace_bytes
            if held + left + extra > MAX_AMOUNT:
                raise ProblemError(f"the bytes of stage {s} exceed 2^62; check the units of the profile")
            kept = c.checkpoint if parts.recompute[s, j] >= 0 else held
            duration[: AGAIN + 1, s, j] = (
                c.forward_ns, c.backward_input_ns, c.backward_weight_ns, c.backward_ns, c.recomputing_ns
            )  # fmt: skip
            start[: AGAIN + 1, s, j] = kept + extra, max(left - held, 0) + extra, extra, extra, held - kept + extra
            freed = held if problem.forward_only else 0
            end[: AGAIN + 1, s, j] = -freed - extra, min(left - held, 0) - extra, -left - extra, -held - extra, -extra
            if parts.offload[s, j] >= 0:
                duration[OFFLOAD, s, j], duration[RELOAD, s, j] = copies_ns(problem, s, j)
                start[RELOAD, s, j], end[RELEASE, s, j] = c.offloadable, -c.offloadable
    ends = np.flatnonzero(microbatch < 0).tolist()
    at = (np.where(microbatch < 0, 0, kind), stage, microbatch)
    of_node = duration[at], start[at], end[at]
    for node in ends:
        cost = problem.cost(int(stage[node]), None, rank=int(rank[node]))
        of_node[0][node] = cost.grad_reduce_ns if kind[node] == REDUCE else cost.optimizer_ns
        of_node[1][node] = of_node[2][node] = 0
    return with_pairs(problem, beside, stage, microbatch, of_node, (duration, start, end))
