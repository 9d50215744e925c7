"""ZB-V: zero bubble with the memory of 1F1B, on a V of two chunks a rank.

zb-v          the greedy of the paper's authors, made for the costs and a limit
torch-zb-v    torch's fixed rule
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from zbsolve.catalog.conditions import require_split, require_v
from zbsolve.catalog.schedule import Member, Schedule
from zbsolve.catalog.v_shape import LegCosts, Step, VShape
from zbsolve.catalog.zb_v_greedy import FILLS, run
from zbsolve.metrics import peak_bytes
from zbsolve.opgraph import OpGraph
from zbsolve.problem import Problem
from zbsolve.simulate import Timer
from zbsolve.timetable import Order

__all__ = ["MEMBERS"]

# ----------------------------------------------------------------------------------- greedy


def _upper_median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2]


def _mean(values: list[int]) -> int:
    return sum(values) // len(values)


def _runs(costs: LegCosts, microbatches: int) -> Iterator[list[list[Step]]]:
    """The rows of each different run: four settings, on the true costs, their medians and their means."""
    seen = []
    for view in (costs, costs.levelled(_upper_median), costs.levelled(_mean)):
        if view in seen:
            continue
        seen.append(view)
        for fills in FILLS:
            yield run(view, microbatches, fills)


def zb_v(problem: Problem) -> Order:
    """ZB-V: the greedy's best order at the problem's memory limit; at 1x where it has none or less.

    About no bubble at F = B = W, with the memory of 1F1B, p microbatches. The limit is kept where the two
    chunks of a rank hold as much; where they do not, an order that keeps it is taken if there is one.

    Raises
    ------
    ScheduleConditionError
        If the placement is no V, or B and W may not stand apart.
    """
    require_split(problem, "zb-v")
    shape = VShape(require_v(problem, "zb-v"))
    graph = OpGraph.build(replace(problem, memory_limit=_at_least_1x(problem)))
    work = np.bincount(graph.lane, weights=graph.duration_ns).max()
    best: tuple[int, int, Order] | None = None
    for rows in _runs(shape.costs(graph), problem.microbatches):
        order = shape.order(problem, rows)
        nodes = graph.encode(order)
        timer = Timer(graph, nodes)
        value = (timer.period() if problem.objective == "period" else timer.makespan()).value_ns
        excess = max(np.maximum(np.asarray(peak_bytes(graph, nodes)) - graph.limit_bytes, 0).tolist())
        if best is None or (excess, value) < best[:2]:
            best = excess, value, order
        if not excess and value <= work:
            break
    assert best is not None
    return best[2]


def _at_least_1x(problem: Problem) -> tuple[int, ...]:
    """The limits of the ranks; 1x for those that have none or a smaller one."""
    own = replace(problem, memory_limit="1x").limit_bytes
    return tuple(max(mine or 0, given or 0) for mine, given in zip(own, problem.limit_bytes, strict=True))


# ------------------------------------------------------------------------------------ torch


def torch_zb_v(problem: Problem) -> Order:
    """ZB-V by the fixed rule of torch's ``ScheduleZBVZeroBubble``, whatever the costs.

    Made for at least 2p-1 microbatches; with fewer, those that are not there are left out of the rows.
    About no bubble at F = B = W; up to 2p chunks held.

    Raises
    ------
    ScheduleConditionError
        If the placement is no V, or B and W may not stand apart.
    """
    require_split(problem, "torch-zb-v")
    shape = VShape(require_v(problem, "torch-zb-v"))
    ranks = len(shape.down)
    planned = max(2 * ranks - 1, problem.microbatches)
    rows = [
        [step for step in _torch_row(ranks, place, planned) if step[1] < problem.microbatches] for place in range(ranks)
    ]
    return shape.order(problem, rows)


def _torch_row(ranks: int, place: int, microbatches: int) -> list[Step]:
    """Warm-up, a steady part of whole cycles, and a ramp down in which W's come last; letters by leg."""
    done = dict.fromkeys("FfbB", 0)
    weights = dict.fromkeys("bB", 0)
    legs = {"F": 0, "f": 1, "b": 2, "B": 3}
    row: list[Step] = []

    def put(*letters: str) -> None:
        for letter in letters:
            row.append((legs[letter], done[letter], False))
            done[letter] += 1

    def put_weight(letter: str) -> None:
        row.append((legs[letter], weights[letter], True))
        weights[letter] += 1

    def put_whole(letter: str) -> None:
        put(letter)
        put_weight(letter)

    below = ranks - place
    put(*"F" * (2 * below - 1), *"fF" * place)
    for _ in range(below):
        put("f")
        put_whole("b")
    while done["f"] < done["F"] or done["F"] < microbatches:
        if done["F"] < microbatches:
            put("F")
        put_whole("B")
        put("f")
        put_whole("b")
    put(*"Bb" * place)
    for _ in range(below):
        put("B")
        put_weight("B")
    for letter in "bB":
        while weights[letter] < done[letter]:
            put_weight(letter)
    return row


def _member(name: str, build: Callable[[Problem], Order], source: str, extra: str) -> Member:
    return Member(
        Schedule(name=name, family="zero-bubble", placement="v", source=source, needs=f"a V; B and W apart; {extra}"),
        build,
    )


MEMBERS = (
    _member(
        "zb-v",
        zb_v,
        "arXiv 2401.10241",
        "keeps the memory limit if that is 1x at least, else 1x, on chunks that hold as much",
    ),
    _member(
        "torch-zb-v",
        torch_zb_v,
        "torch's ScheduleZBVZeroBubble, after arXiv 2401.10241",
        "memory of p microbatches",
    ),
)
