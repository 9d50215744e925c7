"""A problem's graph as flat columns, in which every backward may run split or fused.

One graph serves all choices of fused and split: its nodes are F, B and W of every stage and
microbatch. Where a backward runs fused, its B takes the time and the memory of both and its W
becomes a *ghost* of no duration and no bytes that may stand anywhere behind its B. So switching
between the two forms changes a few numbers and moves nothing.

With forwards only every B and W is a ghost, right behind its F. Behind these nodes come the reductions of
gradients and the optimizers, see `end_nodes`. The network of a rank, where it is used, is a rank of its
own here, number R + r: its span lies within that of rank r, since an optimizer follows each reduction.

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
from zbsolve.units import MAX_AMOUNT

__all__ = [
    "Row",
    "Table",
    "build_network",
    "end_nodes",
    "nodes_of",
    "order_of",
    "sequence_of",
    "with_early_reductions",
]

Int64 = NDArray[np.int64]

Row = list[int]
"""For the plain path; the compiled one has arrays of int64 instead, and kernels cannot tell."""

Table = list[Row]
"""Rows of one length, each with what its name below says at its front."""

SHAPE = 0
"""The numbers of nodes N, ranks R, twin classes C and microbatches; 1 if each rank has one chunk and all microbatches
are alike; the number of pairs of a stage and a microbatch; slices of a sequence; of links on which transfers queue."""

SLICES, LINKS = 6, 7
"""Where in SHAPE the last two of these stand."""

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

MESSAGE_FROM, MESSAGE_LINK, MESSAGE_BUSY, MESSAGE_LATENCY, SEND_PTR, LINK_LOAD = range(22, 28)
"""What takes a queueing link: node i sends the messages ``send_ptr[i]:send_ptr[i + 1]``, one after the other; of each
its sender, its link, how long it takes that, and how much later it is there; by link the sum of what it carries."""

WAIT_MESSAGE, NEED_MESSAGE = range(28, 30)
"""Beside WAIT_TAIL and NEED: the message that is waited for, -1 where it is no such."""

ROWS = 30

_PART = {Kind.FORWARD: 0, Kind.BACKWARD_INPUT: 1, Kind.BACKWARD_WEIGHT: 2, Kind.BACKWARD: 1}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """What the network is made of: by node, its two forms in rows 0 and 1 where it has two; and all arcs.

    By arc the message on a queueing link, or -1; of each message sender, link, time on it and latency.
    """

    rank: Int64
    microbatch: Int64
    stage: Int64
    twin: Int64
    duration: Int64
    start: Int64
    change: Int64
    tail: Int64
    head: Int64
    lag: Int64
    base: Int64
    limit: Int64
    message: Int64
    sent: NDArray[np.int64]


def build_network(problem: Problem) -> NDArray[np.int64]:
    """The network of a problem, in arrays."""
    c = _forwards(problem) if problem.forward_only else _split_and_fused(problem)
    nodes, parts, ranks = len(c.rank), problem.placement.stages * problem.microbatches, len(c.base)
    index = np.arange(parts, dtype=np.int64)
    mate = np.concatenate([np.full(parts, -1), index + 2 * parts, index + parts, np.full(nodes - 3 * parts, -1)])
    by_head = np.argsort(c.head, kind="stable")
    tail, head, lag = c.tail[by_head], c.head[by_head], c.lag[by_head]
    binds = (c.rank[tail] != c.rank[head]) | (lag != 0)
    wait_tail, wait_head, wait_lag = tail[binds], head[binds], lag[binds]
    message, (sender, link, busy, latency) = c.message[by_head], c.sent
    links = int(link.max(initial=-1)) + 1
    starts, members = _pointers(c.twin, int(c.twin.max()) + 1), np.lexsort((c.microbatch, c.twin))
    first = members[starts[:-1]]
    partner = np.where(first < parts, c.twin[(first + parts) % nodes], -1)
    turn = np.asarray([1, 0, 2])[np.minimum(first // parts, 2)]
    of_rank = np.lexsort((-c.stage[first], turn, c.rank[first]))
    visiting = first[first < 3 * parts]
    single = len(visiting) == 3 * len(set(c.rank[visiting].tolist()))
    rows = (
        [nodes, ranks, len(first), problem.microbatches, single, parts, problem.slices, links],
        c.rank,
        c.twin,
        mate,
        *(form.T.ravel() for form in (c.duration, c.start, c.change)),
        _pointers(head, nodes),
        tail,
        _pointers(wait_head, nodes),
        wait_tail,
        wait_lag,
        _pointers(wait_tail, nodes),
        wait_head[np.argsort(wait_tail, kind="stable")],
        c.base,
        c.limit,
        lag,
        starts,
        members,
        partner,
        _pointers(c.rank[first], ranks),
        of_rank,
        *(sender, link, busy, latency),
        _pointers(sender, nodes),
        [int(busy[link == number].sum()) for number in range(links)],
        message[binds],
        message,
    )
    table = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    for row, given in zip(table, rows, strict=True):
        row[: len(given)] = given
    return table


def _split_and_fused(problem: Problem) -> _Columns:
    """F, B and W; the second form of B and W is that of the fused backward."""
    split = OpGraph.build(dataclasses.replace(problem, allow=frozenset({"split"})))
    parts = problem.placement.stages * problem.microbatches
    change = split.start_bytes + split.end_bytes
    forms = [np.stack([column, column]) for column in (split.duration_ns, split.start_bytes, change)]
    if "fused" in problem.allow:
        fused = OpGraph.build(dataclasses.replace(problem, allow=frozenset({"fused"})))
        whole = (fused.duration_ns, fused.start_bytes, fused.start_bytes + fused.end_bytes)
        for form, column in zip(forms, whole, strict=True):
            form[1, parts : 2 * parts] = column[parts : 2 * parts]
            form[1, 2 * parts : 3 * parts] = 0
    return _Columns(
        rank=_wide(split.lane),
        microbatch=np.maximum(_wide(split.microbatch), 0),
        stage=_wide(split.stage),
        twin=_wide(split.twin),
        duration=forms[0],
        start=forms[1],
        change=forms[2],
        tail=_wide(split.arc_tail),
        head=_wide(split.arc_head),
        lag=split.arc_lag_ns,
        base=np.pad(split.base_bytes, (0, networks := len(split.lanes) - split.ranks)),
        limit=np.pad(split.limit_bytes, (0, networks), constant_values=MAX_AMOUNT),
        message=_messages(split),
        sent=_sent(split),
    )


def _forwards(problem: Problem) -> _Columns:
    """Forwards alone: every B and W is a ghost behind its F, so that whoever counts on three parts finds them."""
    graph = OpGraph.build(problem)
    parts, classes = len(graph), int(graph.twin.max()) + 1
    own = np.arange(parts, dtype=np.int64)
    change = graph.start_bytes + graph.end_bytes
    forms = [np.pad(np.stack([c, c]), ((0, 0), (0, 2 * parts))) for c in (graph.duration_ns, graph.start_bytes, change)]
    return _Columns(
        rank=np.tile(_wide(graph.rank), 3),
        microbatch=np.tile(_wide(graph.microbatch), 3),
        stage=np.tile(_wide(graph.stage), 3),
        twin=np.concatenate([_wide(graph.twin) + k * classes for k in range(3)]),
        duration=forms[0],
        start=forms[1],
        change=forms[2],
        tail=np.concatenate([_wide(graph.arc_tail), own, own + parts]),
        head=np.concatenate([_wide(graph.arc_head), own + parts, own + 2 * parts]),
        lag=np.pad(graph.arc_lag_ns, (0, 2 * parts)),
        base=graph.base_bytes,
        limit=graph.limit_bytes,
        message=np.pad(_messages(graph), (0, 2 * parts), constant_values=-1),
        sent=_sent(graph),
    )


def _messages(graph: OpGraph) -> Int64:
    """By arc the number of its message, in the order of `OpGraph.sends`; -1 where it takes no queueing link."""
    number = np.full(len(graph.arc_tail), -1, dtype=np.int64)
    number[graph.sends] = np.arange(len(graph.sends))
    return number


def _sent(graph: OpGraph) -> Int64:
    """Sender, link, time on it and latency of each message, shape (4, messages)."""
    arcs = graph.sends
    busy = graph.arc_busy_ns[arcs]
    return np.stack([_wide(graph.arc_tail[arcs]), _wide(graph.arc_link[arcs]), busy, graph.arc_lag_ns[arcs] - busy])


def _wide(column: Any) -> Int64:
    return np.asarray(column, dtype=np.int64)


def _pointers(ends: Any, nodes: int) -> Any:
    return np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=nodes))])


def end_nodes(problem: Problem) -> dict[tuple[Kind, int, int], int]:
    """The node of every reduction and optimizer, by kind, stage and rank: behind F, B and W, as in the graph."""
    first = 3 * problem.placement.stages * problem.microbatches
    keys = [
        (kind, stage, rank)
        for kind in (Kind.REDUCE_GRADIENT, Kind.OPTIMIZER)
        for stage in range(problem.placement.stages)
        if problem.has(kind, stage)
        for rank in problem.placement.holders(stage)
    ]
    return {key: first + i for i, key in enumerate(keys)}


def nodes_of(problem: Problem, order: Order) -> tuple[list[list[int]], list[int]]:
    """The row of each rank, and behind them of each network, as nodes; and by node whether it is fused.

    Every ghost stands behind its B.
    """
    microbatches = problem.microbatches
    parts = problem.placement.stages * microbatches
    ends = end_nodes(problem)
    fused = [0] * (3 * parts + len(ends))
    rows: list[list[int]] = []
    networks: list[list[int]] = []
    for rank, row in enumerate(order.rows):
        nodes: list[int] = []
        network: list[int] = []
        for op in row:
            if op.microbatch is None:
                lane = network if op.kind is Kind.REDUCE_GRADIENT else nodes
                lane.append(ends[op.kind, op.stage, rank])
                continue
            node = _PART[op.kind] * parts + op.stage * microbatches + op.microbatch
            nodes.append(node)
            if op.kind is Kind.BACKWARD:
                nodes.append(node + parts)
                fused[node] = fused[node + parts] = 1
            elif problem.forward_only:
                nodes += [node + parts, node + 2 * parts]
                fused[node + parts] = fused[node + 2 * parts] = 1
        rows.append(nodes)
        networks.append(network)
    return (rows + networks if any(networks) else rows), fused


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
    ends = {node: key for key, node in end_nodes(problem).items()}
    rows: list[list[Op]] = [[] for _ in range(problem.placement.ranks)]
    reductions: list[list[int]] = [[] for _ in rows]
    for node in sequence:
        part, within = divmod(int(node), parts)
        if part >= 3:
            kind, stage, rank = ends[int(node)]
            if kind is Kind.REDUCE_GRADIENT:
                reductions[rank].append(stage)
            else:
                rows[rank].append(Op(kind, stage, None))
            continue
        if fused[node] and (part == 2 or problem.forward_only):
            continue
        stage, microbatch = divmod(within, microbatches)
        kind = Kind.BACKWARD if fused[node] else kinds[part]
        rows[routes[route_of[microbatch]][stage]].append(Op(kind, stage, microbatch))
    return Order(tuple(_with_reductions(row, stages) for row, stages in zip(rows, reductions, strict=True)))


def with_early_reductions(row: Sequence[Op]) -> tuple[Op, ...]:
    """A row with its reductions as far ahead as they may stand, in their sequence; never slower."""
    stages = [op.stage for op in row if op.kind is Kind.REDUCE_GRADIENT]
    return _with_reductions([op for op in row if op.kind is not Kind.REDUCE_GRADIENT], stages)


def _with_reductions(row: list[Op], stages: list[int]) -> tuple[Op, ...]:
    """The row with reductions in their sequence, each as far ahead as it may stand: so none waits for nothing."""
    if not stages:
        return tuple(row)
    last = {op.stage: at for at, op in enumerate(row) if op.microbatch is not None}
    behind: dict[int, list[Op]] = {}
    place = -1
    for stage in stages:
        place = max(place, last.get(stage, -1))
        behind.setdefault(place, []).append(Op(Kind.REDUCE_GRADIENT, stage, None))
    made = behind.get(-1, [])
    for at, op in enumerate(row):
        made += [op, *behind.get(at, ())]
    return tuple(made)
