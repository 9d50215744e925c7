"""A problem's graph as flat columns, in which every backward may run split or fused.

One graph serves all choices of fused and split: its nodes are F, B and W of every stage and
microbatch. Where a backward runs fused, its B takes the time and the memory of both and its W
becomes a *ghost* of no duration and no bytes that may stand anywhere behind its B. So switching
between the two forms changes a few numbers and moves nothing.

Node ``(k * stages + s) * microbatches + j`` is F, B or W (k = 0, 1, 2) of stage s and microbatch j.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zbsolve.opgraph import OpGraph
from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.timetable import Order

__all__ = ["Row", "Table", "build_network", "nodes_of", "order_of", "sequence_of"]

Row = list[int]
"""For the plain path; the compiled one has arrays of int64 instead, and kernels cannot tell."""

Table = list[Row]
"""Rows of one length, each with what its name below says at its front."""

SHAPE = 0
"""The numbers of nodes N, ranks R, twin classes C and microbatches; 1 if each rank has one chunk and all microbatches
are alike."""

RANK, TWIN, MATE = range(1, 4)
"""By node; nodes of one twin class run in microbatch order; for B its W, for W its B, else -1."""

NET_DURATION, NET_START, NET_CHANGE = range(4, 7)
"""ns; bytes taken at the start; change of bytes from before the start to after the end. Two entries a node:
``2 i`` where the backward is split, ``2 i + 1`` where it is fused."""

NEED_PTR, NEED = range(7, 9)
"""The tails of all arcs into node i are ``need[need_ptr[i]:need_ptr[i + 1]]``."""

WAIT_PTR, WAIT_TAIL, WAIT_LAG = range(9, 12)
"""Those of them that can bind in time, from another rank or with a lag."""

OUT_PTR, OUT = range(12, 14)
"""Their heads, by tail."""

BASE, LIMIT = range(14, 16)
"""Bytes by rank."""

NEED_LAG = 16
"""Beside NEED."""

CLASS_PTR, MEMBER, PARTNER = range(17, 20)
"""The nodes of twin class c in microbatch order are ``member[class_ptr[c]:class_ptr[c + 1]]``; for a class of
forwards the class of their input gradients, else -1."""

OF_RANK_PTR, OF_RANK = range(20, 22)
"""The classes of each rank: input gradients first, then forwards, then weight gradients."""

_PART = {Kind.FORWARD: 0, Kind.BACKWARD_INPUT: 1, Kind.BACKWARD_WEIGHT: 2, Kind.BACKWARD: 1}


def build_network(problem: Problem) -> NDArray[np.int64]:
    """The network of a problem, in arrays."""
    split = OpGraph.build(dataclasses.replace(problem, allow=frozenset({"split"})))
    nodes, parts = len(split), len(split) // 3
    index = np.arange(parts, dtype=np.int64)
    mate = np.concatenate([np.full(parts, -1), index + 2 * parts, index + parts])
    change = split.start_bytes + split.end_bytes
    forms = [np.stack([column, column]) for column in (split.duration_ns, split.start_bytes, change)]
    if "fused" in problem.allow:
        fused = OpGraph.build(dataclasses.replace(problem, allow=frozenset({"fused"})))
        whole = (fused.duration_ns, fused.start_bytes, fused.start_bytes + fused.end_bytes)
        for form, column in zip(forms, whole, strict=True):
            form[1, parts : 2 * parts] = column[parts:]
            form[1, 2 * parts :] = 0
    tail, head, lag = split.arc_tail, split.arc_head, split.arc_lag_ns
    binds = (split.rank[tail] != split.rank[head]) | (lag != 0)
    tail, head, lag = tail[binds], head[binds], lag[binds]
    starts, members = _pointers(split.twin, int(split.twin.max()) + 1), np.lexsort((split.microbatch, split.twin))
    first = members[starts[:-1]]
    partner = np.where(first < parts, split.twin[(first + parts) % nodes], -1)
    turn = np.asarray([1, 0, 2])[first // parts]
    of_rank = np.lexsort((-split.stage[first], turn, split.rank[first]))
    single = len(first) == 3 * len(set(split.rank[first].tolist()))
    rows = (
        [nodes, split.ranks, len(first), problem.microbatches, single],
        split.rank,
        split.twin,
        mate,
        *(form.T.ravel() for form in forms),
        split.pred_ptr,
        split.arc_tail,
        _pointers(head, nodes),
        tail,
        lag,
        _pointers(tail, nodes),
        head[np.argsort(tail, kind="stable")],
        split.base_bytes,
        split.limit_bytes,
        split.arc_lag_ns,
        starts,
        members,
        partner,
        _pointers(split.rank[first], split.ranks),
        of_rank,
    )
    table = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    for row, given in zip(table, rows, strict=True):
        row[: len(given)] = given
    return table


def _pointers(ends: Any, nodes: int) -> Any:
    return np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=nodes))])


def nodes_of(problem: Problem, order: Order) -> tuple[list[list[int]], list[int]]:
    """Each rank's row as nodes of the network, every ghost behind its B, and by node whether it is fused."""
    microbatches = problem.microbatches
    parts = problem.placement.stages * microbatches
    fused = [0] * (3 * parts)
    rows = []
    for row in order.rows:
        nodes = []
        for op in row:
            assert op.microbatch is not None
            node = _PART[op.kind] * parts + op.stage * microbatches + op.microbatch
            nodes.append(node)
            if op.kind is Kind.BACKWARD:
                nodes.append(node + parts)
                fused[node] = fused[node + parts] = 1
        rows.append(nodes)
    return rows, fused


def sequence_of(net: NDArray[np.int64], rows: Sequence[Sequence[int]]) -> list[int] | None:
    """A sequence with these rows, in which every node stands after what it needs; None if there is none."""
    pointers, needs = net[NEED_PTR].tolist(), net[NEED].tolist()
    done = bytearray(int(net[SHAPE][0]))
    at = [0] * len(rows)
    waiting: dict[int, list[int]] = {}
    ready = list(range(len(rows)))
    sequence: list[int] = []
    while ready:
        r = ready.pop()
        row, k = rows[r], at[r]
        while k < len(row):
            node = row[k]
            blocker = next((t for t in needs[pointers[node] : pointers[node + 1]] if not done[t]), -1)
            if blocker >= 0:
                waiting.setdefault(blocker, []).append(r)
                break
            done[node] = 1
            sequence.append(node)
            k += 1
            if node in waiting:
                ready.extend(waiting.pop(node))
        at[r] = k
    return sequence if len(sequence) == len(done) else None


def order_of(problem: Problem, sequence: Sequence[int], fused: Sequence[int]) -> Order:
    """The order that a sequence of all nodes stands for; ghosts vanish."""
    microbatches = problem.microbatches
    parts = problem.placement.stages * microbatches
    kinds = (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
    routes, route_of = problem.placement.routes, problem.route_of
    assert route_of is not None
    rows: list[list[Op]] = [[] for _ in range(problem.placement.ranks)]
    for node in sequence:
        part, within = divmod(int(node), parts)
        if fused[node] and part == 2:
            continue
        stage, microbatch = divmod(within, microbatches)
        kind = Kind.BACKWARD if fused[node] else kinds[part]
        rows[routes[route_of[microbatch]][stage]].append(Op(kind, stage, microbatch))
    return Order(tuple(tuple(row) for row in rows))
