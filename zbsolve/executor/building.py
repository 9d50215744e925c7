"""Making a pipeline is a call as well: all ranks have to come, with the same timetable and the same settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from zbsolve.errors import InvalidInput, RunError
from zbsolve.executor.story import told
from zbsolve.executor.transports.distributed import Distributed
from zbsolve.executor.transports.protocol import Transport
from zbsolve.timetable import Timetable

__all__ = ["building", "refuse_unusable", "settings_shown", "shapes_of", "timetable_named"]


def refuse_unusable(optimizer: object, **needs_one: object) -> None:
    """Refuse what is no way to make an optimizer, and settings that mean nothing without one.

    Parameters
    ----------
    optimizer
        What makes one; None for none.
    needs_one
        Settings by name; those that were not given are None or False.

    Raises
    ------
    InvalidInput
        With what to give instead.
    """
    if isinstance(optimizer, torch.optim.Optimizer):
        kind = type(optimizer).__name__
        raise InvalidInput(
            f"optimizer is a {kind}, but every rank needs one of its own: give a function that makes it, such as "
            f"lambda parameters: torch.optim.{kind}(parameters, ...)"
        )
    if optimizer is not None and not callable(optimizer):
        raise InvalidInput(f"optimizer is a {type(optimizer).__name__}; give a function of a list of parameters")
    idle = [name for name, value in needs_one.items() if value is not None and value is not False]
    if optimizer is None and idle:
        raise InvalidInput(
            f"{' and '.join(idle)} would do nothing, as the pipeline has no optimizer: give optimizer=, or clip the "
            "gradients yourself"
        )


@contextmanager
def building(transport: Transport, same: Mapping[str, str], own: Callable[[], object]) -> Iterator[None]:
    """Around the making of a pipeline: others must not wait for a rank that fails in it.

    Parameters
    ----------
    transport
        Its connections.
    same
        What must be the same on all ranks.
    own
        Raises what is wrong with this rank's stages: where another rank has failed first, mostly of the same,
        that tells more than the news of it.
    """
    if not isinstance(transport, Distributed):
        yield
        return
    health = transport.health
    health.pipelines += 1
    with health.call({"kind": "making a pipeline"}, _Building(transport.rank, health.longest_s)):
        try:
            try:
                said = health.exchanged(json.dumps(dict(same)))
            except RunError:
                own()
                raise
            _refuse_different(said)
            yield
        except BaseException as error:
            health.report(f"making its pipeline: {told(error)}")
            transport.abort()
            raise


def _refuse_different(said: Sequence[str]) -> None:
    """Every rank looks at what all have said, so all refuse it, before any message could meet a wrong one."""
    everyone = [json.loads(text) for text in said]
    for what, first in everyone[0].items():
        for rank, mine in enumerate(everyone):
            if mine[what] != first:
                raise InvalidInput(
                    f"the {what} is not the same on all ranks: {first} on rank 0, but {mine[what]} on rank {rank}"
                )


class _Building:
    """Attends to a rank whose pipeline is being made.

    Parameters
    ----------
    rank
        Which.
    away_s
        How long it waits for others, who may have a model to load first.
    """

    def __init__(self, rank: int, away_s: float) -> None:
        self._rank = rank
        self.away_s = away_s

    def doing(self) -> str:
        """What the rank is at, in words."""
        return f"rank {self._rank} builds its pipeline"

    def busy(self) -> bool:
        """It may wait for others at any time."""
        return False

    def complaint(self, now: float) -> str | None:
        """Nobody knows how long this may take."""
        del now
        return None


def shapes_of(batch: Any) -> str:
    """Types and shapes of a batch's tensors, in words."""
    tensors = batch if isinstance(batch, tuple | list) else (batch,)
    return "; ".join(
        f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)}" if isinstance(t, torch.Tensor) else type(t).__name__
        for t in tensors
    )


def timetable_named(timetable: Timetable, made: object) -> str:
    """A timetable for those who compare it, with what else decides who sends what when."""
    placement = timetable.problem.placement
    number = hashlib.sha256(repr((timetable.order, made)).encode()).hexdigest()[:8]
    shape = f"{placement.ranks} ranks, {placement.stages} stages, {timetable.problem.microbatches} microbatches"
    return f"one of {shape}, number {number}"


def settings_shown(settings: Sequence[object]) -> str:
    """What must be the same on all ranks, in the order of the names."""
    names = ("loss_reduction", "accumulation_steps", "optimizer", "max_grad_norm", "check_overflow", "synchronous")
    return ", ".join(f"{name}={value!r}" for name, value in zip(names, settings, strict=True))
