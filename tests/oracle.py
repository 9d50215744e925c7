"""Exact optima of tiny one-stage-a-rank problems, by trying every row of every rank.

The oracle shares nothing with `zbsolve.bounds`: it reads costs from the profile, enumerates orders,
times them by its own longest paths, and hands the best one to `simulate` for a second opinion.

Microbatches are alike, so first in, first out loses nothing. Proof: take any timetable, keep on each
rank the times and the sequence of kinds, and let the n-th F, the n-th backward (split or fused) and
the n-th W be of the n-th microbatch (W: of the n-th split one). The n-th F of a rank still follows
the n-th F of the rank before: the first n of its F's were of n microbatches, each of which had ended
there, plus the lag, before the n-th started. The same holds for the gradients, for F before its
backward and for B before W. Memory depends on the kinds in the row alone. So nothing got worse.
`every_order` does not use this; the tests compare the two.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from zbsolve.errors import OrderError
from zbsolve.opgraph import OpGraph
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Link, LinkOverride, Profile, StageCost
from zbsolve.simulate import Timer, simulate
from zbsolve.timetable import Order

LETTERS = {"F": Kind.FORWARD, "B": Kind.BACKWARD_INPUT, "W": Kind.BACKWARD_WEIGHT, "D": Kind.BACKWARD}


def tiny_problem(rng: random.Random, limit_above: int | None, *, sizes: tuple[tuple[int, int], ...]) -> Problem:
    """A random problem of (ranks, microbatches) from `sizes`, full of special cases.

    `limit_above` adds up to so many bytes to what one microbatch at a time needs; -1 takes one off; None: unlimited.
    """
    ranks, microbatches = rng.choice(sizes)
    longest, largest = rng.choice((1, 3, 9)), rng.choice((2, 4, 6))
    shape = rng.choice(
        ("any", "any", "keeps nothing", "holds nothing", "keeps more", "equal", "no weight", "slow last")
    )

    def cost(stage: int) -> StageCost:
        forward, back, weight = (rng.randint(0, longest) for _ in range(3))
        held, keep = rng.randint(0, largest), rng.randint(0, largest)
        if shape == "slow last" and stage == ranks - 1:
            forward, back, weight = 5 * forward + 1, 5 * back + 1, 5 * weight
        return StageCost(
            forward_ns=forward,
            backward_input_ns=back,
            backward_weight_ns=0 if shape == "no weight" else weight,
            backward_ns=rng.choice((back + weight, max(0, back + weight - 1), back + weight + 2, rng.randint(0, 20))),
            activation_bytes=0 if shape == "holds nothing" else held,
            backward_weight_bytes={"keeps nothing": 0, "keeps more": held + keep}.get(shape, keep),
            workspace_bytes=rng.choice((0, 0, 1, 3)),
            static_bytes=rng.choice((0, 2)),
            output_bytes=rng.randint(0, 3),
        )

    stages = [cost(s) for s in range(ranks)]
    if shape == "equal":
        stages = stages[:1] * ranks
    if not any(s.forward_ns + s.backward_input_ns + s.backward_weight_ns for s in stages):
        return tiny_problem(rng, limit_above, sizes=sizes)
    pairs = list(itertools.permutations(range(ranks), 2))
    overrides = tuple(
        LinkOverride(sender=a, receiver=b, latency_ns=rng.randint(0, 9))
        for a, b in rng.sample(pairs, min(len(pairs), rng.randint(0, 1)))
    )
    route = list(range(ranks))
    if rng.random() < 0.3:
        rng.shuffle(route)
    link = Link(
        latency_ns=rng.choice((0, 0, 1, 4)), bytes_per_second=rng.choice((None, None, 10**9)), overrides=overrides
    )
    problem = functools.partial(
        Problem,
        profile=Profile(stages=tuple(stages), link=link),
        placement=Placement.custom(route),
        microbatches=microbatches,
        allow=frozenset(rng.choice((("split",), ("split", "fused"), ("fused",)))),
        objective=rng.choice(("period", "makespan")),
        rank_factors=rng.choice((None, None, tuple(rng.choice((1, "0.5", "1.7", 2)) for _ in range(ranks)))),
    )
    if limit_above is None:
        return problem()
    by_rank = {rank: stage for stage, rank in enumerate(route)}
    limits = []
    for rank in range(ranks):
        least = min(peak(row, stages[by_rank[rank]]) for row in rows_of(1, problem.keywords["allow"]))
        limits.append(max(0, least + (rng.choice((0, -1)) if limit_above < 0 else rng.randint(0, limit_above))))
    return problem(memory_limit=tuple(limits))


@functools.cache
def rows_of(microbatches: int, allow: frozenset[str]) -> tuple[str, ...]:
    """Every row of one rank as letters, first in, first out: F, B, W, and D for the fused backward."""

    def grow(row: str, f: int, b: int, w: int, split: int) -> Iterator[str]:
        if f == b == microbatches and w == split:
            yield row
        if f < microbatches:
            yield from grow(row + "F", f + 1, b, w, split)
        if b < f:
            if "split" in allow:
                yield from grow(row + "B", f, b + 1, w, split + 1)
            if "fused" in allow:
                yield from grow(row + "D", f, b + 1, w, split)
        if w < split:
            yield from grow(row + "W", f, b, w + 1, split)

    return tuple(grow("", 0, 0, 0, 0))


def peak(row: str, cost: StageCost) -> int:
    """The most bytes, static ones included, that a row holds."""
    held, keep = cost.activation_bytes, cost.backward_weight_bytes
    level = most = 0
    for letter in row:
        during = level
        if letter == "F":
            level = during = level + held
        elif letter == "B":
            during = max(level, level - held + keep)
            level += keep - held
        else:
            level -= keep if letter == "W" else held
        most = max(most, during + cost.workspace_bytes)
    return most + cost.static_bytes


class _Pipeline:
    """Costs and lags of a one-stage-a-rank pipeline, stage by stage."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.m = problem.microbatches
        self.stages = len(problem.profile.stages)
        # one microbatch is like another here, but ranks may differ in speed
        self.costs = [problem.cost(s, 0) for s in range(self.stages)]
        route = problem.placement.routes[0]
        self.rank = route
        self.limits = [problem.limit_bytes[r] for r in route]
        self.down, self.up = [], []
        for s in range(self.stages - 1):
            for lags, a, b in ((self.down, route[s], route[s + 1]), (self.up, route[s + 1], route[s])):
                latency, bandwidth = problem.profile.link.between(a, b)
                size = self.costs[s].output_bytes
                lags.append(latency + (0 if bandwidth is None else -(-size * 10**9 // bandwidth)))

    def durations(self, s: int) -> dict[str, int]:
        c = self.costs[s]
        return {"F": c.forward_ns, "B": c.backward_input_ns, "W": c.backward_weight_ns, "D": c.backward_ns}

    def paths(self, rows: list[str], first: int) -> list[list[int]] | None:
        """Longest path from the start of each rank to the end of each, over stages first..; None if they deadlock.

        Stages before `first` are left out: what remains is a relaxation.
        """
        count = len(rows)
        none = -(10**9)
        at = [[none] * count for _ in range(count)]
        for k in range(count):
            at[k][k] = 0
        forward: list[list[list[int]]] = [[] for _ in range(count)]
        gradient: list[list[list[int]]] = [[] for _ in range(count)]
        place = [0] * count
        tables = [self.durations(first + k) for k in range(count)]
        moved = True
        while moved:
            moved = False
            for k, row in enumerate(rows):
                s = first + k
                while place[k] < len(row):
                    letter = row[place[k]]
                    if letter == "F" and k:
                        if len(forward[k - 1]) <= len(forward[k]):
                            break
                        source, lag = forward[k - 1][len(forward[k])], self.down[s - 1]
                    elif letter in "BD" and k < count - 1:
                        if len(gradient[k + 1]) <= len(gradient[k]):
                            break
                        source, lag = gradient[k + 1][len(gradient[k])], self.up[s]
                    else:
                        source, lag = at[k], 0
                    took = tables[k][letter]
                    at[k] = [max(a, b + lag) + took for a, b in zip(at[k], source, strict=True)]
                    if letter == "F":
                        forward[k].append(at[k])
                    elif letter != "W":
                        gradient[k].append(at[k])
                    place[k] += 1
                    moved = True
        if any(place[k] < len(rows[k]) for k in range(count)):
            return None
        return [[at[end][start] for end in range(count)] for start in range(count)]

    def value(self, rows: list[str], first: int) -> int | None:
        """Period (rounded up) or makespan of stages first..; None if they deadlock."""
        path = self.paths(rows, first)
        if path is None:
            return None
        count = len(rows)
        if self.problem.objective == "makespan":
            return max(max(line) for line in path)
        best = 0
        for size in range(1, count + 1):
            for cycle in itertools.permutations(range(count), size):
                total = sum(path[a][b] for a, b in zip(cycle, cycle[1:] + cycle[:1], strict=True))
                if total >= 0:
                    best = max(best, -(-total // size))
        return best

    def alone(self, row: str, s: int) -> int:
        """The span of one rank alone: a relaxation of both objectives."""
        value = self.paths([row], s)
        assert value is not None
        return value[0][0]

    def order(self, rows: list[str]) -> Order:
        by_rank: list[tuple[Op, ...]] = [()] * self.stages
        for s, row in enumerate(rows):
            counts = dict.fromkeys("FBD", 0)
            split: list[int] = []
            ops = []
            weights = 0
            for letter in row:
                if letter == "F":
                    microbatch = counts["F"]
                elif letter == "W":
                    microbatch = split[weights]
                    weights += 1
                else:
                    microbatch = counts["B"]
                    counts["B"] += 1
                    if letter == "B":
                        split.append(microbatch)
                if letter == "F":
                    counts["F"] += 1
                ops.append(Op(LETTERS[letter], s, microbatch))
            by_rank[self.rank[s]] = tuple(ops)
        return Order(tuple(by_rank))


def optimum(problem: Problem) -> tuple[int, Order] | None:
    """The least objective value over all orders within the limits, and an order that has it; None if there is none.

    Depth-first over the rows of the ranks, last stage first; a choice is left when the stages chosen
    so far, without those before them, already take as long as the best found.
    """
    pipe = _Pipeline(problem)
    rows = rows_of(problem.microbatches, problem.allow)
    fitting: list[list[tuple[int, str]]] = []
    for s in range(pipe.stages):
        limit = pipe.limits[s]
        fits = [row for row in rows if limit is None or peak(row, pipe.costs[s]) <= limit]
        fitting.append(sorted((pipe.alone(row, s), row) for row in fits))
        if not fits:
            return None
    least_alone = [choices[0][0] for choices in fitting]
    floor = max(least_alone)
    best: tuple[int, list[str]] | None = None

    def choose(chosen: list[str]) -> None:
        nonlocal best
        s = pipe.stages - 1 - len(chosen)
        for alone, row in fitting[s]:
            if best is not None and (alone >= best[0] or best[0] <= floor):
                return
            candidate = [row, *chosen]
            value = pipe.value(candidate, s)
            if value is None or (best is not None and value >= best[0]):
                continue
            if s == 0:
                best = (value, candidate)
            else:
                choose(candidate)

    choose([])
    if best is None:
        return None
    return best[0], pipe.order(best[1])


def every_order(problem: Problem) -> int | None:
    """The least objective value over all sequences of labelled operations; for the tiniest problems only."""
    stages, m = problem.placement.stages, problem.microbatches
    splits = [c for c in ("split", "fused") if c in problem.allow]
    rows: list[list[tuple[Op, ...]]] = []
    for s in range(stages):
        mine: list[tuple[Op, ...]] = []
        for choice in itertools.product(splits, repeat=m):
            chains = [
                [Op(Kind.FORWARD, s, j), Op(Kind.BACKWARD_INPUT, s, j), Op(Kind.BACKWARD_WEIGHT, s, j)]
                if how == "split"
                else [Op(Kind.FORWARD, s, j), Op(Kind.BACKWARD, s, j)]
                for j, how in enumerate(choice)
            ]
            mine += merges(chains)
        rows.append(mine)
    best: int | None = None
    by_stage = dict(enumerate(problem.placement.routes[0]))
    for combination in itertools.product(*rows):
        by_rank: list[tuple[Op, ...]] = [()] * stages
        for s, row in enumerate(combination):
            by_rank[by_stage[s]] = row
        value = value_within_limits(problem, Order(tuple(by_rank)))
        if value is not None and (best is None or value < best):
            best = value
    return best


def value_within_limits(problem: Problem, order: Order) -> int | None:
    """The objective of an order; None if it exceeds a limit or can never finish."""
    graph = OpGraph.build(problem, order.rows)
    nodes = graph.encode(order)
    for rank, row in enumerate(nodes):
        if len(row):
            before = np.cumsum(graph.start_bytes[row] + graph.end_bytes[row]) - graph.end_bytes[row]
            if int(before.max() + graph.base_bytes[rank]) > graph.limit_bytes[rank]:
                return None
    try:
        timer = Timer(graph, nodes)
    except OrderError:
        return None
    return timer.period().value_ns if problem.objective == "period" else timer.makespan().value_ns


def merges(chains: list[list[Any]]) -> list[tuple[Any, ...]]:
    """All interleavings of sequences."""
    if not any(chains):
        return [()]
    merged = []
    for i, line in enumerate(chains):
        if line:
            rest = [c[1:] if k == i else c for k, c in enumerate(chains)]
            merged += [(line[0], *tail) for tail in merges(rest)]
    return merged


def objective_of(problem: Problem, order: Order) -> int:
    """What `simulate` says of an order."""
    timetable = simulate(problem, order)
    return timetable.period_ns if problem.objective == "period" else timetable.makespan_ns
