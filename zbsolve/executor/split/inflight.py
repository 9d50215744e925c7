"""The bytes of all microbatches in flight on a stage, each storage in one category only."""

from __future__ import annotations

from collections.abc import Collection

import torch

from zbsolve.executor.split.again import Checkpoint
from zbsolve.executor.split.flight import Flight
from zbsolve.executor.split.held import HeldBytes, Watch, storages
from zbsolve.executor.split.waiting import kept_by

__all__ = ["held_by"]


def held_by(
    known: dict[int, int], flights: Collection[Flight], checkpoints: Collection[Checkpoint], watch: Watch | None
) -> HeldBytes:
    """What these keep alive.

    Parameters
    ----------
    known
        Storages that do not count, by identity.
    flights, checkpoints
        The microbatches.
    watch
        Of the stage, where it is watched.
    """
    known = dict(known)

    def new(sizes: dict[int, int]) -> int:
        fresh = {key: size for key, size in sizes.items() if key not in known}
        known.update(fresh)
        return sum(fresh.values())

    entries = [e for f in flights if f.queue is not None for e in f.queue.entries]
    queued = new(storages(kept_by(entries, ready=False)))
    ready = new(storages(kept_by(entries, ready=True)))
    if watch is None:
        return HeldBytes(queued=queued, ready=ready, inputs=None, saved=None)
    inputs = sum(new(f.inputs.alive()) for f in flights if f.inputs is not None)
    for kept in checkpoints:
        inputs += new(storages(x for x in kept.inputs if isinstance(x, torch.Tensor)))
    return HeldBytes(queued=queued, ready=ready, inputs=inputs, saved=new(watch.made.alive()))
