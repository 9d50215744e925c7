"""One microbatch's operations as classes: what a scheduler that works first in, first out needs to know.

Operations of one twin class are run in microbatch order, so an order is a word of classes a rank:
the k-th letter of a class stands for its k-th microbatch. Arcs join equal positions, so the arcs
between classes say all. Everything is a plain list, since schedulers touch one operation at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zbsolve.errors import ProblemError
from zbsolve.opgraph import KINDS, OpGraph
from zbsolve.ops import Kind

__all__ = ["Pattern"]

_FORWARD = KINDS.index(Kind.FORWARD)
_BACKWARD_WEIGHT = KINDS.index(Kind.BACKWARD_WEIGHT)
_RANKING = {Kind.BACKWARD_INPUT: 0, Kind.BACKWARD: 0, Kind.FORWARD: 1, Kind.BACKWARD_WEIGHT: 2}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pattern:
    """The classes of a graph; C classes, R ranks.

    Parameters
    ----------
    graph
        What it folds.
    rank, kind, stage, duration, start_bytes, end_bytes
        Of each class.
    members
        The nodes of each class, in microbatch order.
    microbatches
        The microbatches of each class's members.
    needs
        How many arcs come in; arcs that others imply are left out.
    succs
        (class, lag) of the arcs going out.
    of_rank
        The classes of each rank: input gradients first, then forwards, then weight gradients.
    partner
        For a forward the class of its stage's input gradient, else -1.
    base, limit
        Bytes of each rank: static ones; the limit.
    held
        Bytes that one microbatch holds on each rank once its forwards have run; the most over routes.
    spare
        Bytes that any operation of a rank needs beyond what is held.
    single
        True if every rank has one chunk and there is one kind of microbatch.
    """

    graph: OpGraph
    rank: list[int]
    kind: list[int]
    stage: list[int]
    duration: list[int]
    start_bytes: list[int]
    end_bytes: list[int]
    members: list[list[int]]
    microbatches: list[list[int]]
    needs: list[int]
    succs: list[tuple[tuple[int, int], ...]]
    of_rank: list[list[int]]
    partner: list[int]
    base: list[int]
    limit: list[int]
    held: list[int]
    spare: list[int]
    single: bool

    @property
    def classes(self) -> int:
        """The number of classes, C."""
        return len(self.rank)

    @property
    def ranks(self) -> int:
        """The number of ranks, R."""
        return len(self.base)

    @classmethod
    def fold(cls, graph: OpGraph) -> Pattern:
        """Fold a graph into its classes.

        Raises
        ------
        ProblemError
            If an arc joins different positions of two classes, so that the graph does not fold.
        """
        by_class = np.lexsort((graph.microbatch, graph.twin))
        counts = np.bincount(graph.twin)
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        position = np.empty(len(graph), dtype=np.int64)
        position[by_class] = np.arange(len(graph)) - np.repeat(starts, counts)
        if np.any(position[graph.arc_tail] != position[graph.arc_head]):
            raise ProblemError("this problem joins different microbatches, which the solver does not handle yet")
        first = by_class[starts]
        table = np.stack([graph.twin[graph.arc_tail], graph.twin[graph.arc_head], graph.arc_lag_ns], axis=1)
        arcs = [tuple(row) for row in np.unique(table, axis=0).tolist()]
        rank = graph.rank[first].tolist()
        kind = graph.kind[first].tolist()
        stage = graph.stage[first].tolist()
        arcs = _without_implied(arcs, rank)
        needs = [0] * len(first)
        succs: list[list[tuple[int, int]]] = [[] for _ in first]
        for tail, head, lag in arcs:
            needs[head] += 1
            succs[tail].append((head, lag))
        of_rank: list[list[int]] = [[] for _ in range(graph.ranks)]
        for c in sorted(range(len(first)), key=lambda c: (_RANKING[KINDS[kind[c]]], -stage[c])):
            of_rank[rank[c]].append(c)
        start_bytes, end_bytes = graph.start_bytes[first].tolist(), graph.end_bytes[first].tolist()
        spare, holding = [0] * graph.ranks, [dict[int, int]() for _ in range(graph.ranks)]
        members = np.split(by_class, starts[1:])
        microbatches = [graph.microbatch[m].tolist() for m in members]
        for c, r in enumerate(rank):
            taken = start_bytes[c]
            if kind[c] == _FORWARD:
                net = start_bytes[c] + end_bytes[c]
                taken -= net
                group = microbatches[c][0]
                holding[r][group] = holding[r].get(group, 0) + net
            spare[r] = max(spare[r], taken)
        return cls(
            graph=graph,
            rank=rank,
            kind=kind,
            stage=stage,
            duration=graph.duration_ns[first].tolist(),
            start_bytes=start_bytes,
            end_bytes=end_bytes,
            members=[m.tolist() for m in members],
            microbatches=microbatches,
            needs=needs,
            succs=[tuple(s) for s in succs],
            of_rank=of_rank,
            partner=_partners(rank, kind, stage, microbatches),
            base=graph.base_bytes.tolist(),
            limit=graph.limit_bytes.tolist(),
            held=[max(h.values(), default=0) for h in holding],
            spare=spare,
            single=all(sum(kind[c] == _FORWARD for c in row) == 1 for row in of_rank),
        )


def _without_implied(arcs: list[tuple[int, ...]], rank: list[int]) -> list[tuple[int, ...]]:
    """Drop arcs without lag inside a rank that a longer path implies, such as F to B across the later stages."""
    preds: dict[int, list[int]] = {}
    for tail, head, _ in arcs:
        preds.setdefault(head, []).append(tail)
    above: dict[int, int] = {}

    def ancestors(root: int) -> int:
        stack = [root]
        while stack:
            c = stack[-1]
            missing = [p for p in preds.get(c, ()) if p not in above]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            bits = 0
            for p in preds.get(c, ()):
                bits |= above[p] | (1 << p)
            above[c] = bits
        return above[root]

    kept: list[tuple[int, ...]] = []
    for tail, head, lag in arcs:
        others = [p for p in preds[head] if p != tail]
        if not (lag == 0 and rank[tail] == rank[head] and any(ancestors(p) >> tail & 1 for p in others)):
            kept.append((tail, head, lag))
    return kept


def _partners(rank: list[int], kind: list[int], stage: list[int], microbatches: list[list[int]]) -> list[int]:
    gradient = {
        (rank[c], stage[c], microbatches[c][0]): c
        for c in range(len(rank))
        if kind[c] not in (_FORWARD, _BACKWARD_WEIGHT)
    }
    return [gradient[rank[c], stage[c], microbatches[c][0]] if kind[c] == _FORWARD else -1 for c in range(len(rank))]
