"""A pipeline reduced to what a relaxation reads, with times in units that lose little.

A relaxation must hold for every choice of split and fused backwards. Both are replaced by one that
is no worse than either: its gradient is there as early as the earlier of the two, its whole work is
the lesser of the two, what it leaves for later is no more than W, and the bytes it keeps until then
are no more than either holds there. A timetable of the problem becomes one of this line when B and W
are put in place of what stood there; nothing gets longer, nothing later, no byte more.

Rounding. All durations and lags are rounded down to multiples of a unit u. Take the times of a
timetable, divide them by u and round them down as well: x_j >= x_i + d with a whole d on the right
stays true, so the order of every row, all waits and the memory along the rows do. A span that is
counted from time 0 is rounded down; any other may come out one unit too long. So the line has a
timetable in whole units in which the span of one chosen rank is at most floor(value / u), and the
spans of the others at most one more; u times a bound of that is a bound of the value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from zbsolve.bounds.costs import Costs, read_costs
from zbsolve.bounds.single import SingleRank, visits
from zbsolve.problem import Problem

__all__ = ["Line", "LineStage", "exact_unit", "good_unit", "read_line", "reads"]

_LARGEST = 2**45

FINEST = 30_000
"""The most units of the value if nothing is rounded; more digits sink CP-SAT."""

_COARSEST, _FINE = 3_000, 15_000
"""Between these many units of the value a unit is looked for that rounds little off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineStage:
    """One stage of the line as the microbatches of one route see it; times in units, memory in bytes.

    Parameters
    ----------
    forward, gradient, weight
        Durations of F, of the least way to the input gradient, and of what then remains.
    held, keep
        Bytes from the start of F to the end of B, and from there to the end of W (where keep is
        more than held, from the start of B).
    room
        Memory for them.
    in_flight
        K: the most microbatches between start of F and end of B.
    down, up
        Lags of an output to the next rank and of its gradient back; 0 for the last rank.
    head, tail
        Least time before the first F and after the last gradient, spent on other ranks.
    after
        What follows all of it on the rank, the reduction of its gradients and the optimizer.
    rank, route
        Where it runs, and which route it is on.
    microbatches
        How many come by.
    """

    forward: int
    gradient: int
    weight: int
    held: int
    keep: int
    room: int
    in_flight: int
    down: int
    up: int
    head: int
    tail: int
    after: int = 0
    rank: int = 0
    route: int = 0
    microbatches: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Stages in the order in which a microbatch comes by them, route after route.

    Parameters
    ----------
    stages
        Of all routes.
    microbatches
        m.
    makespan
        Whether the value is the makespan instead of the period.
    unit_ns
        What one unit of time is.
    """

    stages: tuple[LineStage, ...]
    microbatches: int
    makespan: bool
    unit_ns: int

    @property
    def routes(self) -> int:
        """How many routes there are."""
        return len({stage.route for stage in self.stages})

    @property
    def single(self) -> bool:
        """Whether every rank runs one stage, on one route."""
        return len({stage.rank for stage in self.stages}) == len(self.stages)

    def down(self, a: int, b: int) -> int:
        """Least time from the start of F of stage a to that of stage b of the same route."""
        return sum(r.forward + r.down for r in self.stages[a:b])

    def up(self, b: int, a: int) -> int:
        """Least time from the start of the backward of stage b to that of stage a of the same route."""
        return sum(self.stages[k + 1].gradient + self.stages[k].up for k in range(a, b))

    def last(self, a: int) -> int:
        """The last stage of the route that stage a is on."""
        route = self.stages[a].route
        return max(s for s, stage in enumerate(self.stages) if stage.route == route)

    def turn(self, a: int) -> int:
        """L: least time from the start of F to the start of the backward of stage a."""
        last = self.last(a)
        return self.down(a, last) + self.stages[last].forward + self.up(last, a)

    @property
    def serial(self) -> int:
        """What one microbatch after the other takes: no more is needed by any line that fits its memory.

        Each gradient is followed at once by its W, beside which earlier ranks go on; with several chunks they
        may be the same rank, so that every W is waited for.
        """
        after = max(r.after for r in self.stages)
        total = 0
        for first, stage in enumerate(self.stages):
            if first and self.stages[first - 1].route == stage.route:
                continue
            weights = [r.weight for r in self.stages if r.route == stage.route]
            weight = max(weights) if self.single else sum(weights)
            total += stage.microbatches * (self.turn(first) + stage.gradient + weight)
        return total + (after if self.single else sum(r.after for r in self.stages))

    @property
    def handy(self) -> bool:
        """Whether sums of its times are far from what CP-SAT cannot hold."""
        return self.serial < _LARGEST


def reads(problem: Problem) -> bool:
    """Whether the relaxations apply: a backward after each forward, and the first route comes by every rank."""
    placement, taken = problem.placement, problem.route_of
    assert taken is not None
    return not problem.forward_only and 0 in taken and len(set(placement.routes[0])) == placement.ranks


def read_line(problem: Problem, unit_ns: int) -> Line:
    """The line of a problem.

    Raises
    ------
    ProblemError
        If durations or bytes of the iteration exceed 2^62.
    """
    costs = read_costs(problem)
    return Line(
        stages=tuple(_line_stage(stage, unit_ns) for stage in visits(costs)),
        microbatches=problem.microbatches,
        makespan=problem.objective == "makespan",
        unit_ns=unit_ns,
    )


def _line_stage(rank: SingleRank, unit: int) -> LineStage:
    keep = 0 if rank.split is None else rank.split[2] if rank.fused is None else min(rank.held, rank.split[2])
    return LineStage(
        forward=rank.forward // unit,
        gradient=rank.gradient // unit,
        weight=_weight(rank) // unit,
        held=rank.held,
        keep=keep,
        room=rank.room,
        in_flight=rank.in_flight,
        down=rank.down // unit,
        up=rank.up // unit,
        head=rank.head // unit,
        tail=rank.tail // unit,
        after=rank.after // unit,
        rank=rank.number,
        route=rank.route,
        microbatches=rank.microbatches,
    )


def _weight(rank: SingleRank) -> int:
    """What remains after the gradient: never more than W, and with the gradient never more than the least backward."""
    return 0 if rank.split is None else min(rank.backward - rank.gradient, rank.split[1])


def _times(costs: Costs) -> list[tuple[int, int]]:
    """The times that a line rounds, each with how often it lies on the longest way down and back."""
    ranks = visits(costs)
    times = []
    for rank in ranks:
        times += [(rank.forward, 1), (rank.gradient, 1), (_weight(rank), 1), (rank.down, 1), (rank.up, 1)]
        times += [(rank.after, 1)]
    return [(time, weight) for time, weight in times if time]


def exact_unit(problem: Problem) -> int:
    """The greatest unit that rounds nothing off, in ns."""
    return max(1, math.gcd(*(time for time, _ in _times(read_costs(problem)))))


def good_unit(problem: Problem, value_ns: int) -> int:
    """A unit in which the value has few digits and little is rounded off; deterministic."""
    exact = exact_unit(problem)
    if value_ns <= FINEST * exact:
        return exact
    times = _times(read_costs(problem))
    low, high = max(1, value_ns // _FINE // exact), max(1, value_ns // _COARSEST // exact)
    candidates = range(low, high + 1, max(1, (high - low) // 3_000))
    return exact * min(candidates, key=lambda u: (_lost(times, exact * u), -u))


def _lost(times: Sequence[tuple[int, int]], unit: int) -> int:
    return sum(weight * (time % unit) for time, weight in times)
