"""What the schedules on a V share: the four legs of a microbatch's way, and what they cost.

Rank i of p, from the top, holds stages i and 2p - 1 - i. A microbatch goes down the ranks with
forwards and back up, then down with input gradients and back up; weight passes follow their leg:

    leg 0  F of stage i             leg 2  B of stage 2p - 1 - i
    leg 1  F of stage 2p - 1 - i    leg 3  B of stage i
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from zbsolve.catalog.schedule import backward, ordered
from zbsolve.opgraph import KINDS, Int64, OpGraph
from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.timetable import Order

__all__ = ["LegCosts", "Step", "VShape"]

Step = tuple[int, int, bool]
"""A leg, a microbatch, and whether it is the weight pass of that leg instead of the leg itself."""

_KIND_OF_LEG = (Kind.FORWARD, Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_INPUT)
_FIRST_CHUNK = (0, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class LegCosts:
    """What a greedy believes; ranks from the top of the V, times in ns, memory in bytes.

    Parameters
    ----------
    duration
        By leg and rank.
    lag
        By leg and rank: from the operation that this one follows, as the microbatch goes.
    weight
        By leg and rank: the weight pass that goes with a backward leg; 0 on the others.
    activation, kept
        By leg and rank: what a forward leg holds from its start, what a backward leg leaves at its end and its
        weight pass frees, 0 on the others; a backward leg also frees what its forward leg held.
    room
        The memory limit of each rank, net of all that is always there.
    """

    duration: Sequence[Sequence[int]]
    lag: Sequence[Sequence[int]]
    weight: Sequence[Sequence[int]]
    activation: Sequence[Sequence[int]]
    kept: Sequence[Sequence[int]]
    room: Sequence[int]

    def levelled(self, level: Callable[[list[int]], int]) -> LegCosts:
        """All chunks as long as `level` says of them together, for each kind."""
        ranks, none = len(self.room), [0] * len(self.room)
        f, b = ([level([v for leg in legs for v in self.duration[leg]])] * ranks for legs in ((0, 1), (2, 3)))
        w = [level([v for leg in (2, 3) for v in self.weight[leg]])] * ranks
        return replace(self, duration=[f, f, b, b], weight=[none, none, w, w])


@dataclass(frozen=True, slots=True)
class VShape:
    """The ranks of a V from its top to its turn."""

    down: tuple[int, ...]

    def stage(self, leg: int, place: int) -> int:
        """The stage that the rank at a place runs on a leg."""
        return place if leg in _FIRST_CHUNK else 2 * len(self.down) - 1 - place

    def source(self, leg: int, place: int) -> tuple[int, int] | None:
        """Leg and place of the operation that one follows, as the microbatch goes; None for the first of all."""
        if leg in (0, 2):
            before = (leg, place - 1) if place else (leg - 1, place)
        else:
            before = (leg, place + 1) if place < len(self.down) - 1 else (leg - 1, place)
        return before if before[0] >= 0 else None

    def sources(self) -> list[list[tuple[int, int] | None]]:
        """The same for all, by leg and place."""
        return [[self.source(leg, place) for place in range(len(self.down))] for leg in range(4)]

    def order(self, problem: Problem, rows: Sequence[Sequence[Step]], *, whole: bool = False) -> Order:
        """The order with these rows; `whole` if a backward leg does B and W together."""

        def ops(place: int) -> list[Op]:
            row: list[Op] = []
            for leg, microbatch, weight in rows[place]:
                stage = self.stage(leg, place)
                if whole and leg >= 2:
                    row += backward(problem, stage, microbatch)
                else:
                    row.append(Op(Kind.BACKWARD_WEIGHT if weight else _KIND_OF_LEG[leg], stage, microbatch))
            return row

        return ordered(problem, {rank: ops(place) for place, rank in enumerate(self.down)})

    def nodes(self, graph: OpGraph) -> list[dict[Step, int]]:
        """By place the node of each of its steps, B and W apart."""
        of = {
            key: node
            for node, key in enumerate(
                zip(graph.kind.tolist(), graph.stage.tolist(), graph.microbatch.tolist(), strict=True)
            )
        }
        weight = KINDS.index(Kind.BACKWARD_WEIGHT)
        steps: list[dict[Step, int]] = []
        for place in range(len(self.down)):
            mine: dict[Step, int] = {}
            for leg, kind in enumerate(_KIND_OF_LEG):
                stage, number = self.stage(leg, place), KINDS.index(kind)
                for microbatch in range(graph.problem.microbatches):
                    mine[leg, microbatch, False] = of[number, stage, microbatch]
                    if leg >= 2:
                        mine[leg, microbatch, True] = of[weight, stage, microbatch]
            steps.append(mine)
        return steps

    def costs(self, graph: OpGraph) -> LegCosts:
        """One figure a stage: the median duration over its microbatches, and the most bytes and lag."""
        stages, microbatches = graph.problem.placement.stages, graph.problem.microbatches
        nodes = np.empty((len(KINDS), stages, microbatches), dtype=np.int64)
        nodes[graph.kind, graph.stage, graph.microbatch] = np.arange(len(graph))
        kinds = (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
        forward, backward_input, weight = (nodes[KINDS.index(kind)] for kind in kinds)
        lag = np.zeros(len(graph), dtype=np.int64)
        np.maximum.at(lag, graph.arc_head, graph.arc_lag_ns)

        def by_leg(*figures: Sequence[int] | None) -> list[list[int]]:
            return [
                [0 if of is None else of[self.stage(leg, place)] for place in range(len(self.down))]
                for leg, of in enumerate(figures)
            ]

        def median(of: Int64) -> list[int]:
            middle: list[int] = np.sort(graph.duration_ns[of], axis=1)[:, microbatches // 2].tolist()
            return middle

        def most(of: Int64, values: Int64) -> list[int]:
            largest: list[int] = values[of].max(axis=1).tolist()
            return largest

        change = graph.start_bytes + graph.end_bytes
        held, left, workspace = most(forward, change), most(weight, -change), most(weight, graph.start_bytes)
        free = (graph.limit_bytes - graph.base_bytes)[list(self.down)].tolist()
        f, b, w = median(forward), median(backward_input), median(weight)
        down, up = most(forward, lag), most(backward_input, lag)
        return LegCosts(
            duration=by_leg(f, f, b, b),
            lag=by_leg(down, down, up, up),
            weight=by_leg(None, None, w, w),
            activation=by_leg(held, held, None, None),
            kept=by_leg(None, None, left, left),
            room=[room - max(a, b) for room, a, b in zip(free, *by_leg(workspace, workspace), strict=True)],
        )
