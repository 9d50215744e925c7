"""1F1B-V, V-Half, V-Min and the blocks between them: a V with a chosen share of 1F1B's memory (arXiv 2405.15362).

A rank of a V holds one chunk that waits long for its gradient and one that waits briefly, so all
ranks hold about the same, and less in all the faster a microbatch is through. The blocks below
differ in how fast that is: V-Min as fast as it can be, V-Half slow enough that real costs, which
are never all equal, leave no bubble in the steady part. Between them lie blocks in which some of the ranks go
slowly: `v_block` takes the best of these for a memory limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import permutations

import numpy as np

from zbsolve.catalog.building_block import INTERVAL, Block, reordered
from zbsolve.catalog.conditions import require_split, require_v
from zbsolve.catalog.schedule import Member, Schedule
from zbsolve.catalog.v_shape import Step, VShape
from zbsolve.catalog.weight_passes import gradients_first, late_weights
from zbsolve.errors import ScheduleConditionError
from zbsolve.metrics import peak_bytes
from zbsolve.opgraph import Int32, OpGraph
from zbsolve.problem import Problem
from zbsolve.simulate import Timer
from zbsolve.timetable import Order

__all__ = ["MEMBERS", "family"]

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


def _blocks(block_of: Callable[[int, int], Legs], ranks: int, peak: int) -> list[Block]:
    """A published block with its weight passes, as far as it holds no more than its peak."""
    blocks = _with_weights(tuple(block_of(ranks, i) for i in range(ranks)))
    return [block for block in blocks if block.peak <= peak]


def _split(problem: Problem, name: str, block_of: Callable[[int, int], Legs], microbatches_held: int) -> Order:
    """The best of the orders that a block gives within its memory, timed on the costs."""
    peak, ranks = 2 * microbatches_held, len(require_v(problem, name))
    player = _Player(OpGraph.build(problem), VShape(require_v(problem, name)))
    for block in _blocks(block_of, ranks, peak):
        player.play(block, peak)
    assert player.best is not None
    return player.best


class _Player:
    """Plays blocks on the costs of a problem and keeps the best order; of equals the first.

    Orders stay rows of nodes, and of those met before nothing is timed again.

    Parameters
    ----------
    graph, shape
        The problem's.
    within_limits
        Whether orders beyond the memory limits are passed over.
    """

    def __init__(self, graph: OpGraph, shape: VShape, *, within_limits: bool = False) -> None:
        self._graph, self._shape = graph, shape
        self._within_limits = within_limits
        self._costs = shape.costs(graph)
        self._limits = graph.limit_bytes.tolist()
        self._nodes = shape.nodes(graph)
        self._met: set[tuple[tuple[int, ...], ...]] = set()
        self._value: int | None = None
        self._rows: list[Int32] = []

    def play(self, block: Block, peak: int) -> None:
        """The block as it is, with gradients ahead of weight passes, with late weight passes, and with both."""
        costs = self._costs
        rows = reordered(block, self._graph.problem.microbatches, peak)
        hurried = gradients_first(rows, costs)
        for each in [rows] if hurried == rows else [rows, hurried]:
            self._take(each)
            self._take(late_weights(each, costs, peak))

    def _take(self, candidate: Sequence[Sequence[Step]]) -> None:
        numbered = tuple(tuple([of[step] for step in row]) for of, row in zip(self._nodes, candidate, strict=True))
        if numbered in self._met:
            return
        self._met.add(numbered)
        graph, down = self._graph, self._shape.down
        rows = [np.empty(0, dtype=np.int32)] * graph.ranks
        for rank, row in zip(down, numbered, strict=True):
            rows[rank] = np.asarray(row, dtype=np.int32)
        peaks = peak_bytes(graph, tuple(rows)) if self._within_limits else ()
        if any(peak > most for peak, most in zip(peaks, self._limits, strict=False)):
            return
        timer = Timer(graph, rows)
        value = (timer.period() if graph.problem.objective == "period" else timer.makespan()).value_ns
        if self._value is None or value < self._value:
            self._value, self._rows = value, rows

    @property
    def best(self) -> Order | None:
        """The best order so far; None if there is none."""
        return None if self._value is None else self._graph.decode(self._rows)


def family(ranks: int) -> tuple[Block, ...]:
    """The blocks from V-Min to V-Half and a little beyond, each once, the least memory first.

    A block is told by two numbers. On the way down with F's and on the way down with gradients a microbatch waits
    one unit before each of the ranks 1..k, as in V-Half before all and in V-Min before none; on the first rank
    it waits d units, 0 to 3, for its way down again. Everything else follows at once, or in the first unit
    after that which no other operation of the rank takes in any interval.
    """
    blocks: dict[Block, None] = {}
    for slow in range(ranks):
        for wait in range(4):
            legs = _walk(ranks, slow, wait)
            for block in _with_weights(legs):
                blocks[block] = None
    return tuple(sorted(blocks, key=lambda block: block.peak))


def _walk(ranks: int, slow: int, wait: int) -> tuple[Legs, ...]:
    """By rank the units of the four legs of a microbatch that goes on as soon as it may."""
    starts: list[list[int]] = [[] for _ in range(ranks)]
    at = 0
    for leg in range(4):
        down = leg % 2 == 0
        for place in range(ranks) if down else reversed(range(ranks)):
            if down and place:
                at += place <= slow
            elif leg == 2:
                at += wait
            while at % INTERVAL in {start % INTERVAL for start in starts[place]}:
                at += 1
            starts[place].append(at)
            at += 1
    return tuple(tuple(legs) for legs in starts)


_TRIED, _TRIED_OPERATIONS = 8, 9_000
"""Blocks that are played for a problem, those that hold the most first, and the operations in all of them together;
the two of the paper come on top."""


def v_block(problem: Problem) -> Order:
    """The block between V-Min and V-Half that takes the least time within the memory limit, timed on the costs.

    Without a limit it is that of V-Half, the memory of (p+2)//2 microbatches. The blocks are those of `family`; a
    block holds at most its own peak however many microbatches there are. V-Min and V-Half are among those tried, so
    where one of them fits this is never slower.

    Raises
    ------
    ScheduleConditionError
        If the placement is no V, B and W may not stand apart, or not even the least block fits the limit.
    """
    require_split(problem, "v-block")
    ranks = len(require_v(problem, "v-block"))
    graph = OpGraph.build(problem)
    half, least = (ranks + 2) // 2, (ranks + 4) // 3
    most = _chunks_that_fit(graph, half)
    player = _Player(graph, VShape(require_v(problem, "v-block")), within_limits=True)
    for block_of, held in ((_min, least), (_half, half)):
        if 2 * held <= most:
            for block in _blocks(block_of, ranks, 2 * held):
                player.play(block, 2 * held)
    blocks = [block for block in family(ranks) if block.peak <= most]
    tried = max(1, min(_TRIED, _TRIED_OPERATIONS // len(graph)))
    for block in blocks[: -tried - 1 : -1]:
        player.play(block, block.peak)
    if player.best is None:
        raise ScheduleConditionError(
            f"v-block needs the memory of {least} microbatches, as V-Min does, on every rank; the limit leaves room "
            f"for {most} chunks, two of them a microbatch; raise the memory limit, or use another schedule"
        )
    return player.best


def _chunks_that_fit(graph: OpGraph, default: int) -> int:
    """Chunks that the rank with the least room can hold; twice the default where no rank has a limit."""
    problem = graph.problem
    rooms = []
    for rank, limit in enumerate(problem.limit_bytes):
        if limit is None:
            continue
        mine = graph.rank == rank
        change = graph.start_bytes[mine] + graph.end_bytes[mine]
        # what a chunk holds until its W, at most: some hold less once their B is over, and more of them may fit
        largest = int(np.abs(change).max())
        room = limit - int(graph.base_bytes[rank])
        rooms.append(room // largest if largest else 2 * problem.microbatches)
    return min(rooms, default=2 * default)


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
    _member(
        "v-block",
        v_block,
        "a V; B and W apart; the best of the blocks from V-Min to V-Half that keeps the memory limit (without one: "
        "that of V-Half), which must hold (p+4)//3 microbatches",
    ),
    _member("v-min", v_min, "a V; B and W apart; memory of (p+4)//3 microbatches"),
)
