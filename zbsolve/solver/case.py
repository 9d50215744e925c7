"""The problem of a solve as its tasks see it: one network, and orders read into it and timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zbsolve.catalog.closing import closed
from zbsolve.opgraph import OpGraph
from zbsolve.problem import Problem
from zbsolve.solver.compiled import Kernels
from zbsolve.solver.forms import Forms
from zbsolve.solver.network import LINKS, RANK, SHAPE, Table, build_network, end_nodes, nodes_of, order_of, sequence_of
from zbsolve.solver.permuted import renumbered, sequences
from zbsolve.solver.state import new_state
from zbsolve.solver.tasks import Found, Int8, Int32
from zbsolve.timetable import Order

__all__ = ["Case", "Numbered"]


@dataclass(eq=False)
class Case:
    """What all tasks of a solve share.

    Parameters
    ----------
    problem
        What is asked.
    kernels
        Plain or compiled.
    arrays
        The network in arrays, where it is built already.

    Attributes
    ----------
    network
        The same in the form that the kernels take.
    forms
        Which backwards may run fused.
    """

    problem: Problem
    kernels: Kernels
    arrays: Any = None
    network: Table = field(init=False)
    forms: Forms = field(init=False)

    def __post_init__(self) -> None:
        if self.arrays is None:
            self.arrays = build_network(self.problem)
        network: Any = self.arrays.tolist() if self.kernels.lists else self.arrays
        self.network = network
        self.forms = Forms(self.problem, self.arrays)

    @property
    def nodes(self) -> int:
        """The number of nodes of the network."""
        return int(self.arrays[SHAPE][0])

    @property
    def queueing(self) -> bool:
        """Whether transfers wait for each other on any link."""
        return bool(self.arrays[SHAPE][LINKS])

    @property
    def rank(self) -> NDArray[np.int64]:
        """The rank of each node of the network."""
        column: NDArray[np.int64] = self.arrays[RANK][: self.nodes]
        return column

    @property
    def periodic(self) -> int:
        """1 for the period, 0 for the makespan."""
        return int(self.problem.objective == "period")

    @cached_property
    def others(self) -> tuple[Numbered, ...]:
        """The same problem with its microbatches numbered in other ways; none where all are alike."""
        return tuple(Numbered(self, title, sequence) for title, sequence in sequences(self.problem))

    def read(self, order: Order) -> Found | None:
        """An order of the problem, timed; None if it can never finish or exceeds the memory."""
        return self.read_rows(*nodes_of(self.problem, order))

    def read_open(self, rows: Sequence[Sequence[int]], fused: Sequence[int]) -> Found | None:
        """The same for rows of forwards and gradients alone, behind which the iteration is closed."""
        if not self.problem.has_ends:
            return self.read_rows(rows, fused)
        order = order_of(self.problem, [node for row in rows for node in row], fused)
        return self.read(closed(self.problem, order))

    def read_rows(self, rows: Sequence[Sequence[int]], fused: Sequence[int]) -> Found | None:
        """The same for rows of nodes, ghosts behind their B, and by node whether it is fused."""
        sequence = sequence_of(self.arrays, rows)
        if sequence is None:
            return None
        state = new_state(self.network, sequence, fused, 0)
        value = self.kernels.load(self.network, state, self.periodic)
        if value < 0:
            return None
        return Found(int(value), np.asarray(sequence, dtype=np.int32), np.asarray(fused, dtype=np.int8))

    def unfold(self, graph: OpGraph, sequence: Any) -> tuple[Int32, Int8]:
        """Nodes of any graph of the problem as nodes of the network, ghosts behind their B, and which are fused."""
        parts, microbatches = self.problem.placement.stages * self.problem.microbatches, self.problem.microbatches
        nodes = np.asarray(sequence, dtype=np.int64)
        fused = np.zeros(self.nodes, dtype=np.int8)
        if self.problem.forward_only:
            alone = graph.stage[nodes].astype(np.int64) * microbatches + graph.microbatch[nodes]
            fused[parts:] = 1
            return (alone[:, None] + np.arange(3) * parts).ravel().astype(np.int32), fused
        once = graph.microbatch[nodes] < 0
        kind, within = (
            graph.kind[nodes].astype(np.int64),
            graph.stage[nodes].astype(np.int64) * microbatches + graph.microbatch[nodes],
        )
        whole = kind == 3
        own = np.where(whole, 1, kind) * parts + within
        ends = end_nodes(self.problem)
        own[once] = [ends[graph.op(node).kind, int(graph.stage[node]), int(graph.rank[node])] for node in nodes[once]]
        fused[own[whole]] = fused[own[whole] + parts] = 1
        twice = np.repeat(own, 1 + whole)
        twice[np.flatnonzero(np.diff(twice, prepend=-1) == 0)] += parts
        return twice.astype(np.int32), fused


@dataclass(eq=False)
class Numbered:
    """A case whose microbatches are numbered by a sequence, for what goes by their numbers.

    Parameters
    ----------
    origin
        The case itself.
    title
        What the sequence is called.
    sequence
        Its microbatch k is microbatch ``sequence[k]`` there.
    """

    origin: Case
    title: str
    sequence: tuple[int, ...]

    @cached_property
    def case(self) -> Case:
        """The case with these numbers."""
        return Case(renumbered(self.origin.problem, self.sequence), self.origin.kernels)

    def own(self, found: Found) -> Found:
        """What was found for it, with the numbers of the case itself."""
        problem = self.origin.problem
        microbatches, parts = problem.microbatches, problem.placement.stages * problem.microbatches
        node = np.arange(self.origin.nodes, dtype=np.int32)
        columns = node[: 3 * parts].reshape(-1, microbatches)
        node[: 3 * parts] = columns[:, list(self.sequence)].ravel()
        fused = np.zeros_like(found.fused)
        fused[node] = found.fused
        return replace(found, sequence=node[found.sequence], fused=fused)
