"""Tiny problems whose microbatches are slices of sequences, and their optima by trying every order.

The rule is said here once more, rank by rank, in words of its own; times and memory come from the simulator
and the judge.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator

from zbsolve.check import peaks
from zbsolve.errors import OrderError
from zbsolve.opgraph import OpGraph
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Link, Profile, StageCost
from zbsolve.simulate import Timer
from zbsolve.timetable import Order

SHAPES = (
    # ranks, placement, sequences, slices, backwards
    (1, "linear", 2, 2, "fused"),
    (2, "linear", 2, 2, "fused"),
    (2, "linear", 1, 3, "split"),
    (3, "linear", 1, 2, "split"),
    (2, "linear", 1, 3, "fused"),
    (2, "v", 1, 2, "fused"),
    (1, "v", 1, 2, "fused"),
)


def tiny(rng: random.Random, *, equal: bool = False, shape: tuple[int, str, int, int, str] | None = None) -> Problem:
    """A random problem of one of the shapes, with and without a limit; with `equal` slices cost the same."""
    ranks, name, sequences, slices, backwards = rng.choice(SHAPES) if shape is None else shape
    placement = Placement.linear(ranks) if name == "linear" else Placement.v(ranks)
    stages = tuple(
        StageCost(
            forward_ns=rng.randint(1, 6),
            backward_input_ns=rng.randint(1, 6),
            backward_weight_ns=rng.randint(0, 6),
            activation_bytes=rng.randint(0, 4),
            backward_weight_bytes=rng.randint(0, 5),
            workspace_bytes=rng.choice((0, 0, 2)),
            static_bytes=rng.choice((0, 3)),
            output_bytes=rng.randint(0, 4),
        )
        for _ in range(placement.stages)
    )
    # under causal attention later slices cost more
    factors = (1,) * slices if equal else tuple(rng.choice((1, "1.5", 2)) for _ in range(slices))
    return Problem(
        profile=Profile(stages=stages, link=_link(rng)),
        placement=placement,
        microbatches=sequences * slices,
        slices=slices,
        objective=rng.choice(("period", "makespan")),
        allow=frozenset({backwards}),
        microbatch_factors=factors * sequences,
    )


def _link(rng: random.Random) -> Link:
    latency, queueing = rng.choice((0, 0, 2)), rng.choice((None, None, "link", "sender"))
    return Link(latency_ns=latency, bytes_per_second=10**9 if queueing else None, queueing=queueing)


def needs(problem: Problem, op: Op) -> Iterator[tuple[str, int, int]]:
    """What comes before an operation, as (part, stage, microbatch), whichever rank it is on."""
    s, j = op.stage, op.microbatch
    place = j % problem.slices
    if op.kind is Kind.FORWARD:
        yield from [("F", s - 1, j)] if s else []
        yield from [("F", s, j - 1)] if place else []
    elif op.kind is Kind.BACKWARD_WEIGHT:
        yield "B", s, j
    else:
        yield "F", s, j
        yield from [("B", s + 1, j)] if s < problem.placement.stages - 1 else []
        yield from [("B", s, j + 1)] if place < problem.slices - 1 else []


def _part(op: Op) -> tuple[str, int, int]:
    return {"F": "F", "B": "B", "BW": "B", "W": "W"}[op.kind.letter], op.stage, op.microbatch


def rows_of(problem: Problem, rank: int) -> list[tuple[Op, ...]]:
    """Every row of a rank that does not wait for itself, directly or through other stages."""
    everything = [op for row in problem.operations() for op in row]
    before = {_part(op): set(needs(problem, op)) for op in everything}
    for _ in everything:  # what is needed by what is needed
        for part, needed in before.items():
            before[part] = needed.union(*(before[other] for other in needed))
    mine = [op for op in everything if problem.rank_of(op) == rank]
    known = {_part(op) for op in mine}

    def grow(row: tuple[Op, ...], done: frozenset[tuple[str, int, int]]) -> Iterator[tuple[Op, ...]]:
        if len(row) == len(mine):
            yield row
        for op in mine:
            if _part(op) not in done and (before[_part(op)] & known) <= done:
                yield from grow((*row, op), done | {_part(op)})

    return list(grow((), frozenset()))


@functools.cache
def every_order(problem: Problem) -> tuple[tuple[Order, int, tuple[int, ...]], ...]:
    """Every order that can end, with its value and its peaks."""
    found = []
    graph = OpGraph.build(problem)
    for rows in itertools.product(*(rows_of(problem, rank) for rank in range(problem.placement.ranks))):
        order = Order(rows)
        try:
            timer = Timer(graph, graph.encode(order))
        except OrderError:
            continue
        times = timer.period() if problem.objective == "period" else timer.makespan()
        found.append((order, times.value_ns, peaks(problem, order)))
    return tuple(found)


def optimum(problem: Problem, limits: tuple[int | None, ...]) -> int | None:
    """The least value of all orders within limits."""
    fitting = [
        value
        for _, value, held in every_order(problem)
        if all(limit is None or peak <= limit for peak, limit in zip(held, limits, strict=True))
    ]
    return min(fitting, default=None)
