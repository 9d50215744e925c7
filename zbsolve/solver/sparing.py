"""Leaving out, one by one, what an order moves away or computes again without need; judged by exact times and memory.

What memory has room for by the rules of `zbsolve.solver.away` and `zbsolve.solver.again` is gone before. Here every
single one of the rest is tried in the order as it stands, until none can go.
"""

from __future__ import annotations

from collections.abc import Callable

from zbsolve.errors import OrderError
from zbsolve.metrics import peak_bytes
from zbsolve.opgraph import OpGraph
from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.simulate import Timer
from zbsolve.timetable import Order

__all__ = ["spared", "value_of_fitting", "without"]


def value_of_fitting(problem: Problem, order: Order, graph: OpGraph | None = None) -> int | None:
    """The exact value of an order in ns; None where it exceeds a memory limit or can never finish.

    `graph` is that of the operations, where it is known.
    """
    graph = graph or OpGraph.build(problem, order.rows)
    rows = graph.encode(order)
    limits = problem.limit_bytes
    if any(limit is not None and peak > limit for peak, limit in zip(peak_bytes(graph, rows), limits, strict=True)):
        return None
    try:
        timer = Timer(graph, rows)
    except OrderError:
        return None
    return (timer.period() if problem.objective == "period" else timer.makespan()).value_ns


def spared(
    problem: Problem, order: Order, value_ns: int, *, trials: int, over: Callable[[], bool]
) -> tuple[int, Order]:
    """The order without whatever can go and leave it within the limits and no slower, and its value.

    Parameters
    ----------
    value_ns
        Of the order as it is.
    trials
        Most orders to time.
    over
        Whether to end early.
    """
    while True:
        before = order
        for what in _spares(order):
            if trials <= 0 or over():
                return value_ns, order
            trials -= 1
            shorter = without(order, what)
            value = value_of_fitting(problem, shorter)
            if value is not None and value <= value_ns:
                value_ns, order = value, shorter
        if order == before:
            return value_ns, order


def without(order: Order, what: Op) -> Order:
    """The order without one recomputation, or without the copies that begin with one offload."""

    def goes(op: Op) -> bool:
        alike = op.kind.moves if what.kind is Kind.OFFLOAD else op.kind is what.kind
        return alike and (op.stage, op.microbatch) == (what.stage, what.microbatch)

    return Order(tuple(tuple(op for op in row if not goes(op)) for row in order.rows))


def _spares(order: Order) -> list[Op]:
    """What might be left out."""
    return [op for row in order.rows for op in row if op.kind in (Kind.OFFLOAD, Kind.RECOMPUTE)]
