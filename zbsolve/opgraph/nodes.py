"""Which operations a problem or an order has: kind, stage, microbatch and rank of every node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from zbsolve.errors import OrderError
from zbsolve.opgraph.kinds import BW, CODE, KINDS, MICROBATCH_KINDS, B, F, Int8, Int32, W
from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem


def routes_of(problem: Problem) -> Int32:
    """The rank of every stage for every microbatch, shape (stages, microbatches)."""
    routes = np.asarray(problem.placement.routes, dtype=np.int32)
    return np.ascontiguousarray(routes[np.asarray(problem.route_of, dtype=np.int64)].T)


def default_nodes(problem: Problem) -> tuple[Int8, Int32, Int32, Int32]:
    """Kind, stage, microbatch and rank of the operations that a problem has by default."""
    codes: tuple[int, ...] = (F, B, W) if "split" in problem.allow else (F, BW)
    if problem.forward_only:
        codes = (F,)
    shape = (len(codes), problem.placement.stages, problem.microbatches)
    kind, stage, microbatch = (axis.ravel() for axis in np.indices(shape, dtype=np.int32))
    rank = routes_of(problem)[stage, microbatch]
    kind = np.asarray(codes, dtype=np.int8)[kind]
    ends = [
        (CODE[k], s, -1, r)
        for k in (Kind.REDUCE_GRADIENT, Kind.OPTIMIZER)
        for s in range(problem.placement.stages)
        if problem.has(k, s)
        for r in problem.placement.holders(s)
    ]
    if not ends:
        return kind, stage, microbatch, rank
    more = np.asarray(ends, dtype=np.int32).T
    kind, stage, microbatch, rank = (
        np.concatenate([a, b]) for a, b in zip((kind, stage, microbatch, rank), more, strict=True)
    )
    return kind.astype(np.int8), stage, microbatch, rank


def given_nodes(problem: Problem, ops: Sequence[Iterable[Op]]) -> tuple[Int8, Int32, Int32, Int32]:
    """Kind, stage, microbatch and rank of the operations that stand in given rows."""
    if len(ops) != problem.placement.ranks:
        raise OrderError(f"there are {len(ops)} rows, the problem has {problem.placement.ranks} ranks")
    stages, microbatches = problem.placement.stages, problem.microbatches
    allowed = {Kind.FORWARD} if problem.forward_only else set(KINDS[:MICROBATCH_KINDS])
    table = []
    for rank, row in enumerate(ops):
        for op in row:
            number = op.microbatch
            if number is None:
                known = 0 <= op.stage < stages and problem.has(op.kind, op.stage)
                number = -1
            else:
                known = 0 <= op.stage < stages and 0 <= number < microbatches and op.kind in allowed
            if not known:
                raise OrderError(f"{op} in the row of rank {rank} is not an operation of this problem")
            table.append((CODE[op.kind], op.stage, number, rank))
    columns = np.asarray(table, dtype=np.int32).reshape(-1, 4).T
    kind, stage, microbatch, rank_column = (np.ascontiguousarray(c) for c in columns)
    astray = np.flatnonzero((routes_of(problem)[stage, microbatch] != rank_column) & (microbatch >= 0))
    if len(astray):
        code, s, j, rank = table[int(astray[0])]
        raise OrderError(f"{Op(KINDS[code], s, j)} stands in the row of rank {rank}, where that stage does not lie")
    _check_ends(problem, [row for row in table if row[2] < 0])
    return kind.astype(np.int8), stage, microbatch, rank_column


def _check_ends(problem: Problem, given: Sequence[tuple[int, int, int, int]]) -> None:
    """Refuse operations of the whole iteration that are missing, stand twice, or where their stage does not lie."""
    count = Counter((KINDS[code], stage, rank) for code, stage, _, rank in given)
    for stage in range(problem.placement.stages):
        for kind in (Kind.REDUCE_GRADIENT, Kind.OPTIMIZER):
            for rank in problem.placement.holders(stage) if problem.has(kind, stage) else ():
                times = count.pop((kind, stage, rank), 0)
                if times != 1:
                    raise OrderError(
                        f"{Op(kind, stage, None)} on rank {rank} must be done exactly once, "
                        f"but is done {times or 'no'} times"
                    )
    for kind, stage, rank in count:
        raise OrderError(f"{Op(kind, stage, None)} stands in the row of rank {rank}, where that stage does not lie")
