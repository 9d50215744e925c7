"""A batch's way into the ranks, and the way of what they made of its microbatches out again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from zbsolve.errors import InvalidInput, RunError
from zbsolve.executor.batch import cut_batch
from zbsolve.executor.building import shapes_of
from zbsolve.executor.rank import Rank
from zbsolve.problem import Problem

__all__ = ["cut_for", "given", "joined", "merged", "reduced", "shared"]


def given(rank: Rank, batch: Any, target: Any = None) -> dict[str, str]:
    """What must be the same wherever it is given: shapes, where several ranks hold the first or the last stage."""
    found = {}
    if rank.has_first and batch is not None:
        found["batch"] = shapes_of(batch)
    if rank.has_last and target is not None:
        found["target"] = shapes_of(target)
    return found


def cut_for(
    rank: Rank, problem: Problem, batch: Any, target: Any = None, *, training: bool = True
) -> tuple[list[Any], list[Any]]:
    """Inputs and targets of a rank by microbatch, None where it needs none."""
    nothing: list[Any] = [None] * problem.microbatches
    inputs, targets = nothing, nothing
    if rank.has_first:
        if batch is None:
            raise InvalidInput(f"rank {rank.number} holds stage 0, so it needs the batch")
        inputs = cut_batch(batch, problem.microbatches, rank.device, "the batch", wants=training, slices=problem.slices)
    if rank.has_last and training:
        if target is None:
            raise InvalidInput(f"rank {rank.number} holds the last stage, so it needs the target")
        cut = cut_batch(target, problem.microbatches, rank.device, "the target", slices=problem.slices)
        targets = [t if isinstance(target, tuple | list) else t[0] for t in cut]
    return inputs, targets


def shared(rank: Rank, problem: Problem, mine: list[Any]) -> list[Any]:
    """Where several processes hold the last stage, each for its routes: what they all have, by microbatch."""
    holders = problem.placement.holders(problem.placement.stages - 1)
    if len(holders) < 2 or not rank.alone or rank.number not in holders:
        return mine
    own = next((values for values in mine if values is not None), None)
    route_of, routes = problem.route_of or (), problem.placement.routes
    ends = [routes[route][-1] for route in route_of]
    everyone = list(mine)
    if own is None:
        return everyone
    # in one sequence for all: told ahead of all that is heard, many would wait for each other
    for microbatch, end in enumerate(ends):
        if end != rank.number:
            everyone[microbatch] = tuple(rank.endpoint.hear(end, own))
            continue
        for other in sorted(set(ends) - {end}):
            rank.endpoint.tell(other, mine[microbatch])
    return everyone


def merged(per_rank: Sequence[list[Any]]) -> list[Any] | None:
    """One list by microbatch of what the ranks of this process have; None where they have nothing."""
    found = [next((v for v in values if v is not None), None) for values in zip(*per_rank, strict=True)]
    missing = [j for j, values in enumerate(found) if values is None]
    if len(missing) == len(found):
        return None
    if missing:
        raise RunError(f"microbatches {missing} ended on no rank of this process")
    return found


def reduced(losses: list[Any] | None, reduction: Literal["mean", "sum"]) -> torch.Tensor | None:
    """The loss of a batch from those of its microbatches; None where there are none."""
    if losses is None:
        return None
    total = torch.stack([loss.to(losses[0][0].device) for (loss,) in losses]).sum()
    return total / len(losses) if reduction == "mean" else total


def joined(outputs: list[Any] | None, slices: int = 1) -> Any:
    """The outputs for a batch from those for its microbatches, slices side by side; None where there are none."""
    if outputs is None:
        return None
    if slices > 1:
        outputs = [
            tuple(
                torch.cat(parts, dim=1) if parts[0].dim() > 1 else torch.stack(parts, dim=-1)
                for parts in zip(*outputs[first : first + slices], strict=True)
            )
            for first in range(0, len(outputs), slices)
        ]
    whole = tuple(torch.cat(parts) if parts[0].dim() else torch.stack(parts) for parts in zip(*outputs, strict=True))
    return whole[0] if len(whole) == 1 else whole
