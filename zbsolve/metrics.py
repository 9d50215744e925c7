"""Figures of an order: period, makespan, bubble, memory."""

from __future__ import annotations

import itertools

import numpy as np

from zbsolve.opgraph import Int32, Int64, OpGraph
from zbsolve.simulate import Timer
from zbsolve.solution import Metrics
from zbsolve.timetable import Timetable

__all__ = ["memory_curve", "memory_levels", "metrics", "peak_bytes"]


def memory_levels(graph: OpGraph, row: Int32, rank: int) -> Int64:
    """Bytes held on a rank before, during and after each operation of its row.

    Returns
    -------
    Shape (len(row), 3): before its start, while it runs, after its end.
    """
    start, end = graph.start_bytes[row], graph.end_bytes[row]
    after = graph.base_bytes[rank] + np.cumsum(start + end)
    return np.stack([after - start - end, after - end, after], axis=1)


def peak_bytes(graph: OpGraph, rows: tuple[Int32, ...]) -> tuple[int, ...]:
    """The peak memory of each rank: static bytes plus the greatest running sum along its row."""
    return tuple(
        int(memory_levels(graph, row, rank)[:, 1].max(initial=graph.base_bytes[rank])) for rank, row in enumerate(rows)
    )


def memory_curve(timetable: Timetable) -> tuple[tuple[tuple[int, int], ...], ...]:
    """For each rank the steps of its memory: (time in ns, bytes held from then on)."""
    order = timetable.order
    graph = OpGraph.build(timetable.problem, order.rows)
    curves = []
    for rank, row in enumerate(graph.encode(order)):
        levels = memory_levels(graph, row, rank)
        if any(timed.op.kind.moves for timed in timetable.rows[rank]):
            curves.append(_events(graph, row, rank, timetable))
            continue
        points = [(0, int(graph.base_bytes[rank]))]
        for timed, (_, during, after) in zip(timetable.rows[rank], levels.tolist(), strict=True):
            if timed.op.microbatch is None:  # holds nothing of its own, and may run beside others
                continue
            points += [(timed.start_ns, during), (timed.end_ns, after)]
        steps = [p for p, following in itertools.pairwise([*points, (-1, 0)]) if p[0] != following[0]]
        curves.append(tuple(steps))
    return tuple(curves)


def _events(graph: OpGraph, row: Int32, rank: int, timetable: Timetable) -> tuple[tuple[int, int], ...]:
    """The steps of a rank whose copies run beside its computing: at one time first what goes, then what comes."""
    changes: list[tuple[int, int]] = []
    for node, timed in zip(row.tolist(), timetable.rows[rank], strict=True):
        changes += [(timed.start_ns, int(graph.start_bytes[node])), (timed.end_ns, int(graph.end_bytes[node]))]
    held = int(graph.base_bytes[rank])
    steps = {0: held}
    for at, change in sorted(changes):
        held += change
        steps[at] = held
    return tuple(steps.items())


def metrics(timetable: Timetable) -> Metrics:
    """Compute the figures of a timetable's order.

    Period and makespan are the order's own, exactly: two timings of the same order agree.

    Raises
    ------
    OrderError
        If the rows are no order of the problem or can never finish.
    """
    problem, order = timetable.problem, timetable.order
    graph = OpGraph.build(problem, order.rows)
    rows = graph.encode(order)
    timer = Timer(graph, rows)
    period, makespan = timer.period().value_ns, timer.makespan().value_ns
    compute = int(graph.duration_ns[graph.lane < graph.ranks].sum())
    value = period if problem.objective == "period" else makespan
    return Metrics(
        period_ns=period,
        makespan_ns=makespan,
        bubble=1 - compute / (graph.ranks * value) if value else 0.0,
        bubble_formula=f"1 - compute work / (ranks x {problem.objective})",
        compute_ns=compute,
        peak_bytes=peak_bytes(graph, rows),
    )
