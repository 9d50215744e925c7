"""Zero-bubble schedules (arXiv 2401.10241): B and W apart, W where a rank would wait.

zb-h1    F0 F1 F2 .. B0 W0 F3 ..            as much memory as 1F1B
zb-h2    F0 F1 F2 F3 F4 B0 W0 ..            about twice that, and no wait at F = B = W
zb-1p, zb-2p                                the paper's greedy, made for the costs and a limit
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from zbsolve.catalog.conditions import require_one_stage_a_rank, require_split, require_whole_sequences
from zbsolve.catalog.greedy import SWITCHES, Costs, greedy_rows
from zbsolve.catalog.schedule import Member, Schedule
from zbsolve.metrics import peak_bytes
from zbsolve.opgraph import KINDS, Int32, Int64, OpGraph
from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.simulate import Timer
from zbsolve.timetable import Order

__all__ = ["MEMBERS", "greedy_orders"]

_PARTS = (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)


# ------------------------------------------------------------------------------ handcrafted


def _handcrafted(problem: Problem, name: str, ahead: Callable[[int, int], int], delay: int) -> Order:
    """Warm-up of `ahead(stages, stage)` forwards; then B(j), W(j - delay x stage), one more F."""
    require_split(problem, name)
    route = require_one_stage_a_rank(problem, name)
    stages, microbatches = len(route), problem.microbatches
    rows: list[tuple[Op, ...]] = [()] * stages
    for stage, rank in enumerate(route):
        warm_up, behind = min(ahead(stages, stage), microbatches), delay * stage
        row = [Op(Kind.FORWARD, stage, j) for j in range(warm_up)]
        for j in range(microbatches):
            row.append(Op(Kind.BACKWARD_INPUT, stage, j))
            if j >= behind:
                row.append(Op(Kind.BACKWARD_WEIGHT, stage, j - behind))
            if j + warm_up < microbatches:
                row.append(Op(Kind.FORWARD, stage, j + warm_up))
        row += [Op(Kind.BACKWARD_WEIGHT, stage, j) for j in range(max(microbatches - behind, 0), microbatches)]
        rows[rank] = tuple(row)
    return Order(tuple(rows))


def zb_h1(problem: Problem) -> Order:
    """ZB-H1: the memory of 1F1B, p microbatches, with weight passes in the ramp down.

    Bubble time (p-1)(F+B-W) at equal stages without latency, where W <= F and m >= p.

    Raises
    ------
    ScheduleConditionError
        If a rank holds more than one stage, or B and W may not stand apart.
    """
    return _handcrafted(problem, "zb-h1", lambda stages, stage: stages - stage, delay=1)


def zb_h2(problem: Problem) -> Order:
    """ZB-H2: up to 2p-1 microbatches held, with forwards in the ramp up as well.

    Bubble time (p-1)(F+B-2W) at equal stages without latency, where W <= F, 2W <= F + B and m >= 2p-1.

    Raises
    ------
    ScheduleConditionError
        If a rank holds more than one stage, or B and W may not stand apart.
    """
    return _handcrafted(problem, "zb-h2", lambda stages, stage: 2 * (stages - stage) - 1, delay=2)


# ----------------------------------------------------------------------------------- greedy


@dataclass(frozen=True, slots=True)
class _Setting:
    """A problem as the greedy needs it."""

    graph: OpGraph
    route: tuple[int, ...]
    nodes: list[list[list[int]]]
    costs: Costs

    @classmethod
    def of(cls, problem: Problem, name: str) -> _Setting:
        require_split(problem, name)
        route = require_one_stage_a_rank(problem, name)
        graph = OpGraph.build(problem)
        nodes = np.empty((len(_PARTS), len(route), problem.microbatches), dtype=np.int64)
        for part, kind in enumerate(_PARTS):
            of_kind = np.flatnonzero(graph.kind == KINDS.index(kind))
            nodes[part, graph.stage[of_kind], graph.microbatch[of_kind]] = of_kind
        return cls(graph, route, nodes.tolist(), _read_costs(graph, nodes))

    def candidates(self) -> Iterator[tuple[str, tuple[Int32, ...]]]:
        """Each different order that the sixteen runs give: its method, and its rows as nodes."""
        microbatches = self.graph.problem.microbatches
        seen = set()
        for name, costs in (("stage costs", self.costs), ("median costs", _medians(self.costs))):
            for switches in SWITCHES:
                rows: list[Int32] = [np.zeros(0, dtype=np.int32)] * len(self.route)
                for stage, row in enumerate(greedy_rows(costs, microbatches, switches)):
                    nodes = [self.nodes[part][stage][microbatch] for part, microbatch in row]
                    rows[self.route[stage]] = np.asarray(nodes, dtype=np.int32)
                key = b"".join(row.tobytes() for row in rows)
                if key not in seen:
                    seen.add(key)
                    yield f"zero-bubble greedy ({name}; {switches})", tuple(rows)


def _read_costs(graph: OpGraph, nodes: Int64) -> Costs:
    """One figure a stage: the median duration over its microbatches, and the most bytes and lag."""
    duration = np.sort(graph.duration_ns[nodes], axis=2)[:, :, nodes.shape[2] // 2].tolist()
    change = (graph.start_bytes + graph.end_bytes)[nodes]
    workspace = graph.start_bytes[nodes[2]].max(axis=1)
    ranks = graph.rank[nodes[0, :, 0]]
    return Costs(
        forward=duration[0],
        backward=duration[1],
        weight=duration[2],
        down=_lags(graph, Kind.FORWARD),
        up=_lags(graph, Kind.BACKWARD_INPUT),
        activation=change[0].max(axis=1).tolist(),
        kept=(-change[2]).max(axis=1).tolist(),
        room=((graph.limit_bytes - graph.base_bytes)[ranks] - workspace).tolist(),
    )


def _lags(graph: OpGraph, kind: Kind) -> list[int]:
    """The longest lag into each stage from an operation of the same kind."""
    code = KINDS.index(kind)
    chain = (graph.kind[graph.arc_head] == code) & (graph.kind[graph.arc_tail] == code)
    lags = np.zeros(graph.ranks, dtype=np.int64)
    np.maximum.at(lags, graph.stage[graph.arc_head[chain]], graph.arc_lag_ns[chain])
    return lags.tolist()


def _medians(costs: Costs) -> Costs:
    """All stages as slow as the (upper) median one: knowing less, the greedy sometimes does better."""
    last = len(costs.forward) - 1

    def level(values: Sequence[int]) -> tuple[int, ...]:
        ordered = sorted(values)
        return tuple(ordered[len(ordered) // 2 :][:1] * len(values))

    return replace(
        costs,
        forward=level(costs.forward),
        backward=level(costs.backward),
        weight=level(costs.weight),
        down=(0, *level(costs.down[1:])),
        up=(*level(costs.up[:last]), 0),
    )


def greedy_orders(problem: Problem) -> list[tuple[str, Order]]:
    """Every different order that the zero-bubble greedy gives within the problem's memory limit.

    Sixteen runs: eight settings of its switches, on the costs of each stage and on the median of all.
    The forwards and backwards of a round go through all stages, so below 1x, where the first stages
    hold fewer microbatches than there are stages, the orders stay valid but become slow.

    Returns
    -------
    Pairs of the run's name and its order; none where even one microbatch at a time does not fit.

    Raises
    ------
    ScheduleConditionError
        If a rank holds more than one stage, or B and W may not stand apart.
    """
    require_whole_sequences(problem, "the zero-bubble greedy")
    setting = _Setting.of(problem, "the zero-bubble greedy")
    limits = setting.graph.limit_bytes.tolist()
    return [
        (method, setting.graph.decode(rows))
        for method, rows in setting.candidates()
        if all(peak <= limit for peak, limit in zip(peak_bytes(setting.graph, rows), limits, strict=True))
    ]


def _best_greedy(problem: Problem, name: str, times: str) -> Order:
    """The candidate with the least objective on the true costs; ranks without a limit get `times`."""
    own = replace(problem, memory_limit=times).limit_bytes
    limits = tuple(mine if given is None else given for given, mine in zip(problem.limit_bytes, own, strict=True))
    setting = _Setting.of(replace(problem, memory_limit=limits), name)

    def value_ns(candidate: tuple[str, tuple[Int32, ...]]) -> int:
        timer = Timer(setting.graph, candidate[1])
        return (timer.period() if problem.objective == "period" else timer.makespan()).value_ns

    _, rows = min(setting.candidates(), key=value_ns)
    return setting.graph.decode(rows)


def zb_1p(problem: Problem) -> Order:
    """ZB-1p: the greedy's best order at the problem's memory limit, 1x where it has none.

    Raises
    ------
    ScheduleConditionError
        If a rank holds more than one stage, or B and W may not stand apart.
    """
    return _best_greedy(problem, "zb-1p", "1x")


def zb_2p(problem: Problem) -> Order:
    """ZB-2p: the greedy's best order at the problem's memory limit, 2x where it has none.

    Raises
    ------
    ScheduleConditionError
        If a rank holds more than one stage, or B and W may not stand apart.
    """
    return _best_greedy(problem, "zb-2p", "2x")


def _member(name: str, build: Callable[[Problem], Order], extra: str) -> Member:
    return Member(
        Schedule(
            name=name,
            family="zero-bubble",
            placement="linear",
            source="Zero Bubble Pipeline Parallelism, arXiv 2401.10241",
            needs=f"one stage a rank; B and W apart; {extra}",
        ),
        build,
    )


MEMBERS = (
    _member("zb-h1", zb_h1, "memory of p microbatches"),
    _member("zb-h2", zb_h2, "memory of 2p-1 microbatches"),
    _member("zb-1p", zb_1p, "keeps the memory limit, 1x where there is none"),
    _member("zb-2p", zb_2p, "keeps the memory limit, 2x where there is none"),
)
