"""CP-SAT on rounded times: the same problem as intervals, hinted with the best order known.

Durations and lags are rounded *down* to multiples of a unit u. Every timetable stays possible then,
so u times a bound of the rounded problem is a bound of the true one; the orders it finds are timed
exactly afterwards. Where all times have a common divisor that is coarse enough, it is the unit and
nothing is rounded at all.

CP-SAT's times are whole, but a period is the mean of a cycle over k ranks: a whole number of units
divided by k. So the model counts in parts of the unit, as many as make all those fractions whole;
where there are too many ranks for that, a proven V only says that the period exceeds V - 1 units.

Memory is `cumulative`: of what a microbatch holds on a rank one part ends with B, the other with
W, so two intervals a microbatch say it all (and one an operation for workspace). Twins run in
microbatch order, which loses nothing (`zbsolve.solver.twins`), and what follows from that and the
limit is stated besides: if only K microbatches fit, F(j+K) starts after the end of B(j).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zbsolve.opgraph import KINDS
from zbsolve.ops import Kind
from zbsolve.solver.cpsat_links import add_links
from zbsolve.solver.kernels import Arrays, period, sweep
from zbsolve.solver.twins import in_turn

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

__all__ = ["UNLIMITED", "Limits", "Outcome", "holdings", "improve", "rounded", "unit_of"]

_FORWARD, _BACKWARD_INPUT, _BACKWARD_WEIGHT, _BACKWARD = (
    KINDS.index(k) for k in (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT, Kind.BACKWARD)
)

_FINEST = 30_000
"""The most units an objective value may have; more digits sink the search."""

_ROUNDED = 6_000
"""The units it has where times must be rounded."""

_MOST_FRACTIONS = 4
"""Up to as many ranks the model counts in parts of a unit: 12 of them for four ranks, 60 for five."""

UNLIMITED = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long CP-SAT may search.

    Parameters
    ----------
    seconds
        Wall time.
    deterministic
        Its own measure of work; None for no limit. With one, a run uses a single thread and is reproducible.
    workers
        Threads otherwise.
    seed
        Of its random choices.
    """

    seconds: float
    deterministic: float | None
    workers: int
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run proved.

    Parameters
    ----------
    bound_ns
        A valid lower bound of the objective.
    deterministic
        The work done, in CP-SAT's measure.
    exact
        True if nothing was rounded.
    """

    bound_ns: int
    deterministic: float
    exact: bool


def improve(
    arrays: Arrays,
    sequence: list[int],
    *,
    objective: str,
    value_ns: int,
    bound_ns: int,
    limits: Limits,
    on_sequence: Callable[[list[int]], None],
    on_bound: Callable[[int], None] = lambda _: None,
) -> Outcome:
    """Search for a better order and a better bound.

    Parameters
    ----------
    arrays
        The graph.
    sequence
        The order to start from.
    objective
        ``"period"`` or ``"makespan"``.
    value_ns, bound_ns
        Of that order; the best bound known.
    limits
        When to stop.
    on_sequence
        Told of each order found, as a sequence; it has to be timed and its memory looked at.
    on_bound
        Told of each better bound, in ns.
    """
    from ortools.sat.python import cp_model

    unit, exact = unit_of(arrays, value_ns)
    periodic = objective == "period"
    # a link that transfers queue for can be part of the cycle that sets a period, as a rank can
    columns = len(arrays.busy) + sum(map(bool, arrays.loads))
    parts = math.lcm(*range(1, columns + 1)) if periodic and columns <= _MOST_FRACTIONS else 1
    whole = not periodic or parts > 1 or columns == 1
    coarse = rounded(arrays, unit, parts)
    sequence = in_turn(arrays.twin, arrays.graph.microbatch.tolist(), sequence)
    model, starts, _value = _model(coarse, sequence, objective, bound_ns * parts // unit)

    class Listener(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            begin = [self.value(v) for v in starts]
            on_sequence(_sequence(coarse, sequence, begin))

    best = bound_ns

    def prove(bound: float) -> None:
        nonlocal best
        if not math.isfinite(bound):
            return
        units = math.ceil(bound - 1e-6)
        proven = -(-unit * units // parts) if whole else unit * (units - 1) + 1
        if proven > best:
            best = proven
            on_bound(best)

    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(0.01, limits.seconds)
    solver.parameters.random_seed = limits.seed % 2**31
    solver.parameters.num_workers = limits.workers
    if limits.deterministic is not None:
        solver.parameters.max_deterministic_time = limits.deterministic
        solver.parameters.num_workers = 1
    solver.best_bound_callback = prove
    status = solver.solve(model, Listener())
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN):
        prove(solver.best_objective_bound)
    return Outcome(best, float(solver.response_proto.deterministic_time), exact)


def unit_of(arrays: Arrays, value_ns: int) -> tuple[int, bool]:
    """The unit of time in ns, and whether all times are multiples of it."""
    taken = (busy for sent in arrays.sends for _, _, busy in sent)
    common = math.gcd(*arrays.duration, *taken, *(lag for waits in arrays.waits for _, lag in waits))
    if common and value_ns <= common * _FINEST:
        return common, True
    return max(1, value_ns // _ROUNDED), value_ns < _ROUNDED


def rounded(arrays: Arrays, unit: int, parts: int) -> Arrays:
    """The same graph with times in units, rounded down, and counted in parts of a unit."""
    duration = [d // unit * parts for d in arrays.duration]
    work = [0] * arrays.ranks
    for r, d in zip(arrays.rank, duration, strict=True):
        work[r] += d
    return Arrays(
        graph=arrays.graph,
        rank=arrays.rank,
        duration=duration,
        start_bytes=arrays.start_bytes,
        end_bytes=arrays.end_bytes,
        twin=arrays.twin,
        preds=arrays.preds,
        waits=[tuple((tail, lag // unit * parts) for tail, lag in waits) for waits in arrays.waits],
        base=arrays.base,
        limit=arrays.limit,
        work=work,
        busy=arrays.busy,
        **_rounded_messages(arrays, unit, parts),
    )


def _rounded_messages(arrays: Arrays, unit: int, parts: int) -> dict[str, Any]:
    loads = [0] * len(arrays.loads)
    sends = tuple(tuple((m, link, busy // unit * parts) for m, link, busy in sent) for sent in arrays.sends)
    for _, link, busy in itertools.chain.from_iterable(sends):
        loads[link] += busy
    receives = tuple(tuple((m, later // unit * parts) for m, later in received) for received in arrays.receives)
    return {"sends": sends, "receives": receives, "loads": tuple(loads)}


def _model(
    a: Arrays, sequence: list[int], objective: str, bound: int
) -> tuple[cp_model.CpModel, list[cp_model.IntVar], cp_model.IntVar]:
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    periodic = objective == "period"
    known, release = period(a, sequence) if periodic else (0, [0] * (a.ranks + len(a.loads)))
    end, last = sweep(a, sequence, release)
    if not periodic:
        known = max(end)
    # under any period each rank ends within it of its start, and starts when the one it hangs on lets it
    longest_lag = max((lag for waits in a.waits for _, lag in waits), default=0)
    horizon = max(known if not periodic else (a.ranks + len(a.loads)) * (known + longest_lag), *last)
    value = model.new_int_var(min(bound, known), known, "value")
    starts = [model.new_int_var(0, horizon, "") for _ in a.rank]
    intervals = [model.new_fixed_size_interval_var(s, d, "") for s, d in zip(starts, a.duration, strict=True)]
    ends = [s + d for s, d in zip(starts, a.duration, strict=True)]
    for r in a.busy:
        model.add_no_overlap([intervals[n] for n, rank in enumerate(a.rank) if rank == r])
    for node, waits in enumerate(a.waits):
        lags = dict(waits)
        for tail in a.preds[node]:
            model.add(starts[node] >= ends[tail] + lags.get(tail, 0))
    chains = _chains(a, sequence)
    for chain in chains.values():
        for ahead, node in itertools.pairwise(chain):
            model.add(starts[node] >= ends[ahead])
    for r in a.busy:
        own = [chain for chain in chains.values() if a.rank[chain[0]] == r]
        for final in (chain[-1] for chain in own):
            if not periodic:
                model.add(value >= ends[final])
                continue
            for first in (chain[0] for chain in own):
                if first != final:
                    model.add(value >= ends[final] - starts[first])
        _limit_memory(model, a, r, end, horizon, starts, ends, intervals, chains)
    add_links(model, a, sequence, starts, horizon, value if periodic else None)
    for node, var in enumerate(starts):
        model.add_hint(var, end[node] - a.duration[node])
    model.add_hint(value, known)
    model.minimize(value)
    return model, starts, value


def _chains(a: Arrays, sequence: list[int]) -> dict[int, list[int]]:
    """Each twin class in the order in which the sequence runs it."""
    chains: dict[int, list[int]] = {}
    for node in sequence:
        chains.setdefault(a.twin[node], []).append(node)
    return chains


def _limit_memory(
    model: cp_model.CpModel,
    a: Arrays,
    rank: int,
    end: list[int],
    horizon: int,
    starts: list[cp_model.IntVar],
    ends: list[Any],
    intervals: list[cp_model.IntervalVar],
    chains: dict[int, list[int]],
) -> None:
    """Memory of a rank as intervals that hold bytes, and the in-flight limits that follow."""
    if a.limit[rank] >= UNLIMITED:
        return
    room = a.limit[rank] - a.base[rank]
    kind = a.graph.kind.tolist()
    holders: dict[tuple[int, int], dict[int, int]] = {}
    stage, microbatch = a.graph.stage.tolist(), a.graph.microbatch.tolist()
    for node, r in enumerate(a.rank):
        if r == rank and microbatch[node] >= 0:
            holders.setdefault((stage[node], microbatch[node]), {})[kind[node]] = node
    spans, demands = [], []

    def hold(first: int, final: int, size: int) -> None:
        if size:
            length = model.new_int_var(0, horizon, "")
            model.add_hint(length, end[final] - end[first] + a.duration[first])
            spans.append(model.new_interval_var(starts[first], length, ends[final], ""))
            demands.append(size)

    for nodes in holders.values():
        for node in nodes.values():
            extra = _workspace(a, node, kind[node])
            if extra:
                spans.append(intervals[node])
                demands.append(extra)
        for first, final, size in holdings(a, nodes):
            hold(first, final, size)
    model.add_cumulative(spans, demands, room)
    for chain in chains.values():
        if a.rank[chain[0]] == rank and kind[chain[0]] == _FORWARD:
            _limit_flight(model, a, holders, chain, room, starts, ends)


def holdings(a: Arrays, nodes: Mapping[int, int]) -> Iterator[tuple[int, int, int]]:
    """What one microbatch holds on a stage: from the start of which node to the end of which, and bytes.

    `nodes` are those of the microbatch by kind; what an operation needs only while it runs comes on top.
    """
    forward = nodes[_FORWARD]
    taken = a.start_bytes[forward] + a.end_bytes[forward]
    if _BACKWARD_INPUT not in nodes:
        yield forward, nodes.get(_BACKWARD, forward), taken  # nothing outlasts a forward without a backward
        return
    middle, final = nodes[_BACKWARD_INPUT], nodes[_BACKWARD_WEIGHT]
    change = a.start_bytes[middle] + a.end_bytes[middle]
    yield forward, middle, max(0, -change)
    yield forward, final, taken + min(0, change)
    yield middle, final, max(0, change)


def _workspace(a: Arrays, node: int, kind: int) -> int:
    """Bytes that an operation needs only while it runs."""
    start, end = a.start_bytes[node], -a.end_bytes[node]
    if kind in (_BACKWARD_WEIGHT, _BACKWARD):
        return start
    return min(start, end)


def _limit_flight(
    model: cp_model.CpModel,
    a: Arrays,
    holders: dict[tuple[int, int], dict[int, int]],
    chain: list[int],
    room: int,
    starts: list[cp_model.IntVar],
    ends: list[Any],
) -> None:
    """F(j+K) after the end of B(j), where K+1 do not fit; the same with W and what is held until then."""
    stage, microbatch = a.graph.stage.tolist(), a.graph.microbatch.tolist()
    nodes = [holders[stage[n], microbatch[n]] for n in chain]
    taken = a.start_bytes[chain[0]] + a.end_bytes[chain[0]]
    if not taken:
        return
    split = _BACKWARD not in nodes[0]
    if any((_BACKWARD in n) == split for n in nodes):
        return
    limits = [(taken, _BACKWARD_INPUT if split else _BACKWARD)]
    if split:
        middle = nodes[0][_BACKWARD_INPUT]
        kept = taken + min(0, a.start_bytes[middle] + a.end_bytes[middle])
        limits.append((kept, _BACKWARD_WEIGHT))
    for size, until in limits:
        if size:
            most = room // size
            for behind, ahead in zip(chain[most:], nodes, strict=False):
                model.add(starts[behind] >= ends[ahead[until]])


def _sequence(a: Arrays, sequence: list[int], begin: list[int]) -> list[int]:
    """The nodes by their start; what starts together keeps the order of the old sequence."""
    place = {node: at for at, node in enumerate(sequence)}
    return sorted(sequence, key=lambda n: (begin[n], begin[n] + a.duration[n], place[n]))
