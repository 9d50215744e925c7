"""The operation graph: costs, placement and rules as arrays, the only flattening of a problem.

Nodes are operations, lanes run one at a time, arcs are precedences with lags. There is no order
and there are no times here; whoever reads the graph needs no stage, link or profile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from zbsolve.errors import OrderError, ProblemError
from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.timetable import Order
from zbsolve.units import MAX_AMOUNT

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["KINDS", "Lane", "OpGraph"]

Int8 = NDArray[np.int8]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

KINDS: tuple[Kind, ...] = (
    Kind.FORWARD,
    Kind.BACKWARD_INPUT,
    Kind.BACKWARD_WEIGHT,
    Kind.BACKWARD,
    Kind.RECOMPUTE,
    Kind.REDUCE_GRADIENT,
    Kind.OPTIMIZER,
)
"""What the numbers in `OpGraph.kind` mean."""

_F, _B, _W, _BW, _C, _R, _O = range(7)
_MICROBATCH_KINDS = 5
_CODE = {kind: code for code, kind in enumerate(KINDS)}
_DONE_BY = (
    (Kind.FORWARD, (_F,)),
    (Kind.BACKWARD_INPUT, (_B, _BW)),
    (Kind.BACKWARD_WEIGHT, (_W, _BW)),
    (Kind.RECOMPUTE, (_C,)),
)
_ABSENT = -1


@dataclass(frozen=True, slots=True)
class Lane:
    """What runs one operation at a time: the compute or the network of a rank."""

    resource: Literal["compute", "network"]
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpGraph:
    """All operations of a problem with duration, lane and memory effect, and the arcs between them.

    N nodes, L lanes, E arcs, R ranks. Arrays are read-only.

    Parameters
    ----------
    kind, stage, microbatch, rank
        Shape N: which operation (`kind` indexes `KINDS`), in whose row.
    lane
        Shape N; lanes 0..R-1 are the ranks' compute, the next R their networks, where any is used.
    lanes
        What each lane is.
    duration_ns
        Shape N.
    start_bytes, end_bytes
        Shape N: >= 0 at the start and <= 0 at the end, of its rank's memory; workspace is in both.
    arc_tail, arc_head
        Shape E, sorted by head.
    arc_lag_ns
        Shape E: start[head] >= end[tail] + lag.
    arc_bytes
        Shape E: of the tensor handed along, -1 where it is order alone.
    pred_ptr
        Shape N+1: the arcs into node i are ``pred_ptr[i]:pred_ptr[i+1]``.
    succ_ptr, succ_arc
        Shape N+1 and E: the arcs out of node i are ``succ_arc[succ_ptr[i]:succ_ptr[i+1]]``.
    twin
        Shape N: class id; operations of one class have equal costs, route and arcs, so running
        them in microbatch order loses nothing.
    base_bytes, limit_bytes
        Shape R: static bytes; the limit, 2^62 where there is none.
    problem
        What it was built from.
    """

    kind: Int8
    stage: Int32
    microbatch: Int32
    rank: Int32
    lane: Int32
    lanes: tuple[Lane, ...]
    duration_ns: Int64
    start_bytes: Int64
    end_bytes: Int64
    arc_tail: Int32
    arc_head: Int32
    arc_lag_ns: Int64
    arc_bytes: Int64
    pred_ptr: Int32
    succ_ptr: Int32
    succ_arc: Int32
    twin: Int32
    base_bytes: Int64
    limit_bytes: Int64
    problem: Problem

    @classmethod
    def build(cls, problem: Problem, ops: Sequence[Iterable[Op]] | None = None) -> OpGraph:
        """Flatten a problem.

        Parameters
        ----------
        problem
            What is asked.
        ops
            The operations of each rank; default `problem.operations()`. For an order, its rows.

        Raises
        ------
        OrderError
            If the operations do not do every part exactly once, each on its rank.
        ProblemError
            If all durations or bytes together exceed 2^62.
        """
        kind, stage, microbatch, rank = _default_nodes(problem) if ops is None else _given_nodes(problem, ops)
        parts = _index_parts(problem, kind, stage, microbatch)
        duration, start_bytes, end_bytes = _effects(problem, parts, kind, stage, microbatch, rank)
        families = [_forward_chain(problem, parts)]
        if not problem.forward_only:
            families += [_backward_chain(problem, parts), _within_stage(parts)]
            families += _end_of_iteration(parts, kind, stage, rank)
        arcs = _join(families)
        order = np.argsort(arcs.head, kind="stable")
        tail, head, lag = arcs.tail[order], arcs.head[order], arcs.lag_ns[order]
        nodes = len(kind)
        base = [problem.static_bytes(r) for r in range(problem.placement.ranks)]
        _refuse_overflow("durations and lags", duration, lag)
        _refuse_overflow("bytes", start_bytes, np.asarray(base, dtype=object))
        graph = cls(
            kind=kind,
            stage=stage,
            microbatch=microbatch,
            rank=rank,
            lane=np.where(kind == _R, rank + problem.placement.ranks, rank).astype(np.int32),
            lanes=_lanes(problem, kind),
            duration_ns=duration,
            start_bytes=start_bytes,
            end_bytes=end_bytes,
            arc_tail=tail,
            arc_head=head,
            arc_lag_ns=lag,
            arc_bytes=arcs.bytes[order],
            pred_ptr=_pointers(head, nodes),
            succ_ptr=_pointers(tail, nodes),
            succ_arc=np.argsort(tail, kind="stable").astype(np.int32),
            twin=_twins(problem, kind, stage, microbatch, rank),
            base_bytes=np.asarray(base, dtype=np.int64),
            limit_bytes=np.asarray([MAX_AMOUNT if b is None else b for b in problem.limit_bytes], dtype=np.int64),
            problem=problem,
        )
        for name in cls.__slots__:
            value = getattr(graph, name)
            if isinstance(value, np.ndarray):
                value.setflags(write=False)
        return graph

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def ranks(self) -> int:
        """The number of ranks, R."""
        return len(self.base_bytes)

    def op(self, node: int) -> Op:
        """The operation that a node stands for."""
        microbatch = int(self.microbatch[node])
        return Op(KINDS[self.kind[node]], int(self.stage[node]), None if microbatch < 0 else microbatch)

    def index(self, rank: int, op: Op) -> int:
        """The node of an operation in a rank's row.

        Raises
        ------
        OrderError
            If the graph has no such node.
        """
        found = np.flatnonzero(
            (self.rank == rank)
            & (self.kind == _CODE[op.kind])
            & (self.stage == op.stage)
            & (self.microbatch == (-1 if op.microbatch is None else op.microbatch))
        )
        if len(found) != 1:
            raise OrderError(f"{op} is not an operation of rank {rank} here")
        return int(found[0])

    def encode(self, order: Order) -> tuple[Int32, ...]:
        """Each rank's row as an array of nodes.

        Raises
        ------
        OrderError
            If the rows are not a permutation of this graph's nodes, each on its rank.
        """
        if len(order.rows) != self.ranks:
            raise OrderError(f"the order has {len(order.rows)} rows, the problem has {self.ranks} ranks")
        key = zip(self.rank.tolist(), self.kind.tolist(), self.stage.tolist(), self.microbatch.tolist(), strict=True)
        node_of = {k: i for i, k in enumerate(key)}
        rows = []
        for rank, row in enumerate(order.rows):
            nodes = []
            for op in row:
                node = node_of.pop(
                    (rank, _CODE[op.kind], op.stage, -1 if op.microbatch is None else op.microbatch), None
                )
                if node is None:
                    raise OrderError(f"rank {rank} cannot run {op}: it stands twice, or does not belong there")
                nodes.append(node)
            rows.append(np.asarray(nodes, dtype=np.int32))
        if node_of:
            missing = self.op(next(iter(node_of.values())))
            raise OrderError(
                f"the order lacks {missing}" + (f" and {len(node_of) - 1} more" if len(node_of) > 1 else "")
            )
        return tuple(rows)

    def decode(self, rows: Sequence[Sequence[int] | Int32]) -> Order:
        """The order that arrays of nodes, one a rank, stand for."""
        kind, stage, microbatch = self.kind.tolist(), self.stage.tolist(), self.microbatch.tolist()
        number = [None if j < 0 else j for j in microbatch]
        return Order(tuple(tuple(Op(KINDS[kind[i]], stage[i], number[i]) for i in row) for row in rows))

    def by_lane(self, rows: Sequence[Sequence[int] | Int32]) -> list[list[int]]:
        """The rows of the ranks as one row a lane: what each lane runs, in that sequence."""
        lane = self.lane.tolist()
        sorted_out: list[list[int]] = [[] for _ in self.lanes]
        for row in rows:
            for node in row:
                sorted_out[lane[node]].append(int(node))
        return sorted_out

    def to_networkx(self) -> nx.DiGraph:
        """The graph for people: nodes are operations, edges carry ``lag_ns`` and ``bytes``."""
        import networkx as nx

        graph = nx.DiGraph()
        for node in range(len(self)):
            graph.add_node(
                self.op(node),
                rank=int(self.rank[node]),
                duration_ns=int(self.duration_ns[node]),
                start_bytes=int(self.start_bytes[node]),
                end_bytes=int(self.end_bytes[node]),
            )
        columns = (self.arc_tail, self.arc_head, self.arc_lag_ns, self.arc_bytes)
        for tail, head, lag, size in zip(*(c.tolist() for c in columns), strict=True):
            graph.add_edge(self.op(tail), self.op(head), lag_ns=lag, bytes=size)
        return graph


@dataclass(frozen=True, slots=True)
class _Arcs:
    tail: Int32
    head: Int32
    lag_ns: Int64
    bytes: Int64


@dataclass(frozen=True, slots=True)
class _Parts:
    """The node that does each part, shape (stages, microbatches); a fused backward does two.

    Of a problem with forwards only the tables of the backward stay empty: -1 everywhere. So is that of
    what is computed again wherever nothing is.
    """

    forward: Int32
    backward_input: Int32
    backward_weight: Int32
    recompute: Int32


def _routes(problem: Problem) -> Int32:
    """The rank of every stage for every microbatch, shape (stages, microbatches)."""
    routes = np.asarray(problem.placement.routes, dtype=np.int32)
    return np.ascontiguousarray(routes[np.asarray(problem.route_of, dtype=np.int64)].T)


def _default_nodes(problem: Problem) -> tuple[Int8, Int32, Int32, Int32]:
    codes: tuple[int, ...] = (_F, _B, _W) if "split" in problem.allow else (_F, _BW)
    if problem.forward_only:
        codes = (_F,)
    shape = (len(codes), problem.placement.stages, problem.microbatches)
    kind, stage, microbatch = (axis.ravel() for axis in np.indices(shape, dtype=np.int32))
    rank = _routes(problem)[stage, microbatch]
    kind = np.asarray(codes, dtype=np.int8)[kind]
    ends = [
        (_CODE[k], s, -1, r)
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


def _given_nodes(problem: Problem, ops: Sequence[Iterable[Op]]) -> tuple[Int8, Int32, Int32, Int32]:
    if len(ops) != problem.placement.ranks:
        raise OrderError(f"there are {len(ops)} rows, the problem has {problem.placement.ranks} ranks")
    stages, microbatches = problem.placement.stages, problem.microbatches
    allowed = {Kind.FORWARD} if problem.forward_only else set(KINDS[:_MICROBATCH_KINDS])
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
            table.append((_CODE[op.kind], op.stage, number, rank))
    columns = np.asarray(table, dtype=np.int32).reshape(-1, 4).T
    kind, stage, microbatch, rank_column = (np.ascontiguousarray(c) for c in columns)
    astray = np.flatnonzero((_routes(problem)[stage, microbatch] != rank_column) & (microbatch >= 0))
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


def _lanes(problem: Problem, kind: Int8) -> tuple[Lane, ...]:
    ranks = range(problem.placement.ranks)
    networks = tuple(Lane("network", r) for r in ranks) if (kind == _R).any() else ()
    return (*(Lane("compute", r) for r in ranks), *networks)


def _index_parts(problem: Problem, kind: Int8, stage: Int32, microbatch: Int32) -> _Parts:
    shape = (problem.placement.stages, problem.microbatches)
    tables = []
    kind = np.where(microbatch < 0, _O, kind)  # not of a microbatch
    for part, codes in _DONE_BY:
        nodes = np.flatnonzero(np.isin(kind, codes))
        table = np.full(shape, _ABSENT, dtype=np.int32)
        table[stage[nodes], microbatch[nodes]] = nodes
        done = np.zeros(shape, dtype=np.int64)
        np.add.at(done, (stage[nodes], microbatch[nodes]), 1)
        due = np.minimum(done, 1) if part is Kind.RECOMPUTE else part is Kind.FORWARD or not problem.forward_only
        wrong = np.argwhere(done != due)
        if len(wrong):
            s, j = (int(v) for v in wrong[0])
            times = int(done[s, j])
            often = "at most" if part is Kind.RECOMPUTE else "exactly"
            raise OrderError(f"{Op(part, s, j)} must be done {often} once, but is done {times or 'no'} times")
        tables.append(table)
    return _Parts(*tables)


def _effects(
    problem: Problem, parts: _Parts, kind: Int8, stage: Int32, microbatch: Int32, rank: Int32
) -> tuple[Int64, Int64, Int64]:
    """Duration and memory effect of every node: the one table of what each kind does.

    What ends the iteration holds no memory of its own: its buffers are static.
    """
    shape = (_MICROBATCH_KINDS, problem.placement.stages, problem.microbatches)
    duration, start, end = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    for s in range(problem.placement.stages):
        for j in range(problem.microbatches):
            c = problem.cost(s, j)
            held, left, extra = c.activation_bytes, c.backward_weight_bytes, c.workspace_bytes
            if held + left + extra > MAX_AMOUNT:
                raise ProblemError(f"the bytes of stage {s} exceed 2^62; check the units of the profile")
            kept = c.checkpoint if parts.recompute[s, j] >= 0 else held
            duration[:, s, j] = (
                c.forward_ns, c.backward_input_ns, c.backward_weight_ns, c.backward_ns, c.recomputing_ns
            )  # fmt: skip
            start[:, s, j] = kept + extra, max(left - held, 0) + extra, extra, extra, held - kept + extra
            freed = held if problem.forward_only else 0
            end[:, s, j] = -freed - extra, min(left - held, 0) - extra, -left - extra, -held - extra, -extra
    ends = np.flatnonzero(microbatch < 0).tolist()
    at = (np.where(microbatch < 0, 0, kind), stage, microbatch)
    of_node = duration[at], start[at], end[at]
    for node in ends:
        cost = problem.cost(int(stage[node]), None, rank=int(rank[node]))
        of_node[0][node] = cost.grad_reduce_ns if kind[node] == _R else cost.optimizer_ns
        of_node[1][node] = of_node[2][node] = 0
    return of_node


def _forward_chain(problem: Problem, parts: _Parts) -> _Arcs:
    """F of a stage, then F of the next, with its output handed over."""
    return _chain(problem, parts.forward[:-1], parts.forward[1:], sender=0, receiver=1)


def _backward_chain(problem: Problem, parts: _Parts) -> _Arcs:
    """B of a stage, then B of the one before it, with the gradient of that one's output."""
    return _chain(problem, parts.backward_input[1:], parts.backward_input[:-1], sender=1, receiver=0)


def _chain(problem: Problem, tail: Int32, head: Int32, *, sender: int, receiver: int) -> _Arcs:
    """Arcs between the two sides of every boundary; row s of the tables is the boundary after stage s."""
    ranks = _routes(problem)
    boundaries = len(ranks) - 1
    source, target = ranks[sender : boundaries + sender], ranks[receiver : boundaries + receiver]
    lag, size = np.zeros(tail.shape, dtype=np.int64), np.zeros(tail.shape, dtype=np.int64)
    for s in range(boundaries):
        for j in range(problem.microbatches):
            size[s, j] = problem.cost(s, j).output_bytes
    link = problem.profile.link
    for pair in np.unique(np.stack([source.ravel(), target.ravel()], axis=1), axis=0).tolist():
        if pair[0] == pair[1]:
            continue
        latency, bandwidth = link.between(*pair)
        crossing = (source == pair[0]) & (target == pair[1])
        lags = [latency + (0 if bandwidth is None else -(-b * 10**9 // bandwidth)) for b in size[crossing].tolist()]
        if max(lags) > MAX_AMOUNT:
            raise ProblemError(
                f"a transfer from rank {pair[0]} to rank {pair[1]} takes more than 2^62 ns; check the link"
            )
        lag[crossing] = lags
    return _Arcs(tail.ravel(), head.ravel(), lag.ravel(), size.ravel())


def _within_stage(parts: _Parts) -> _Arcs:
    """F, then B, then W (which a fused backward does by itself); what is computed again is so between F and B."""
    split = parts.backward_input != parts.backward_weight
    again = parts.recompute >= 0
    tail = np.concatenate(
        [parts.forward.ravel(), parts.backward_input[split], parts.forward[again], parts.recompute[again]]
    )
    head = np.concatenate(
        [
            parts.backward_input.ravel(),
            parts.backward_weight[split],
            parts.recompute[again],
            parts.backward_input[again],
        ]
    )
    return _Arcs(tail, head, np.zeros(len(tail), dtype=np.int64), np.full(len(tail), -1, dtype=np.int64))


def _end_of_iteration(parts: _Parts, kind: Int8, stage: Int32, rank: Int32) -> list[_Arcs]:
    """Every W of a stage, on every holder, then its reduction, if there is one, then its optimizer on each holder."""
    tails: list[Int32] = []
    heads: list[Int32] = []
    reduction = {(int(stage[n]), int(rank[n])): int(n) for n in np.flatnonzero(kind == _R)}
    for node in np.flatnonzero((kind == _R) | (kind == _O)).tolist():
        before = reduction.get((int(stage[node]), int(rank[node])), node)
        tails.append(parts.backward_weight[stage[node]] if before == node else np.asarray([before], dtype=np.int32))
        heads.append(np.full(len(tails[-1]), node, dtype=np.int32))
    if not heads:
        return []
    tail, head = np.concatenate(tails), np.concatenate(heads)
    return [_Arcs(tail, head, np.zeros(len(tail), dtype=np.int64), np.full(len(tail), -1, dtype=np.int64))]


def _join(families: Sequence[_Arcs]) -> _Arcs:
    return _Arcs(
        np.concatenate([f.tail for f in families]).astype(np.int32),
        np.concatenate([f.head for f in families]).astype(np.int32),
        np.concatenate([f.lag_ns for f in families]),
        np.concatenate([f.bytes for f in families]),
    )


def _pointers(ends: Int32, nodes: int) -> Int32:
    return np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=nodes))]).astype(np.int32)


def _twins(problem: Problem, kind: Int8, stage: Int32, microbatch: Int32, rank: Int32) -> Int32:
    """Microbatches alike in route, in costs and in what is fused or computed again share classes of operations.

    What ends the iteration has no twin.
    """
    form = np.zeros((2, problem.microbatches, problem.placement.stages), dtype=bool)
    for chosen, code in zip(form, (_BW, _C), strict=True):
        chosen[microbatch[kind == code], stage[kind == code]] = True
    signature: dict[tuple[object, ...], int] = {}
    alike = np.zeros(problem.microbatches, dtype=np.int64)
    for j, route in enumerate(problem.route_of or ()):
        costs = tuple(problem.cost(s, j) for s in range(problem.placement.stages))
        alike[j] = signature.setdefault((route, costs, form[:, j].tobytes()), len(signature))
    stages = problem.placement.stages
    key = (alike[microbatch] * len(KINDS) + kind) * stages + stage
    once = microbatch < 0
    key[once] = ((problem.microbatches + rank[once].astype(np.int64)) * len(KINDS) + kind[once]) * stages + stage[once]
    classes: Int32 = np.unique(key, return_inverse=True)[1].astype(np.int32)
    return classes


def _refuse_overflow(what: str, *arrays: Int64 | NDArray[np.object_]) -> None:
    total = sum(int(np.sum(np.asarray(a, dtype=object), initial=0)) for a in arrays)
    if total > MAX_AMOUNT:
        raise ProblemError(f"all {what} of the iteration together exceed 2^62; check the units of the profile")
