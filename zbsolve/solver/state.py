"""An order in motion: the rows of the state that the kernels of the order search work on.

An order is held as a sequence of all nodes in which each stands after what it needs, so timing is one
pass (`zbsolve.solver.timing`) and a move a local rearrangement (`zbsolve.solver.moves`).

Kernels are plain Python over tables of rows (`zbsolve.solver.network`); `zbsolve.solver.compiled`
compiles the same functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from zbsolve.solver.network import LINKS, SHAPE, Table

__all__ = ["new_state"]

SEQUENCE, PLACE = range(2)
"""All nodes, each after what it needs; where each node stands in it."""

BEFORE, AFTER, LAST = range(2, 5)
"""Row neighbours of each node, ``N + r`` before the first of rank r, -1 after the last; last node by rank, or N + r."""

LEVEL, DURATION, START, CHANGE, FUSED = range(5, 10)
"""Bytes on its rank before each node starts; what each node takes in its present form; whether that is fused."""

END = 10
"""End of each node; behind them the first start x of each rank, and of each queueing link."""

DUE, MARK, RANK_MARK, PART, REST = range(11, 16)
"""Nodes to be timed; marks of nodes and ranks in the present move; scratch for the new content of a stretch."""

SAVED, JOURNAL_NODE, JOURNAL_END = range(16, 19)
"""Marks of what the journal has of the present move; its nodes; their ends before."""

CHAIN, BLOCKED = range(19, 21)
"""The critical chain; those of it that wait for nothing but their row predecessor."""

FREE, HANGS, PATH_FROM, PATH_LENGTH, RAISED_FROM, RAISED_LENGTH, SEEN, ORIGIN = range(21, 29)
"""Scratch of the exact period, by rank, the last by node."""

BEST_SEQUENCE, BEST_FUSED = range(29, 31)
"""The best order so far."""

TABU_EARLIER, TABU_LATER = range(31, 33)
"""By node: until which step of a tabu search it may not move earlier, or later."""

OFF, OFF_ORIGIN, AHEAD = range(33, 36)
"""By message on a queueing link (`zbsolve.solver.queueing`): when it has left the link; the column that hangs on; what
it waited behind: a message, -1 for nothing, ``-2 - column`` for the release of its link."""

LAST_MESSAGE, KEPT = range(36, 38)
"""By column: the last message so far; its release before the present move."""

REG = 38
"""Single numbers, at the places below."""

VALUE, BEST, STAMP, PENDING, WRITTEN, RANDOM_1, RANDOM_2, CHAINED, BLOCKS, STEP = range(10)
"""Objective value and its best; number of the present move; nodes due; entries of the journal; two states of the
random numbers; lengths of the critical chain and of its blocked part; steps of a tabu search."""


def new_state(net: Table, sequence: Any, fused: Any, seed: int) -> Table:
    """An order in motion, of the kind that the network has; `load` fills it."""
    nodes, columns = int(net[SHAPE][0]), int(net[SHAPE][1] + net[SHAPE][LINKS])
    state: Any = np.zeros((REG + 1, max(nodes + columns, STEP + 1)), dtype=np.int64)
    state[SEQUENCE][:nodes] = sequence
    state[FUSED][:nodes] = fused
    state[REG][RANDOM_1] = 1 + (seed * 1_000_003 + 12_345) % 2_147_483_562
    state[REG][RANDOM_2] = 1 + (seed * 7_919 + 987_654) % 2_147_483_398
    made: Table = state.tolist() if isinstance(net, list) else state
    return made


def draw(st: Table) -> float:
    """A random number from 0 up to 1 (L'Ecuyer's combined generator, CACM 31, 1988)."""
    reg = st[REG]
    reg[RANDOM_1] = reg[RANDOM_1] * 40014 % 2147483563
    reg[RANDOM_2] = reg[RANDOM_2] * 40692 % 2147483399
    return ((reg[RANDOM_1] - reg[RANDOM_2]) % 2147483562) / 2147483562.0


def keep(net: Table, st: Table) -> None:
    """Remember the present order as the best."""
    st[REG][BEST] = st[REG][VALUE]
    for i in range(net[SHAPE][0]):
        st[BEST_SEQUENCE][i] = st[SEQUENCE][i]
        st[BEST_FUSED][i] = st[FUSED][i]
