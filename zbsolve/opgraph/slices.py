"""Slices of a sequence: microbatches that follow each other on every stage, and come back the other way round.

A slice attends to the keys and values of the slices before it, which lie on the stage that made them, and
each of these gets a part of its gradient from the slices behind it::

    F0 -> F1 -> F2        of one sequence, on one stage: order alone, since what is shared is there already
    B0 <- B1 <- B2

W and what is computed again follow their own F and B alone.
"""

from __future__ import annotations

import numpy as np

from zbsolve.opgraph.arcs import Arcs
from zbsolve.opgraph.kinds import Int32
from zbsolve.opgraph.parts import Parts
from zbsolve.problem import Problem


def slice_chains(problem: Problem, parts: Parts) -> list[Arcs]:
    """On each stage, F of the slices of a sequence one after the other, and B from the last to the first."""
    if problem.slices == 1:
        return []
    behind = np.flatnonzero(np.arange(problem.microbatches) % problem.slices)
    chains = [_order(parts.forward[:, behind - 1], parts.forward[:, behind])]
    if not problem.forward_only:
        chains.append(_order(parts.backward_input[:, behind], parts.backward_input[:, behind - 1]))
    return chains


def _order(tail: Int32, head: Int32) -> Arcs:
    return Arcs(
        tail.ravel(),
        head.ravel(),
        np.zeros(tail.size, dtype=np.int64),
        np.full(tail.size, -1, dtype=np.int64),
    )
