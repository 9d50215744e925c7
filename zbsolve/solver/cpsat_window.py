"""CP-SAT on a part of an order: some operations may change places, all others keep their row order.

What is free is either what starts within a stretch of time, on all ranks, or all that a few
neighbouring ranks run. Start times are variables everywhere, so that what comes after moves with it;
but only free operations need `no_overlap` and a say in memory, which keeps the model small. Times are rounded
down as in `zbsolve.solver.cpsat`; orders are timed exactly afterwards.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from zbsolve.opgraph import KINDS
from zbsolve.ops import Kind
from zbsolve.solver.cpsat import UNLIMITED, Limits, holdings, rounded, unit_of
from zbsolve.solver.cpsat_links import add_links
from zbsolve.solver.kernels import Arrays, period, rows_of, sweep

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

__all__ = ["improve_part", "pick_part"]

_FREE = 70
"""About how many operations are free."""

_FORWARD, _BACKWARD_INPUT, _BACKWARD_WEIGHT, _BACKWARD = (
    KINDS.index(k) for k in (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT, Kind.BACKWARD)
)


def pick_part(a: Arrays, sequence: Sequence[int], rng: random.Random) -> set[int]:
    """A stretch of time on all ranks or, now and then, a few neighbouring ranks."""
    if rng.random() < 0.3:
        wide = max(1, _FREE * a.ranks // len(sequence))
        first = rng.randrange(max(1, a.ranks - wide + 1))
        return {n for n in sequence if first <= a.rank[n] < first + wide}
    end, _ = sweep(a, sequence, period(a, sequence)[1])
    by_start = sorted(sequence, key=lambda n: end[n] - a.duration[n])
    size = int(_FREE * rng.uniform(0.5, 1.4))
    first = rng.randrange(max(1, len(by_start) - size + 1))
    low, high = (end[by_start[i]] - a.duration[by_start[i]] for i in (first, min(len(by_start), first + size) - 1))
    return {n for n in sequence if low <= end[n] - a.duration[n] <= high}


def improve_part(
    arrays: Arrays,
    sequence: list[int],
    free: set[int],
    *,
    objective: str,
    value_ns: int,
    limits: Limits,
    on_sequence: Callable[[list[int]], None],
) -> float:
    """Search the orders that differ in the free operations; CP-SAT's deterministic time used.

    Parameters
    ----------
    arrays, sequence
        The order to start from.
    free
        The nodes that may change places; next to each other in every row.
    objective, value_ns
        ``"period"`` or ``"makespan"``, and its value for that order.
    limits
        When to stop.
    on_sequence
        Told of each order found; it has to be timed and its memory looked at.
    """
    from ortools.sat.python import cp_model

    a = rounded(arrays, unit_of(arrays, value_ns)[0], 1)
    periodic = objective == "period"
    known, release = period(a, sequence) if periodic else (0, [0] * (a.ranks + len(a.loads)))
    end, last = sweep(a, sequence, release)
    known = known if periodic else max(end)
    horizon = 2 * max(last) + known
    model = cp_model.CpModel()
    value = model.new_int_var(max(a.work) if periodic else 0, known, "")
    starts = [model.new_int_var(0, horizon, "") for _ in a.rank]
    for node, waits in enumerate(a.waits):
        for tail, lag in waits:
            model.add(starts[node] >= starts[tail] + a.duration[tail] + lag)
        model.add_hint(starts[node], end[node] - a.duration[node])
    for rank, row in enumerate(rows_of(a, sequence)):
        if row:
            _free_row(model, a, rank, row, free, starts, horizon)
            firsts, finals = _outermost(row, free), _outermost(row[::-1], free)
            for final in finals:
                for first in firsts if periodic else (-1,):
                    span = starts[final] + a.duration[final]
                    model.add(value >= (span - starts[first] if periodic else span))
    add_links(model, a, sequence, starts, horizon, value if periodic else None, free.__contains__)
    model.add_hint(value, known)
    model.minimize(value)

    class Listener(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            begin = [self.value(v) for v in starts]
            place = {node: at for at, node in enumerate(sequence)}
            on_sequence(sorted(sequence, key=lambda n: (begin[n], begin[n] + a.duration[n], place[n])))

    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(0.01, limits.seconds)
    solver.parameters.random_seed = limits.seed % 2**31
    solver.parameters.num_workers = 1
    # most of the model is fixed order: elaborate preparations would take longer than the search
    solver.parameters.cp_model_probing_level = 0
    solver.parameters.symmetry_level = 0
    solver.parameters.linearization_level = 0
    solver.parameters.max_presolve_iterations = 1
    if limits.deterministic is not None:
        solver.parameters.max_deterministic_time = limits.deterministic
    solver.solve(model, Listener())
    return float(solver.response_proto.deterministic_time)


def _outermost(row: Sequence[int], free: set[int]) -> list[int]:
    """What may stand at the front of a row."""
    return [row[0]] if row[0] not in free else list(itertools.takewhile(free.__contains__, row))


def _free_row(
    model: cp_model.CpModel,
    a: Arrays,
    rank: int,
    row: Sequence[int],
    free: set[int],
    starts: list[cp_model.IntVar],
    horizon: int,
) -> None:
    """Keep the order of a row outside its free part; inside, one operation at a time, within the memory."""
    places = [at for at, node in enumerate(row) if node in free]
    low, high = (places[0], places[-1] + 1) if places else (len(row), len(row))
    part = row[low:high]
    for line in (row[:low], row[high:]):
        for ahead, node in itertools.pairwise(line):
            model.add(starts[node] >= starts[ahead] + a.duration[ahead])
    seen: dict[int, int] = {}
    for node in part:
        if low:
            model.add(starts[node] >= starts[row[low - 1]] + a.duration[row[low - 1]])
        if high < len(row):
            model.add(starts[row[high]] >= starts[node] + a.duration[node])
        if (twin := a.twin[node]) in seen:
            model.add(starts[node] >= starts[seen[twin]] + a.duration[seen[twin]])
        seen[twin] = node
        for tail in a.preds[node]:
            if a.rank[tail] == rank:
                model.add(starts[node] >= starts[tail] + a.duration[tail])
    model.add_no_overlap([model.new_fixed_size_interval_var(starts[n], a.duration[n], "") for n in part])
    if part and a.limit[rank] < UNLIMITED:
        _limit_memory(model, a, rank, row, range(low, high), starts, horizon)


def _limit_memory(
    model: cp_model.CpModel,
    a: Arrays,
    rank: int,
    row: Sequence[int],
    free: range,
    starts: list[cp_model.IntVar],
    horizon: int,
) -> None:
    """What starts or ends inside the free part shares the room that what lies across it leaves."""
    graph = a.graph
    kind, stage, microbatch = graph.kind.tolist(), graph.stage.tolist(), graph.microbatch.tolist()
    at = {node: place for place, node in enumerate(row)}
    holders: dict[tuple[int, int], dict[int, int]] = {}
    for node in row:
        if microbatch[node] < 0:
            continue
        holders.setdefault((stage[node], microbatch[node]), {})[kind[node]] = node
    room = a.limit[rank] - a.base[rank]
    spans, demands = [], []

    def hold(first: int, final: int, size: int) -> None:
        nonlocal room
        if size <= 0 or at[final] < free.start or at[first] >= free.stop:
            return
        if at[first] < free.start and at[final] >= free.stop:
            room -= size
            return
        length = model.new_int_var(0, horizon, "")
        spans.append(model.new_interval_var(starts[first], length, starts[final] + a.duration[final], ""))
        demands.append(size)

    for nodes in holders.values():
        for k, node in nodes.items():
            extra = a.start_bytes[node] if k in (_BACKWARD_WEIGHT, _BACKWARD) else -a.end_bytes[node]
            hold(node, node, extra if k in (_BACKWARD_WEIGHT, _BACKWARD) else min(a.start_bytes[node], extra))
        for first, final, size in holdings(a, nodes):
            hold(first, final, size)
    model.add_cumulative(spans, demands, room)
