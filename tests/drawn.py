"""Small timetables for the tests of pictures."""

from __future__ import annotations

from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Profile
from zbsolve.simulate import simulate
from zbsolve.timetable import Order, Timetable

LETTERS = {"F": Kind.FORWARD, "B": Kind.BACKWARD_INPUT, "W": Kind.BACKWARD_WEIGHT, "X": Kind.BACKWARD}


def problem(ranks: int = 2, microbatches: int = 3, **more) -> Problem:
    """Equal stages, every operation 1 us, 2 bytes after F and 1 after B; one stage a rank unless placed."""
    placement = more.pop("placement", Placement.linear(ranks))
    costs = {
        "forward_ns": 1000,
        "backward_input_ns": 1000,
        "backward_weight_ns": 1000,
        "activation_bytes": 2 << 20,
        "backward_weight_bytes": 1 << 20,
        **more.pop("costs", {}),
    }
    return Problem(
        profile=Profile.uniform(placement.stages, **costs), placement=placement, microbatches=microbatches, **more
    )


def timed(asked: Problem, *rows: str) -> Timetable:
    """Time rows written as ``"F0 F1 X0"`` (X is the fused backward; stage = rank)."""
    return simulate(
        asked,
        Order(tuple(tuple(Op(LETTERS[w[0]], r, int(w[1:])) for w in row.split()) for r, row in enumerate(rows))),
    )


def one_f_one_b(asked: Problem) -> Timetable:
    """1F1B with fused backwards, one stage a rank."""
    ranks, m = asked.placement.ranks, asked.microbatches
    rows = []
    for r in range(ranks):
        warm = min(m, ranks - r)
        row = [f"F{j}" for j in range(warm)]
        for j in range(m):
            row += [f"X{j}"] + ([f"F{warm + j}"] if warm + j < m else [])
        rows.append(" ".join(row))
    return timed(asked, *rows)


def split_1f1b(asked: Problem) -> Timetable:
    """The same with B and W apart, W a little later on later ranks."""
    ranks, m = asked.placement.ranks, asked.microbatches
    rows = []
    for r in range(ranks):
        warm = min(m, ranks - r)
        row = [f"F{j}" for j in range(warm)]
        for j in range(m):
            row += [f"B{j}"] + ([f"W{j - r}"] if j >= r else []) + ([f"F{warm + j}"] if warm + j < m else [])
        rows.append(" ".join(row + [f"W{j}" for j in range(max(0, m - r), m)]))
    return timed(asked, *rows)
