"""What runs one operation at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zbsolve.opgraph.kinds import KINDS, Int8, Int32
from zbsolve.ops import Resource

__all__ = ["Lane", "lanes_of"]

_BESIDE: tuple[Resource, ...] = ("network", "copy out", "copy in")


@dataclass(frozen=True, slots=True)
class Lane:
    """What runs one operation at a time: a resource of a rank."""

    resource: Resource
    rank: int


def lanes_of(ranks: int, kind: Int8, rank: Int32) -> tuple[Int32, tuple[Lane, ...]]:
    """The lane of every node, and all lanes: every rank's compute, then each other resource, if any rank uses it."""
    lane = rank.astype(np.int32)
    lanes = [Lane("compute", r) for r in range(ranks)]
    for resource in _BESIDE:
        runs = np.isin(kind, [code for code, k in enumerate(KINDS) if k.resource == resource])
        if runs.any():
            lane[runs] = rank[runs] + len(lanes)
            lanes += [Lane(resource, r) for r in range(ranks)]
    return lane, tuple(lanes)
