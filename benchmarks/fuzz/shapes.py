"""Random small problems, each of a kind that something could get wrong.

All but one draw at most four ranks, and all at most eight microbatches. What a kind does not fix is drawn from a
mixture that is full of zeros, ties and odd fused backwards.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from zbsolve.bounds import smallest_limits
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Link, LinkOverride, Profile, StageCost

__all__ = ["KINDS", "draw"]


@dataclass
class _Plan:
    """What a kind may fix before the rest is drawn."""

    placement: Placement
    microbatches: int
    costs: Callable[[random.Random, int], dict[str, int]]
    equal: bool = False
    slack: tuple[int | None, ...] = (0, 0, 1, 1, 2, 2, 3, 4, 6, 8, None)
    allow: tuple[str, ...] = ()
    link: Link | None = None
    further: dict[str, Any] = field(default_factory=dict)


def _time(rng: random.Random) -> int:
    return rng.choice([0, 1, 1, 2, 3, 5, rng.randint(0, 9)])


def _costs(rng: random.Random, _stage: int = 0) -> dict[str, int]:
    forward, back, weight = _time(rng), _time(rng), _time(rng)
    held = rng.choice([0, 1, 2, 2, 3, 4])
    apart = back + weight
    fused = [-1, -1, apart, max(0, apart - rng.randint(0, 4)), apart + rng.randint(0, 4), 0, max(0, back - 1), 12]
    return {
        "forward_ns": forward,
        "backward_input_ns": back,
        "backward_weight_ns": weight,
        "backward_ns": rng.choice(fused),
        "activation_bytes": held,
        "backward_weight_bytes": rng.choice([0, 1, 1, 2, held // 2, held, held + 1, held + 3]),
        "workspace_bytes": rng.choice([0, 0, 0, 1, 2]),
        "static_bytes": rng.choice([0, 0, 0, 1, 5]),
        "output_bytes": rng.choice([0, 0, 1, 3]),
    }


def _with(**fixed: Any) -> Callable[[random.Random, int], dict[str, int]]:
    """Costs of which some are fixed, as numbers or as functions of the random source and the costs so far."""

    def costs(rng: random.Random, stage: int) -> dict[str, int]:
        drawn = _costs(rng, stage)
        for name, value in fixed.items():
            drawn[name] = value(rng, drawn) if callable(value) else value
        return drawn

    return costs


def _plain(rng: random.Random, **given: Any) -> _Plan:
    """A line of ranks, now and then in another order than the stages."""
    ranks = given.pop("ranks", None) or rng.choice([2, 2, 2, 3, 3, 4])
    route = list(range(ranks))
    if rng.random() < 0.1:
        rng.shuffle(route)
    most = max(2, min(8, 12 // ranks)) if rng.random() < 0.8 else 8
    plan = {
        "placement": Placement.custom(route),
        "microbatches": rng.randint(1, most),
        "costs": _costs,
        "equal": rng.random() < 0.3,
    }
    return _Plan(**(plan | given))


def _few(rng: random.Random) -> _Plan:
    """Fewer microbatches than ranks."""
    ranks = rng.choice([2, 3, 4])
    return _plain(rng, ranks=ranks, microbatches=rng.randint(1, ranks - 1))


def _chunks(rng: random.Random) -> _Plan:
    """Several stages a rank."""
    where = rng.choice(
        [
            Placement.v(1),
            Placement.v(2),
            Placement.v(2),
            Placement.v(3),
            Placement.wave(2, 4),
            Placement.wave(1, 4),
            Placement.looped(1, 2),
            Placement.looped(2, 2),
            Placement.looped(2, 2),
            Placement.looped(4, 2),
            Placement.custom((0, 1, 0)),
            Placement.custom((0, 0, 1)),
            Placement.custom((0, 1, 1, 0)),
        ]
    )
    return _plain(rng, placement=where, microbatches=rng.randint(1, max(2, 12 // where.stages)))


def _routes(rng: random.Random) -> _Plan:
    """Several routes, so that a stage lies on several ranks."""
    where = rng.choice(
        [
            Placement.bidirectional(2),
            Placement.bidirectional(2),
            Placement.bidirectional(4),
            Placement.custom((0, 1), (0, 2)),
            Placement.custom((0,), (1,)),
            Placement.custom((0, 1, 0), (1, 0, 1)),
        ]
    )
    return _plain(rng, placement=where, microbatches=rng.randint(1, max(2, 12 // where.stages)))


def _tight(rng: random.Random) -> _Plan:
    """Equal stages, more microbatches than fit at once: what windows and prefixes argue about."""
    ranks = rng.choice([2, 2, 3])
    keep = rng.choice([0, 1, 1, 2, 3])
    return _plain(
        rng,
        ranks=ranks,
        microbatches=rng.randint(4, 8 if ranks == 2 else 6),
        equal=rng.random() < 0.7,
        slack=(0, 0, 1, 2, 3, 4),
        costs=_with(
            forward_ns=lambda r, c: r.randint(1, 9),
            backward_input_ns=lambda r, c: r.choice([0, 1, 1, 3, r.randint(0, 9)]),
            backward_weight_ns=lambda r, c: r.randint(0, 12),
            backward_ns=-1,
            activation_bytes=2,
            backward_weight_bytes=keep,
            workspace_bytes=0,
            static_bytes=0,
        ),
        allow=rng.choice([("split",), ("split",), ("split", "fused")]),
    )


def _fine(rng: random.Random) -> _Plan:
    """Times with many digits, so that relaxations round."""
    factor = rng.choice([7, 1_000, 1_000_000])

    def costs(r: random.Random, stage: int) -> dict[str, int]:
        drawn = _costs(r, stage)
        for name in ("forward_ns", "backward_input_ns", "backward_weight_ns", "backward_ns"):
            if drawn[name] > 0:
                drawn[name] = drawn[name] * factor + r.randrange(factor)
        return drawn

    return _plain(rng, costs=costs, link=Link(latency_ns=rng.choice([0, factor, 2 * factor + 1])))


_FACTORS = [1, 1, "0.5", "1.25", 2, 3, "0.1"]


def _sizes(rng: random.Random) -> _Plan:
    """Microbatches that differ, on any placement."""
    plan = rng.choice([_plain, _plain, _tight, _chunks, _routes])(rng)
    plan.further["microbatch_factors"] = tuple(rng.choice(_FACTORS) for _ in range(plan.microbatches))
    return plan


def _slow_ranks(rng: random.Random) -> _Plan:
    """Ranks that differ, on any placement."""
    plan = rng.choice([_plain, _plain, _chunks, _routes, _sizes])(rng)
    plan.further["rank_factors"] = tuple(rng.choice(_FACTORS) for _ in range(plan.placement.ranks))
    return plan


def _forwards(rng: random.Random) -> _Plan:
    """Forwards alone, on any placement."""
    plan = rng.choice([_plain, _plain, _chunks, _routes, _sizes])(rng)
    plan.further["forward_only"] = True
    return plan


def _slices(rng: random.Random) -> _Plan:
    """Sequences in slices, equal or dearer towards their end, on any placement."""
    plan = rng.choice([_plain, _plain, _plain, _chunks, _routes])(rng)
    slices = rng.choice([2, 2, 2, 3])
    sequences = max(1, min(3, 12 // (slices * plan.placement.stages)))
    plan = replace(plan, microbatches=sequences * slices)
    plan.further["slices"] = slices
    if rng.random() < 0.4:
        later = [rng.choice(["1", "1.25", "1.5", "2"]) for _ in range(1, slices)]
        plan.further["microbatch_factors"] = ("1", *later) * sequences
    return plan


def _queueing(rng: random.Random) -> _Plan:
    """Transfers that wait for each other, on any placement of a few ranks."""
    plan = rng.choice([lambda r: _plain(r, ranks=r.choice([2, 3])), _chunks, _routes, _tight])(rng)
    while plan.placement.ranks > 3:
        plan = rng.choice([_chunks, _routes])(rng)
    inner = plan.costs
    plan.costs = lambda r, s: inner(r, s) | {"output_bytes": r.choice([0, 1, 2, 3, 6])}
    plan.link = Link(
        latency_ns=rng.choice([0, 0, 1, 4]),
        bytes_per_second=rng.choice([10**9, 4 * 10**8]),
        queueing=rng.choice(["link", "link", "sender"]),
    )
    return plan


_WILD = _with(
    forward_ns=lambda r, c: r.choice([0, 1, 3, 10, 100, 1000]),
    backward_input_ns=lambda r, c: r.choice([0, 1, 3, 10, 100, 1000]),
    backward_weight_ns=lambda r, c: r.choice([0, 1, 3, 10, 100, 1000]),
    backward_ns=lambda r, c: r.choice([-1, 0, 1, 50, 500, 3000]),
    activation_bytes=lambda r, c: r.choice([0, 1, 5, 50]),
    backward_weight_bytes=lambda r, c: r.choice([0, 1, 5, 50, 90]),
)

KINDS: dict[str, Callable[[random.Random], _Plan]] = {
    "any": _plain,
    "W keeps nothing": lambda r: _plain(r, costs=_with(backward_weight_bytes=0)),
    "W keeps more": lambda r: _plain(
        r, costs=_with(backward_weight_bytes=lambda r, c: c["activation_bytes"] + r.randint(1, 4))
    ),
    "F holds nothing": lambda r: _plain(r, costs=_with(activation_bytes=0)),
    "workspace": lambda r: _plain(r, costs=_with(workspace_bytes=lambda r, c: r.randint(1, 6))),
    "static bytes": lambda r: _plain(r, costs=_with(static_bytes=lambda r, c: r.randint(1, 20))),
    "fewer microbatches than ranks": _few,
    "five ranks": lambda r: _plain(r, ranks=5, microbatches=r.randint(1, 3)),
    "one rank": lambda r: _plain(r, ranks=1, microbatches=r.randint(1, 8)),
    "zero times": lambda r: _plain(
        r,
        costs=_with(
            **{
                n: lambda r, c: r.choice([0, 0, 0, 1])
                for n in ("forward_ns", "backward_input_ns", "backward_weight_ns")
            }
        ),
    ),
    "equal stages": lambda r: _plain(r, equal=True),
    "wildly unequal": lambda r: _plain(r, costs=_WILD, equal=False),
    "edge of feasibility": lambda r: _plain(r, slack=(0, 0, 0, 0, 1)),
    "nothing fits": lambda r: _plain(r, slack=(-1, -1, 0, 2, None)),
    "fused only": lambda r: _plain(r, allow=("fused",)),
    "split only": lambda r: _plain(r, allow=("split",)),
    "links": lambda r: _plain(
        r, costs=_with(output_bytes=lambda r, c: r.randint(0, 9)), link=Link(latency_ns=2, bytes_per_second=4 * 10**8)
    ),
    "links that queue": _queueing,
    "tight and long": _tight,
    "many digits": _fine,
    "several chunks": _chunks,
    "several routes": _routes,
    "microbatches that differ": _sizes,
    "ranks that differ": _slow_ranks,
    "forwards alone": _forwards,
    "slices of sequences": _slices,
}
"""By name, what draws a problem of the kind."""


def draw(kind: str, rng: random.Random) -> Problem:
    """A random problem of a kind."""
    plan = KINDS[kind](rng)
    where = plan.placement
    stages = [StageCost(**plan.costs(rng, s)) for s in range(where.stages)]
    if plan.equal:
        stages = stages[:1] * where.stages
    if not any(s.forward_ns + s.backward_input_ns + s.backward_weight_ns for s in stages):
        stages[0] = replace(stages[0], forward_ns=1)
    pairs = [(a, b) for a in range(where.ranks) for b in range(where.ranks) if a != b]
    link = plan.link or Link(
        latency_ns=rng.choice([0, 0, 0, 1, 2, 7]), bytes_per_second=rng.choice([None, None, 10**9, 7 * 10**8])
    )
    overrides = tuple(
        LinkOverride(
            sender=a,
            receiver=b,
            latency_ns=rng.randint(0, 9),
            bytes_per_second=rng.choice([None, 10**9, 3 * 10**8]),
        )
        for a, b in pairs
        if rng.random() < 0.12
    )
    overrides = tuple(replace(o, queueing=o.bytes_per_second and link.queueing) for o in overrides)
    routes, slices = len(where.routes), plan.further.get("slices", 1)
    problem = Problem(
        profile=Profile(stages=tuple(stages), link=replace(link, overrides=overrides)),
        placement=where,
        microbatches=plan.microbatches,
        objective=rng.choice(["period", "period", "makespan"]),
        allow=frozenset(plan.allow or rng.choice([("split",), ("split", "fused"), ("split", "fused"), ("fused",)])),
        route_of=(
            tuple(route for _ in range(plan.microbatches // slices) for route in [rng.randrange(routes)] * slices)
            if rng.random() < 0.3
            else None
        ),
        **plan.further,
    )
    least = smallest_limits(problem)
    above = [rng.choice(plan.slack) for _ in least]
    limits = tuple(None if more is None else max(0, most + more) for most, more in zip(least, above, strict=True))
    return replace(problem, memory_limit=limits)
