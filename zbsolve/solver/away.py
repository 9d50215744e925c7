"""What is moved away to host memory: which stages to try, such a problem as one without the choice, and back.

For a chosen set of stages the rest of the search sees an ordinary problem, in which copies take no time: a
forward holds between its end and its backward what stays on the rank alone, and all of it while either runs.
An order of that problem, with each copy away right behind its forward and each copy back right before the
backward, is one of the problem that was asked and keeps its limits::

    folded     F0       F1       ...      B0
    moved      F0 U0 X0 F1 U1 X1 ...   L0 B0       the rank waits for every copy

What memory has room for is then taken out again, and what is left is put where the copies run beside the
computing (`zbsolve.solver.copies`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from zbsolve.metrics import memory_levels
from zbsolve.opgraph import OpGraph
from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.timetable import Order

__all__ = ["folded_away", "left_out", "may_move", "movable", "moved", "reserves", "roomier", "stay"]

_BACKWARDS = (Kind.BACKWARD, Kind.BACKWARD_INPUT)


def may_move(problem: Problem) -> bool:
    """Whether moving activations away may be of use: it is allowed, a rank has a limit, and a stage on it can."""
    return "offload" in problem.allow and not problem.forward_only and bool(movable(problem))


def movable(problem: Problem) -> tuple[int, ...]:
    """The stages of which something can be moved away, on a rank with a limit."""
    return tuple(
        stage
        for stage, cost in enumerate(problem.profile.stages)
        if cost.offloadable and any(problem.limit_bytes[rank] is not None for rank in problem.placement.holders(stage))
    )


def folded_away(problem: Problem, chosen: frozenset[int], under_way: int = 0) -> Problem:
    """The problem in which what the chosen stages can move is away between forward and backward, in no time.

    What is moved counts as workspace, which W has, too, without a need for it. With `under_way`, so many times what
    the largest of them moves stays free on each rank all the while, for copies that run beside the computing.
    """
    # scaled and rounded by itself, a sum may be a byte short of its parts
    smallest = min((Fraction(f) for f in problem.microbatch_factors or ()), default=Fraction(1))
    spare = 0 if problem.microbatch_factors is None else int(2 / smallest) + 1
    stages = []
    for stage, cost in enumerate(problem.profile.stages):
        bare = replace(cost, offload_bytes=None)
        if stage in chosen:
            stays = cost.activation_bytes - cost.offloadable
            extra = cost.workspace_bytes + cost.offloadable + spare
            bare = replace(bare, activation_bytes=stays, workspace_bytes=extra, checkpoint_bytes=None)
        stages.append(bare)
    profile = replace(problem.profile, stages=tuple(stages), host_link=None)
    allow = problem.allow - {"offload"}
    largest = [
        max((problem.profile.stages[s].offloadable for s in chosen & {*problem.placement.stages_of(rank)}), default=0)
        for rank in range(problem.placement.ranks)
    ]
    limits = tuple(
        None if limit is None else max(0, limit - under_way * size)
        for limit, size in zip(problem.limit_bytes, largest, strict=True)
    )
    return replace(problem, profile=profile, memory_limit=limits, allow=allow)


def roomier(problem: Problem, times: Fraction) -> Problem:
    """The problem without the choice, with so many times the room beside static bytes."""
    limits = tuple(
        None if limit is None else (base := problem.static_bytes(rank)) + int(times * max(0, limit - base))
        for rank, limit in enumerate(problem.limit_bytes)
    )
    profile = replace(problem.profile, host_link=None)
    return replace(problem, profile=profile, memory_limit=limits, allow=problem.allow - {"offload"})


def moved(order: Order, chosen: Sequence[int] | frozenset[int]) -> Order:
    """The order with what the chosen stages hold moved away as soon as it is there, and back when it is needed.

    What the order computes again, or moves already, stays as it is.
    """
    rows = []
    for row in order.rows:
        spared = {(op.stage, op.microbatch) for op in row if op.kind in (Kind.RECOMPUTE, Kind.OFFLOAD)}
        made: list[Op] = []
        for op in row:
            moves = op.stage in chosen and (op.stage, op.microbatch) not in spared
            if moves and op.kind in _BACKWARDS:
                made.append(Op(Kind.RELOAD, op.stage, op.microbatch))
            made.append(op)
            if moves and op.kind is Kind.FORWARD:
                made += [Op(kind, op.stage, op.microbatch) for kind in (Kind.OFFLOAD, Kind.RELEASE)]
        rows.append(tuple(made))
    return Order(tuple(rows))


def left_out(order: Order) -> Order:
    """The order with nothing moved away."""
    return Order(tuple(tuple(op for op in row if not op.kind.moves) for row in order.rows))


def reserves(problem: Problem) -> tuple[int, ...]:
    """Bytes to keep free for copies under way, when it is decided what stays: none, and room for a few microbatches."""
    largest = max((problem.profile.stages[stage].offloadable for stage in movable(problem)), default=0)
    return (0, largest, 3 * largest)


def stay(problem: Problem, order: Order, reserve: int = 0) -> Order:
    """The order without moving what may stay, the memory having room for it and so many bytes more all the while.

    What would hold it for the fewest operations is tried first. Taking copies out makes no order slower.
    """
    graph = OpGraph.build(problem, order.rows)
    rows = []
    for rank, (row, nodes) in enumerate(zip(order.rows, graph.encode(order), strict=True)):
        levels = memory_levels(graph, nodes, rank)[:, 1].copy()
        freed = {(op.stage, op.microbatch): place for place, op in enumerate(row) if op.kind is Kind.RELEASE}
        away = [
            (place - freed[op.stage, op.microbatch], place) for place, op in enumerate(row) if op.kind is Kind.RELOAD
        ]
        limit = int(graph.limit_bytes[rank]) - reserve
        stays: set[tuple[int, int | None]] = set()
        for held, place in sorted(away):
            op = row[place]
            more = int(graph.start_bytes[nodes[place]])
            # from behind the release, whose level has it still, up to the reload, whose level has it again
            if levels[place - held + 1 : place].max(initial=0) + more <= limit:
                levels[place - held + 1 : place] += more
                stays.add((op.stage, op.microbatch))
        rows.append(tuple(op for op in row if not (op.kind.moves and (op.stage, op.microbatch) in stays)))
    return Order(tuple(rows))
