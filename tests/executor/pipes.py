"""Small models on small timetables, for the tests of the runtime."""

from __future__ import annotations

import copy
import random

import torch
from torch import nn

from tests.strategies import random_order
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Link, Profile, StageCost
from zbsolve.simulate import simulate
from zbsolve.timetable import Order, Timetable

WIDTH = 4


def problem(placement: Placement, microbatches: int, **allow: object) -> Problem:
    cost = StageCost(
        forward_ns=1000, backward_input_ns=1000, backward_weight_ns=1000, activation_bytes=4, output_bytes=100
    )
    return Problem(
        profile=Profile(stages=(cost,) * placement.stages, link=Link(latency_ns=10)),
        placement=placement,
        microbatches=microbatches,
        **allow,
    )


def orderly(asked: Problem, seed: int, *, fused: float = 0.3) -> Order:
    """A random order that keeps the order of microbatches in every stage, for F, for B and for W."""
    rng = random.Random(seed)
    last = asked.placement.stages - 1
    together = {(s, j): rng.random() < fused for s in range(last + 1) for j in range(asked.microbatches)}
    following = {(kind, s): 0 for kind in "FBW" for s in range(last + 1)}
    rows: list[list[Op]] = [[] for _ in range(asked.placement.ranks)]
    while True:
        ready = []
        for s in range(last + 1):
            f, b, w = (following[kind, s] for kind in "FBW")
            if f < asked.microbatches and (s == 0 or following["F", s - 1] > f):
                ready.append(Op(Kind.FORWARD, s, f))
            if b < f and (s == last or following["B", s + 1] > b):
                if not together[s, b]:
                    ready.append(Op(Kind.BACKWARD_INPUT, s, b))
                elif w == b:
                    ready.append(Op(Kind.BACKWARD, s, b))
            if w < b and not together[s, w]:
                ready.append(Op(Kind.BACKWARD_WEIGHT, s, w))
        if not ready:
            return Order(tuple(tuple(row) for row in rows))
        op = rng.choice(ready)
        for part in op.parts:
            following[part.kind.letter, part.stage] += 1
        rows[asked.rank_of(op)].append(op)


def timetable(placement: Placement, microbatches: int, seed: int = 0, *, keeps_order: bool = True) -> Timetable:
    asked = problem(placement, microbatches)
    return simulate(asked, orderly(asked, seed) if keeps_order else random_order(asked, seed))


def model(stages: int, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> list[nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        kinds = [nn.Tanh, nn.ReLU, nn.GELU]
        made = [
            nn.Sequential(nn.Linear(WIDTH, WIDTH), kinds[s % 3](), *([nn.LayerNorm(WIDTH)] if s % 2 else []))
            for s in range(stages)
        ]
    return [stage.to(dtype) for stage in made]


def batch(microbatches: int, *, rows: int = 2, dtype: torch.dtype = torch.float32, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    size = (microbatches * rows, WIDTH)
    return tuple(torch.randn(size, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))


def square_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((output - target) ** 2).mean()


def gradients(pipe) -> dict[tuple[int, str], list[torch.Tensor]]:
    """By stage and name, one for each holder in this process."""
    found: dict[tuple[int, str], list[torch.Tensor]] = {}
    for rank in pipe.ranks:
        for stage, work in rank.stages.items():
            for name, parameter in work.module.named_parameters():
                found.setdefault((stage, name), []).append(parameter.grad)
    return found


def clones(stages: list[nn.Module]) -> list[nn.Module]:
    return copy.deepcopy(stages)
