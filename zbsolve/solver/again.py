"""What is computed again: which stages to try, such a problem as one without the choice, and back.

For a chosen set of stages the rest of the search sees an ordinary problem: a forward holds its
checkpoint, and the backward takes what computing the forward again takes as well, with room for all that
it brings back::

    asked     F0 ....... C0 B0 ......      C0: the forward of stage 0 again
    folded    F0 ....... [B0   ] ....      takes C + B, holds the checkpoint until then

An order of the folded problem, with C put before each such backward, is one of the problem that was asked: C
need not wait for the gradient, so it is never slower; how much memory it needs, see `folded`. What the memory
has room for after all is then taken out again, microbatch by microbatch.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from zbsolve.metrics import memory_levels
from zbsolve.opgraph import OpGraph
from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.timetable import Order

__all__ = ["choices", "folded", "may_gain", "neighbours", "readings", "stripped", "thinned", "unfolded"]

_IN_FLIGHT = (Fraction(1, 2), Fraction(1), Fraction(2))
"""Shares of the microbatches that 1F1B has in flight, for which room is made."""

_BACKWARDS = (Kind.BACKWARD, Kind.BACKWARD_INPUT)


def may_gain(problem: Problem) -> bool:
    """Whether computing a forward again may be of use: it is allowed, a rank has a limit, and a stage on it saves."""
    if "recompute" not in problem.allow or problem.forward_only:
        return False
    return bool(_saving(problem))


def _saving(problem: Problem) -> list[int]:
    """The stages whose checkpoint is smaller than what the forward holds, on a rank with a limit."""
    return [
        stage
        for stage, cost in enumerate(problem.profile.stages)
        if cost.checkpoint < cost.activation_bytes
        and any(problem.limit_bytes[rank] is not None for rank in problem.placement.holders(stage))
    ]


def choices(problem: Problem) -> tuple[frozenset[int], ...]:
    """Sets of stages to try, the smallest first: none, the fewest that make room on each rank, all that save."""
    found = [frozenset[int]()]
    found += [_fewest(problem, share) for share in _IN_FLIGHT]
    found.append(frozenset(_saving(problem)))
    return tuple(sorted(set(found), key=lambda chosen: (len(chosen), sorted(chosen))))


def _fewest(problem: Problem, share: Fraction) -> frozenset[int]:
    """On each rank the fewest stages, those that save most first, with which so many microbatches find room."""
    stages = problem.placement.stages
    saving = set(_saving(problem))
    chosen: set[int] = set()
    for rank, limit in enumerate(problem.limit_bytes):
        if limit is None:
            continue
        own = problem.placement.stages_of(rank)
        costs = {stage: problem.profile.stages[stage] for stage in own}
        in_flight = {
            stage: max(
                1, min(problem.microbatches, -int(-share * problem.placement.ranks * (stages - stage) // stages))
            )
            for stage in own
        }
        need = problem.static_bytes(rank) + max((c.workspace_bytes for c in costs.values()), default=0)
        need += sum(in_flight[stage] * costs[stage].activation_bytes for stage in own)
        gain = {
            stage: (in_flight[stage] - 1) * (costs[stage].activation_bytes - costs[stage].checkpoint)
            for stage in own
            if stage in saving
        }
        for stage in sorted(gain, key=lambda stage: (-gain[stage], costs[stage].recomputing_ns, stage)):
            if need <= limit:
                break
            need -= gain[stage]
            chosen.add(stage)
    return frozenset(chosen)


def neighbours(problem: Problem, chosen: frozenset[int]) -> tuple[frozenset[int], ...]:
    """The sets with one stage more or less, what is dearest to compute again left out first."""
    dear = sorted(_saving(problem), key=lambda stage: -problem.profile.stages[stage].recomputing_ns)
    less = [chosen - {stage} for stage in dear if stage in chosen]
    more = [chosen | {stage} for stage in reversed(dear) if stage not in chosen]
    return (*less, *more)


def readings(problem: Problem, chosen: frozenset[int]) -> tuple[Kind, ...]:
    """The backwards for which `folded` has to be asked, so that one of them counts the bytes of each exactly."""
    if "split" not in problem.allow:
        return (Kind.BACKWARD,)
    costs = (problem.profile.stages[stage] for stage in chosen)
    if "fused" not in problem.allow or all(c.backward_weight_bytes <= c.checkpoint for c in costs):
        return (Kind.BACKWARD_INPUT,)
    return (Kind.BACKWARD_INPUT, Kind.BACKWARD)


def folded(problem: Problem, chosen: frozenset[int], reading: Kind) -> Problem:
    """The problem in which the chosen stages are computed again within their backwards, and no others.

    What comes back with the backward is counted as workspace, which the forward has, too; the backward
    that follows needs as much. A split one takes what it leaves for W at its start, in the place of some of
    that; a fused one does not. So `reading` says which of the two is counted exactly. Read for the split one,
    the other may need more than it says; read for the fused one, the other needs less.
    """
    # scaled and rounded by itself, a sum may be a byte short of its parts
    smallest = min((Fraction(f) for f in problem.microbatch_factors or ()), default=Fraction(1))
    spare = 0 if problem.microbatch_factors is None else int(2 / smallest) + 1
    stages = []
    for stage, cost in enumerate(problem.profile.stages):
        bare = replace(cost, recompute_ns=None, checkpoint_bytes=None)
        if stage in chosen:
            again, left = cost.recomputing_ns, cost.backward_weight_bytes
            back = cost.activation_bytes - cost.checkpoint
            if reading is Kind.BACKWARD_INPUT:
                back = max(cost.activation_bytes, left) - max(cost.checkpoint, left)
            bare = replace(
                bare,
                backward_input_ns=cost.backward_input_ns + again,
                backward_ns=cost.backward_ns + again,
                activation_bytes=cost.checkpoint,
                offload_bytes=None,
                workspace_bytes=cost.workspace_bytes + back + spare,
            )
        stages.append(bare)
    return replace(
        problem,
        profile=replace(problem.profile, stages=tuple(stages)),
        memory_limit=problem.limit_bytes,
        allow=problem.allow - {"recompute"},
    )


def unfolded(order: Order, chosen: frozenset[int]) -> Order:
    """The order of a folded problem with its forwards computed again, each right before its backward."""
    rows = []
    for row in order.rows:
        made: list[Op] = []
        for op in row:
            if op.stage in chosen and op.kind in _BACKWARDS:
                made.append(Op(Kind.RECOMPUTE, op.stage, op.microbatch))
            made.append(op)
        rows.append(tuple(made))
    return Order(tuple(rows))


def stripped(order: Order) -> Order:
    """The order with nothing computed again."""
    return Order(tuple(tuple(op for op in row if op.kind is not Kind.RECOMPUTE) for row in order.rows))


def thinned(problem: Problem, order: Order) -> Order:
    """The order without what need not be computed again, the memory having room for it from the forward on.

    Those that would hold it for the fewest operations are tried first. Taking them out makes no order slower.
    """
    graph = OpGraph.build(problem, order.rows)
    rows = []
    for rank, (row, nodes) in enumerate(zip(order.rows, graph.encode(order), strict=True)):
        levels = memory_levels(graph, nodes, rank)[:, 1].copy()
        at = {op: place for place, op in enumerate(row)}
        again = [
            (place - at[Op(Kind.FORWARD, op.stage, op.microbatch)], place)
            for place, op in enumerate(row)
            if op.kind is Kind.RECOMPUTE
        ]
        left_out: set[int] = set()
        for held, place in sorted(again):
            cost = problem.cost(row[place].stage, row[place].microbatch)
            more = cost.activation_bytes - cost.checkpoint
            if levels[place - held : place].max() + more <= graph.limit_bytes[rank]:
                levels[place - held : place] += more
                left_out.add(place)
        rows.append(tuple(op for place, op in enumerate(row) if place not in left_out))
    return Order(tuple(rows))
