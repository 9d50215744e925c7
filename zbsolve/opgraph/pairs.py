"""What runs beside a forward: the second halves of pairs, and what two operations in one node come to.

A pair is one node. Its own columns are those of its forward; the backward stands in a table of its own:

::

    node            7                     12
    own columns     F4 of stage 0         F5 of stage 0
    beside          BW1 of stage 3        B2 of stage 3

It does the parts of both, so every arc into or out of either is one into or out of the node. At its start it takes
what both take at theirs, at its end it frees what both free.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from zbsolve.errors import OrderError, ProblemError
from zbsolve.opgraph.kinds import CODE, KINDS, Int8, Int32, Int64
from zbsolve.ops import Kind, Op
from zbsolve.units import MAX_AMOUNT

if TYPE_CHECKING:
    from zbsolve.problem import Problem

__all__ = ["Beside", "handed", "key_of", "no_pairs", "paired_with", "with_pairs"]

BACKWARDS = (Kind.BACKWARD, Kind.BACKWARD_INPUT)


@dataclass(frozen=True, slots=True)
class Beside:
    """By pair, nodes ascending: the node, and kind, stage and microbatch of the backward in it."""

    node: Int32
    kind: Int8
    stage: Int32
    microbatch: Int32

    def __post_init__(self) -> None:
        for column in (self.node, self.kind, self.stage, self.microbatch):
            column.setflags(write=False)

    def op(self, pair: int) -> Op:
        """The backward of a pair."""
        return Op(KINDS[self.kind[pair]], int(self.stage[pair]), int(self.microbatch[pair]))

    def at(self, node: int) -> Op | None:
        """The backward in a node, None where it is no pair."""
        pair = int(np.searchsorted(self.node, node)) if len(self.node) else 0
        return self.op(pair) if pair < len(self.node) and self.node[pair] == node else None

    def by_node(self) -> dict[int, Op]:
        """The backward of each node that is a pair."""
        return {node: self.op(pair) for pair, node in enumerate(self.node.tolist())}


def no_pairs() -> Beside:
    """The table where nothing runs together."""
    none = np.zeros(0, dtype=np.int32)
    return Beside(none, none.astype(np.int8), none, none)


def paired_with(problem: Problem, ops: Sequence[Iterable[Op]]) -> Beside:
    """The table of the pairs in given rows, nodes counted as they stand there.

    Raises
    ------
    OrderError
        If something else runs together than a forward and a backward of another microbatch, both of the same rank.
    """
    table = []
    node = 0
    for rank, row in enumerate(ops):
        for op in row:
            beside = op.beside
            if beside is not None:
                _refuse_strange(problem, rank, op, beside)
                table.append((node, CODE[beside.kind], beside.stage, beside.microbatch))
            node += 1
    if not table:
        return no_pairs()
    nodes, kind, stage, microbatch = np.asarray(table, dtype=np.int32).T
    return Beside(nodes.copy(), kind.astype(np.int8), stage.copy(), microbatch.copy())


def _refuse_strange(problem: Problem, rank: int, op: Op, beside: Op) -> None:
    if op.kind is not Kind.FORWARD or beside.kind not in BACKWARDS or beside.beside is not None or problem.forward_only:
        raise OrderError(f"{op} in the row of rank {rank}: only a forward and a backward run together")
    j = beside.microbatch
    if j is None or not (0 <= beside.stage < problem.placement.stages and 0 <= j < problem.microbatches):
        raise OrderError(f"{beside} in the row of rank {rank} is not an operation of this problem")
    if j == op.microbatch:
        raise OrderError(f"{op} in the row of rank {rank}: a backward waits for all forwards of its microbatch")
    if problem.rank_of(beside) != rank:
        raise OrderError(f"{beside} stands in the row of rank {rank}, where that stage does not lie")


def with_pairs(
    problem: Problem,
    beside: Beside,
    stage: Int32,
    microbatch: Int32,
    own: tuple[Int64, Int64, Int64],
    table: tuple[Int64, Int64, Int64],
) -> tuple[Int64, Int64, Int64]:
    """Duration and memory effects of all nodes, those of pairs made of both halves.

    Parameters
    ----------
    own
        Of every node by its own columns.
    table
        The same by kind, stage and microbatch.
    """
    duration, start, end = own
    if not len(beside.node):
        return own
    at = (beside.kind, beside.stage, beside.microbatch)
    for column, effect in zip(own, table, strict=True):
        if (np.abs(column[beside.node]) > MAX_AMOUNT - np.abs(effect[at])).any():
            raise ProblemError("what runs together takes more than 2^62 ns or bytes; check the units of the profile")
        column[beside.node] += effect[at]
    for pair, node in enumerate(beside.node.tolist()):
        forward = Op(Kind.FORWARD, int(stage[node]), int(microbatch[node]), beside.op(pair))
        together = problem.overlap_ns(forward)
        if together is not None:
            duration[node] = together
    return duration, start, end


def handed(tail: Op, head: Op) -> list[tuple[Op, Op]]:
    """Which half of one node hands something to which half of another; an output ahead of a gradient, as arcs are."""
    if tail.beside is None and head.beside is None:
        return [(tail, head)]
    return [
        (gives, needs)
        for gives, needs in itertools.product(tail.halves, head.halves)
        if gives.microbatch == needs.microbatch
        and (gives.kind is Kind.FORWARD) == (needs.kind is Kind.FORWARD)
        and needs.stage - gives.stage == (1 if needs.kind is Kind.FORWARD else -1)
    ]


def key_of(op: Op) -> tuple[int, int, int]:
    """Kind, stage and microbatch as numbers, -1 for what has no microbatch."""
    return CODE[op.kind], op.stage, -1 if op.microbatch is None else op.microbatch
