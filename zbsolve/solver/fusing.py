"""Adjacent B and W become one `backward` where that costs nothing or gains something.

A fused backward hands its gradient on only at its end and frees its activation only there, so each
fusion is tried on the exact objective and on memory, and kept only if the value does not get worse.
Weight gradients of twins are alike: before anything is tried they change places within their row,
so that as many as can stand right behind their own B.
"""

from __future__ import annotations

import itertools

from zbsolve.opgraph import KINDS, OpGraph
from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.solver.budget import Budget
from zbsolve.solver.kernels import Arrays, fits, makespan, period, sequence_of
from zbsolve.solver.network import with_early_reductions
from zbsolve.timetable import Order

__all__ = ["fuse"]


def fuse(problem: Problem, order: Order, budget: Budget) -> tuple[int, Order]:
    """Fuse whatever does not make an order worse.

    Parameters
    ----------
    problem
        What is asked.
    order
        An order that fits the memory, in which nothing is moved away.
    budget
        Ends the trials early; one step each.

    Returns
    -------
    The objective value reached and the order, which is never worse than the given one.
    """
    trial = _Trial(problem, order)
    if "fused" in problem.allow:
        groups = [trial.candidates()]
        while groups and not budget.over:
            group = groups.pop()
            budget.spend(1)
            if group and not trial.accept(group) and len(group) > 1:
                # halves of a refused group, by time: pairs near each other share their fate
                middle = len(group) // 2
                groups += [group[middle:], group[:middle]]
    return trial.value, trial.order()


class _Trial:
    """An order in which pairs can be fused in place: B takes the time and memory of both, W takes none."""

    def __init__(self, problem: Problem, order: Order) -> None:
        self.problem = problem
        graph = OpGraph.build(problem, order.rows)
        self.arrays = Arrays.of(graph)
        self.rows = [row.tolist() for row in graph.encode(order)]
        self.kind = graph.kind.tolist()
        self._gather()
        sequence = sequence_of(self.arrays, graph.by_lane(self.rows))
        assert sequence is not None
        self.sequence = sequence
        self.value = self._value()
        self.fused: set[int] = set()

    def _gather(self) -> None:
        """Put W's of twins behind their own B where a W of their class stands there."""
        twin, preds = self.arrays.twin, self.arrays.preds
        weight, gradient = KINDS.index(Kind.BACKWARD_WEIGHT), KINDS.index(Kind.BACKWARD_INPUT)
        self.weight_of = {preds[n][0]: n for row in self.rows for n in row if self.kind[n] == weight}
        for row in self.rows:
            pending: dict[int, list[int]] = {}
            last = -1
            for at, node in enumerate(row):
                if self.kind[node] == gradient:
                    own = self.weight_of[node]
                    pending.setdefault(twin[own], []).append(own)
                elif self.kind[node] == weight:
                    waiting = pending[twin[node]]
                    own = self.weight_of.get(last, -1)
                    take = own if own >= 0 and twin[own] == twin[node] else waiting[0]
                    waiting.remove(take)
                    row[at] = take
                last = row[at]

    def _value(self) -> int:
        if self.problem.objective == "period":
            return period(self.arrays, self.sequence)[0]
        return makespan(self.arrays, self.sequence)

    def candidates(self) -> list[int]:
        """The B's with their own W right behind them whose fused form takes no more time, in order of time."""
        self.whole = whole = self._whole()
        duration = self.arrays.duration
        found = set()
        for row in self.rows:
            for node, behind in itertools.pairwise(row):
                if self.weight_of.get(node) == behind and whole[node][0] <= duration[node] + duration[behind]:
                    found.add(node)
        return [node for node in self.sequence if node in found]

    def _whole(self) -> dict[int, tuple[int, int, int]]:
        """Duration, start and end bytes of the fused backward of each B."""
        graph = self.arrays.graph
        weights = set(self.weight_of.values())
        ops = []
        for row in self.rows:
            kept = [(node, graph.op(node)) for node in row if node not in weights]
            ops.append(
                [Op(Kind.BACKWARD, op.stage, op.microbatch) if node in self.weight_of else op for node, op in kept]
            )
        fused = OpGraph.build(self.problem, ops)
        effects = {
            (stage, microbatch): (duration, start, end)
            for kind, stage, microbatch, duration, start, end in zip(
                fused.kind.tolist(),
                fused.stage.tolist(),
                fused.microbatch.tolist(),
                fused.duration_ns.tolist(),
                fused.start_bytes.tolist(),
                fused.end_bytes.tolist(),
                strict=True,
            )
            if KINDS[kind] is Kind.BACKWARD
        }
        return {b: effects[int(graph.stage[b]), int(graph.microbatch[b])] for b in self.weight_of}

    def accept(self, group: list[int]) -> bool:
        """Fuse these pairs unless that makes the order worse or breaks the memory limit."""
        a = self.arrays
        kept = [(n, a.duration[n], a.start_bytes[n], a.end_bytes[n]) for b in group for n in (b, self.weight_of[b])]
        for b in group:
            w = self.weight_of[b]
            a.duration[b], a.start_bytes[b], a.end_bytes[b] = self.whole[b]
            a.duration[w] = a.start_bytes[w] = a.end_bytes[w] = 0
        ranks = {a.rank[b] for b in group}
        self._weigh(ranks)
        if fits(a, self.sequence):
            value = self._value()
            if value <= self.value:
                self.value = value
                self.fused.update(group)
                return True
        for n, duration, start, end in kept:
            a.duration[n], a.start_bytes[n], a.end_bytes[n] = duration, start, end
        self._weigh(ranks)
        return False

    def _weigh(self, ranks: set[int]) -> None:
        for r in ranks:
            self.arrays.work[r] = sum(self.arrays.duration[n] for n in self.rows[r] if self.arrays.rank[n] == r)

    def order(self) -> Order:
        """The order with what has been fused."""
        graph = self.arrays.graph
        gone = {self.weight_of[b] for b in self.fused}
        rows = []
        for row in self.rows:
            ops = []
            for node in row:
                if node in gone:
                    continue
                op = graph.op(node)
                ops.append(Op(Kind.BACKWARD, op.stage, op.microbatch) if node in self.fused else op)
            rows.append(with_early_reductions(ops))
        return Order(tuple(rows))
