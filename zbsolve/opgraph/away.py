"""Activations that are away in host memory between a forward and its backward.

::

    compute    F0   F1   F2  X0  F3 ...        ... B1   B0
    copy out        |== U0 ==|                               X0 frees what U0 has copied,
    copy in                                    |== L0 ==|    L0 takes it again where it stands

The copy away frees nothing by itself: until it has ended the rank holds both. What frees is a compute
operation of no length behind it, so that what stands behind that in the row may count on the room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from zbsolve.errors import OrderError, ProblemError
from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.units import MAX_AMOUNT

if TYPE_CHECKING:
    from zbsolve.opgraph.kinds import Int32
    from zbsolve.opgraph.parts import Parts

__all__ = ["copies", "copies_ns", "refuse_half_moves"]


def refuse_half_moves(parts: Parts) -> None:
    """All three of offload, release and reload are done of a stage and microbatch, or none, and then it is kept whole.

    Raises
    ------
    OrderError
        Naming the first for which that is not so.
    """
    tables = {Kind.OFFLOAD: parts.offload, Kind.RELEASE: parts.release, Kind.RELOAD: parts.reload}
    there = np.stack([table >= 0 for table in tables.values()])
    half = np.argwhere(there.any(axis=0) & ~there.all(axis=0))
    if len(half):
        s, j = (int(v) for v in half[0])
        lacks = next(kind for kind, table in tables.items() if table[s, j] < 0)
        has = next(kind for kind, table in tables.items() if table[s, j] >= 0)
        raise OrderError(f"{Op(has, s, j)} has no {Op(lacks, s, j)}: offload, release and reload go together")
    both = np.argwhere(there[0] & (parts.recompute >= 0))
    if len(both):
        s, j = (int(v) for v in both[0])
        raise OrderError(
            f"stage {s} both moves microbatch {j} away and computes it again; one of them is needless: "
            "leave out its recompute, or its offload, release and reload"
        )


def copies_ns(problem: Problem, stage: int, microbatch: int) -> tuple[int, int]:
    """What moving a microbatch of a stage away takes, and what moving it back does, in ns, each rounded up.

    The size is that of the microbatch, latency and bandwidth are those of its rank's host link; how slow the
    rank computes plays no part.

    Raises
    ------
    ProblemError
        If the profile has no host link, or a copy takes more than 2^62 ns.
    """
    link = problem.profile.host_link
    if link is None:
        raise ProblemError("the profile does not say what a copy to host memory takes; give it a host_link")
    latency, *rates = link.of(problem.rank_of(Op(Kind.OFFLOAD, stage, microbatch)))
    size = problem.cost(stage, microbatch).offloadable
    away, back = (latency + (0 if rate is None else -(-size * 10**9 // rate)) for rate in rates)
    if max(away, back) > MAX_AMOUNT:
        raise ProblemError(f"moving what stage {stage} holds takes more than 2^62 ns; check the host link")
    return away, back


def copies(parts: Parts) -> tuple[Int32, Int32]:
    """Tails and heads of order alone: the forward, the copy away, what frees, the copy back, the backward."""
    moved = parts.offload >= 0
    chain = [t[moved] for t in (parts.forward, parts.offload, parts.release, parts.reload, parts.backward_input)]
    return np.concatenate(chain[:-1]), np.concatenate(chain[1:])
