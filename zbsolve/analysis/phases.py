"""Warm-up, steady state and cool-down of each rank.

The warm-up of a rank ends where its first backward starts; its cool-down starts where its last
forward ends; what lies between is its steady state. Where all forwards come first there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from zbsolve.analysis.idle import Idle
from zbsolve.analysis.network import Network
from zbsolve.ops import Kind

__all__ = ["Phase", "phases"]

PhaseName = Literal["warm-up", "steady state", "cool-down"]


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of one rank's row.

    Parameters
    ----------
    rank, name
        Whose, and which.
    start_ns, end_ns
        From the start of its first operation to the end of its last.
    counts
        How many compute operations of each kind.
    compute_ns
        What they take.
    idle_ns
        Idle time before them; to the last phase also what follows until the iteration ends.
    """

    rank: int
    name: PhaseName
    start_ns: int
    end_ns: int
    counts: dict[Kind, int]
    compute_ns: int
    idle_ns: int


def phases(network: Network, pieces: Sequence[Idle]) -> tuple[Phase, ...]:
    """All phases that have operations, rank by rank.

    Parameters
    ----------
    network
        Of the timetable.
    pieces
        Its idle times.
    """
    idle: dict[tuple[int, int | None], int] = {}
    for piece in pieces:
        key = piece.rank, None if piece.wraps else piece.before
        idle[key] = idle.get(key, 0) + piece.length_ns
    found: list[Phase] = []
    for rank in range(network.ranks):
        parts = [(name, row) for name, row in _split(network, network.compute_row(rank)) if row]
        for name, row in parts:
            counts: dict[Kind, int] = {}
            for node in row:
                for op in network.op(node).halves:
                    counts[op.kind] = counts.get(op.kind, 0) + 1
            at_the_end = idle.get((rank, None), 0) if row is parts[-1][1] else 0
            found.append(
                Phase(
                    rank,
                    name,
                    network.start(row[0]),
                    network.end(row[-1]),
                    counts,
                    sum(network.end(node) - network.start(node) for node in row),
                    sum(idle.get((rank, node), 0) for node in row) + at_the_end,
                )
            )
    return tuple(found)


def _split(network: Network, row: list[int]) -> list[tuple[PhaseName, list[int]]]:
    kinds = [{part.kind for part in network.op(node).parts} for node in row]
    backward = next((at for at, kind in enumerate(kinds) if Kind.BACKWARD_INPUT in kind), None)
    forward = next((at for at in reversed(range(len(row))) if Kind.FORWARD in kinds[at]), None)
    if backward is None or forward is None:
        return [("steady state", row)]
    ends, begins = (backward, forward + 1) if backward <= forward else (forward + 1, forward + 1)
    return [("warm-up", row[:ends]), ("steady state", row[ends:begins]), ("cool-down", row[begins:])]
