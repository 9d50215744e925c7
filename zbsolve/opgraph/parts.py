"""Which node does each part of the work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zbsolve.errors import OrderError
from zbsolve.opgraph.away import refuse_half_moves
from zbsolve.opgraph.kinds import ABSENT, DONE_BY, OPTIMIZER, OPTIONAL, Int8, Int32
from zbsolve.opgraph.pairs import Beside
from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem


@dataclass(frozen=True, slots=True)
class Parts:
    """The node that does each part, shape (stages, microbatches); a fused backward does two, a pair those of both.

    Of a problem with forwards only the tables of the backward stay empty: -1 everywhere. So are those of
    what is computed again, or moved away, wherever nothing is.
    """

    forward: Int32
    backward_input: Int32
    backward_weight: Int32
    recompute: Int32
    offload: Int32
    release: Int32
    reload: Int32


def index_parts(problem: Problem, kind: Int8, stage: Int32, microbatch: Int32, beside: Beside) -> Parts:
    """The tables of parts, each part done exactly once, and computed again or moved away at most once."""
    shape = (problem.placement.stages, problem.microbatches)
    tables = []
    kind = np.where(microbatch < 0, OPTIMIZER, kind)  # not of a microbatch
    node = np.arange(len(kind), dtype=np.int32)
    if len(beside.node):
        node, kind = np.concatenate([node, beside.node]), np.concatenate([kind, beside.kind])
        stage, microbatch = np.concatenate([stage, beside.stage]), np.concatenate([microbatch, beside.microbatch])
    for part, codes in DONE_BY:
        doers = np.flatnonzero(np.isin(kind, codes))
        table = np.full(shape, ABSENT, dtype=np.int32)
        table[stage[doers], microbatch[doers]] = node[doers]
        done = np.zeros(shape, dtype=np.int64)
        np.add.at(done, (stage[doers], microbatch[doers]), 1)
        due = np.minimum(done, 1) if part in OPTIONAL else part is Kind.FORWARD or not problem.forward_only
        wrong = np.argwhere(done != due)
        if len(wrong):
            s, j = (int(v) for v in wrong[0])
            times = int(done[s, j])
            often = "at most" if part in OPTIONAL else "exactly"
            raise OrderError(f"{Op(part, s, j)} must be done {often} once, but is done {times or 'no'} times")
        tables.append(table)
    parts = Parts(*tables)
    refuse_half_moves(parts)
    return parts
