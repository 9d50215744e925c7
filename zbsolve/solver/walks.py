"""Simulated annealing over orders, with the exact period (or makespan) as the objective.

The kernel makes a number of moves at one temperature; the loop around it cools, looks at the
clock, and hands out what is better than all before.
"""

from __future__ import annotations

import math

from zbsolve.solver.moves import (
    BEST,
    BLOCKED,
    BLOCKS,
    CHAIN,
    CHAINED,
    REG,
    VALUE,
    critical,
    draw,
    keep,
    settle,
    try_shift,
    try_switch,
)
from zbsolve.solver.network import SHAPE, Table

FARTHEST = 6
"""The most places an operation moves at once."""


def anneal_moves(
    net: Table, st: Table, moves: int, temperature: float, target: int, switching: float, periodic: int
) -> int:
    """Try moves at one temperature, from a state whose critical chain is known; the number tried.

    Parameters
    ----------
    net, st
        The order in motion.
    moves
        How many to try.
    temperature
        In ns.
    target
        Stop at this value.
    switching
        The part of the moves that switches a backward between split and fused.
    periodic
        1 for the period, 0 for the makespan.
    """
    nodes = net[SHAPE][0]
    for done in range(moves):
        threshold = st[REG][VALUE] - int(temperature * math.log(1.0 - draw(st)))
        kind = draw(st)
        if kind < switching:
            node = st[CHAIN][int(draw(st) * st[REG][CHAINED])] if draw(st) < 0.5 else int(draw(st) * nodes)
            taken = try_switch(net, st, node, threshold, periodic)
        else:
            kind = (kind - switching) / (1.0 - switching)
            if kind < 0.6 and st[REG][BLOCKS] > 0:
                node = st[BLOCKED][int(draw(st) * st[REG][BLOCKS])]
                steps = 1
            else:
                node = st[CHAIN][int(draw(st) * st[REG][CHAINED])] if kind < 0.92 else int(draw(st) * nodes)
                steps = 1 + int(draw(st) * FARTHEST)
                if draw(st) < 0.5:
                    steps = -steps
            taken = try_shift(net, st, node, steps, threshold, periodic)
        if taken == 0:
            continue
        if critical(net, st, periodic) == 0:
            settle(net, st, periodic)
            critical(net, st, periodic)
        if st[REG][VALUE] < st[REG][BEST]:
            keep(net, st)
            if st[REG][BEST] <= target:
                return done + 1
    return moves
