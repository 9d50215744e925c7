"""What training needs to go on from here: taken from ranks, and given back to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zbsolve.errors import InvalidInput
from zbsolve.executor.rank import Rank

__all__ = ["restore", "state_of"]


def state_of(ranks: Sequence[Rank]) -> dict[str, Any]:
    """Parameters, buffers and optimizers of ranks whose last step is settled; tensors are not copied."""
    return {
        "stages": {
            rank.number: {s: work.module.state_dict() for s, work in sorted(rank.stages.items())} for rank in ranks
        },
        "optimizers": {r.number: r.optimizer.state_dict() for r in ranks if r.optimizer is not None},
        "steps": ranks[0].steps,
    }


def restore(ranks: Sequence[Rank], state: Mapping[str, Any]) -> None:
    """Give ranks back what `state_of` took from the same ones.

    Raises
    ------
    InvalidInput
        If it is of other ranks, stages or optimizers.
    """
    for rank in ranks:
        stages, optimizer = state["stages"].get(rank.number), state["optimizers"].get(rank.number)
        if stages is None or set(stages) != set(rank.stages):
            held = "none" if stages is None else sorted(stages)
            raise InvalidInput(f"the state holds stages {held} for rank {rank.number}, not {sorted(rank.stages)}")
        if (optimizer is None) != (rank.optimizer is None):
            has, lacks = ("the pipeline", "the state") if optimizer is None else ("the state", "the pipeline")
            raise InvalidInput(f"{has} has an optimizer for rank {rank.number} and {lacks} has none")
    for rank in ranks:
        for s, work in rank.stages.items():
            work.module.load_state_dict(state["stages"][rank.number][s])
        if rank.optimizer is not None:
            rank.optimizer.forget()
            rank.optimizer.load_state_dict(state["optimizers"][rank.number])
            rank.training.desk.scale = rank.optimizer.loss_scale
        rank.steps = int(state["steps"])
