"""Which stages run their backward fused: the choice that decides what operations there are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zbsolve.opgraph import KINDS, OpGraph
from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.solver.kernels import Arrays
from zbsolve.solver.pattern import Pattern

__all__ = ["NodeSet", "NodeSets"]

_BACKWARD_INPUT = KINDS.index(Kind.BACKWARD_INPUT)
_BACKWARD_WEIGHT = KINDS.index(Kind.BACKWARD_WEIGHT)
_BACKWARD = KINDS.index(Kind.BACKWARD)


@dataclass(eq=False)
class NodeSet:
    """The operations with the backwards of some stages fused, in the two forms schedulers read."""

    graph: OpGraph

    @cached_property
    def pattern(self) -> Pattern:
        """Classes, for the list scheduler."""
        return Pattern.fold(self.graph)

    @cached_property
    def arrays(self) -> Arrays:
        """Nodes, for timing and annealing."""
        return Arrays.of(self.graph)


class NodeSets:
    """Makes and keeps the node sets of a problem.

    Parameters
    ----------
    problem
        What is asked; `allow` says what may be chosen.

    Attributes
    ----------
    cheap
        The stages whose fused backward takes less time than its two halves.
    must
        The stages where only the fused backward fits the memory at all.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.stages = range(problem.placement.stages)
        self.may_split, self.may_fuse = "split" in problem.allow, "fused" in problem.allow
        self._made: dict[frozenset[int], NodeSet] = {}
        self.cheap, self.must = frozenset[int](), frozenset[int]()
        if self.may_split and self.may_fuse:
            split, fused = self._build(frozenset()).graph, self._build(frozenset(self.stages)).graph
            self.cheap = _cheaper(split, fused)
            self.must = _only_fused_fits(split)

    def get(self, fused: frozenset[int]) -> NodeSet:
        """The node set with these stages fused, as far as `allow` and the memory let one choose."""
        if not self.may_split:
            fused = frozenset(self.stages)
        elif not self.may_fuse:
            fused = frozenset()
        else:
            fused |= self.must
        return self._build(fused)

    def _build(self, fused: frozenset[int]) -> NodeSet:
        if fused not in self._made:
            self._made[fused] = NodeSet(OpGraph.build(self.problem, self._operations(fused)))
        return self._made[fused]

    def _operations(self, fused: frozenset[int]) -> list[list[Op]]:
        rows: list[list[Op]] = [[] for _ in range(self.problem.placement.ranks)]
        for stage in self.stages:
            both = (Kind.BACKWARD,) if stage in fused else (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
            for kind in (Kind.FORWARD, *both):
                for microbatch in range(self.problem.microbatches):
                    op = Op(kind, stage, microbatch)
                    rows[self.problem.rank_of(op)].append(op)
        return rows


def _cheaper(split: OpGraph, fused: OpGraph) -> frozenset[int]:
    """Stages whose backwards take less time in all when fused."""
    stages = int(split.stage.max()) + 1
    both = np.isin(split.kind, (_BACKWARD_INPUT, _BACKWARD_WEIGHT))
    apart = np.bincount(split.stage[both], split.duration_ns[both].astype(float), stages)
    whole = fused.kind == _BACKWARD
    together = np.bincount(fused.stage[whole], fused.duration_ns[whole].astype(float), stages)
    return frozenset(np.flatnonzero(together < apart).tolist())


def _only_fused_fits(split: OpGraph) -> frozenset[int]:
    """Stages where one microbatch's B alone, its forwards on the rank still held, is beyond the limit."""
    pattern = Pattern.fold(split)
    return frozenset(
        pattern.stage[c]
        for c, r in enumerate(pattern.rank)
        if pattern.kind[c] == _BACKWARD_INPUT
        and pattern.base[r] + pattern.held[r] + pattern.start_bytes[c] > pattern.limit[r]
    )
