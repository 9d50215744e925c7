"""1F1B-V, V-Half, V-Min: schedules on a V that hold a chosen share of 1F1B's memory (arXiv 2405.15362).

A rank of a V holds one chunk that waits long for its gradient and one that waits briefly, so all
ranks hold about the same, and less in all the faster a microbatch is through. The blocks below
differ in how fast that is: V-Min as fast as it can be, V-Half slow enough that real costs, which
are never all equal, leave no bubble in the steady part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations

from zbsolve.catalog.building_block import INTERVAL, Block, reordered
from zbsolve.catalog.conditions import require_split, require_v
from zbsolve.catalog.schedule import Member, Schedule
from zbsolve.catalog.v_shape import VShape
from zbsolve.catalog.weight_passes import gradients_first, late_weights
from zbsolve.opgraph import OpGraph
from zbsolve.problem import Problem
from zbsolve.simulate import Timer
from zbsolve.timetable import Order

__all__ = ["MEMBERS"]

Legs = tuple[int, ...]


def _half(ranks: int, i: int) -> Legs:
    shift = 0 if ranks % 2 else 3
    return 2 * i, 3 * ranks - i - 2, 3 * ranks + shift + 2 * i - 1, 6 * ranks + shift - i - 2


def _min(ranks: int, i: int) -> Legs:
    shift = 0 if ranks % 3 else 2
    return i, 2 * ranks - i - 1, 2 * ranks + shift + i, 4 * ranks + shift - i - 1


def _with_weights(legs: tuple[Legs, ...]) -> Iterator[Block]:
    """The block with its weight passes in the units that the legs leave free, each after its B; both ways round."""
    ways: list[list[Legs]] = [[], []]
    for starts in legs:
        free = [unit for unit in range(INTERVAL) if unit not in {start % INTERVAL for start in starts}]
        found = [
            tuple(b + 1 + (unit - b - 1) % INTERVAL for b, unit in zip(starts[2:], units, strict=True))
            for units in permutations(free)
        ]
        for way, weights in zip(ways, sorted(found, key=lambda w: (sum(w), w)), strict=True):
            way.append(weights)
    for way in ways:
        yield Block(legs, tuple(way))


def _split(problem: Problem, name: str, block_of: Callable[[int, int], Legs], microbatches_held: int) -> Order:
    """The best of the orders that a block gives within its memory, timed on the costs."""
    shape = VShape(require_v(problem, name))
    ranks, peak = len(shape.down), 2 * microbatches_held
    graph = OpGraph.build(problem)
    costs = shape.costs(graph)
    orders: dict[Order, int] = {}
    for block in _with_weights(tuple(block_of(ranks, i) for i in range(ranks))):
        if block.peak > peak:
            continue
        rows = reordered(block, problem.microbatches, peak)
        hurried = gradients_first(rows, costs)
        for candidate in (rows, late_weights(rows, costs, peak), hurried, late_weights(hurried, costs, peak)):
            order = shape.order(problem, candidate)
            if order not in orders:
                timer = Timer(graph, graph.encode(order))
                orders[order] = (timer.period() if problem.objective == "period" else timer.makespan()).value_ns
    return min(orders, key=orders.__getitem__)


def v_half(problem: Problem) -> Order:
    """V-Half: the memory of (p+2)//2 microbatches, about half of 1F1B's.

    No bubble in the steady part at equal stages where W + 2B >= 2F and W + 2F >= 2B.

    Raises
    ------
    ScheduleConditionError
        If the placement is no V, or B and W may not stand apart.
    """
    require_split(problem, "v-half")
    return _split(problem, "v-half", _half, (problem.placement.ranks + 2) // 2)


def v_min(problem: Problem) -> Order:
    """V-Min: the memory of (p+4)//3 microbatches, about a third of 1F1B's.

    No bubble in the steady part at F = B = W; with other costs there is one.

    Raises
    ------
    ScheduleConditionError
        If the placement is no V, or B and W may not stand apart.
    """
    require_split(problem, "v-min")
    return _split(problem, "v-min", _min, (problem.placement.ranks + 4) // 3)


def _whole_block(ranks: int) -> Block:
    """Forwards without a pause; whole backwards as early as no two operations of a rank ever meet.

    The forwards leave two pairs of neighbouring units on every rank, one for each backward. So a
    backward goes two units a rank, and waits for its pair after every third.
    """
    legs = [[i, 2 * ranks - 1 - i] for i in range(ranks)]
    at = 2 * ranks
    for starts in legs:
        pairs = _pairs_left(starts)
        while at % INTERVAL not in pairs:
            at += 1
        starts.append(at)
        at += 2
    for starts in reversed(legs):
        (pair,) = (pair for pair in _pairs_left(starts[:2]) if pair != starts[2] % INTERVAL)
        at += (pair - at) % INTERVAL
        starts.append(at)
        at += 2
    return Block(tuple(tuple(starts) for starts in legs))


def _pairs_left(forwards: list[int]) -> tuple[int, ...]:
    """The first units of the two pairs that two forwards, an odd number of units apart, leave in an interval."""
    a, b = (start % INTERVAL for start in forwards)
    if (b - a) % INTERVAL == 5:
        a, b = b, a
    if (b - a) % INTERVAL == 1:
        return ((b + 1) % INTERVAL, (b + 3) % INTERVAL)
    return ((a + 1) % INTERVAL, (b + 1) % INTERVAL)


def one_f_one_b_v(problem: Problem) -> Order:
    """1F1B on a V, backwards whole: the memory of 2p//3 + 1 microbatches, and less bubble at F = B = W.

    The order does not look at costs; no bubble in the steady part at equal stages where B+W >= 2F.

    Raises
    ------
    ScheduleConditionError
        If the placement is no V.
    """
    shape = VShape(require_v(problem, "1f1b-v"))
    block = _whole_block(len(shape.down))
    return shape.order(problem, reordered(block, problem.microbatches, block.peak), whole=True)


def _member(name: str, build: Callable[[Problem], Order], needs: str) -> Member:
    return Member(
        Schedule(
            name=name,
            family="controllable-memory",
            placement="v",
            source="Pipeline Parallelism with Controllable Memory, arXiv 2405.15362",
            needs=needs,
        ),
        build,
    )


MEMBERS = (
    _member("1f1b-v", one_f_one_b_v, "a V; memory of 2p//3 + 1 microbatches"),
    _member("v-half", v_half, "a V; B and W apart; memory of (p+2)//2 microbatches"),
    _member("v-min", v_min, "a V; B and W apart; memory of (p+4)//3 microbatches"),
)
