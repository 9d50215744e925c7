"""Annealing and tabu search over orders, with the exact period (or makespan) as the objective.

Annealing makes a number of moves at one temperature; the loop around it cools, looks at the clock, and
hands out what is better than all before.

Tabu search tries moves of the critical chain, takes the best of them even if it is worse than what is
there, and forbids for a while to move that operation back. A move is tried with the value of the best
one so far as its threshold, so most are refused as soon as they are worse, and what is not is taken back by
the opposite move.
"""

from __future__ import annotations

import math

from zbsolve.solver.moves import FAR, try_pair, try_shift, try_switch
from zbsolve.solver.network import SHAPE, Table
from zbsolve.solver.state import (
    AFTER,
    BEFORE,
    BEST,
    BLOCKED,
    BLOCKS,
    CHAIN,
    CHAINED,
    REG,
    STEP,
    TABU_EARLIER,
    TABU_LATER,
    VALUE,
    draw,
    keep,
)
from zbsolve.solver.timing import critical, settle

FARTHEST = 6
"""The most places an operation moves at once."""

CANDIDATES = 40
"""Moves that tabu search chooses from."""

TENURE = 12
"""The fewest steps for which an operation may not move back, and the most that chance adds."""

TOGETHER = 0.15
"""The part of the moves that takes a B along with its W, where a rank has several stages or microbatches differ."""


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
        elif net[SHAPE][4] == 0 and draw(st) < TOGETHER:
            node = st[CHAIN][int(draw(st) * st[REG][CHAINED])] if draw(st) < 0.5 else int(draw(st) * nodes)
            steps = 1 + int(draw(st) * FARTHEST)
            if draw(st) < 0.5:
                steps = -steps
            taken = try_pair(net, st, node, steps, threshold, periodic)
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


def within_row(st: Table, nodes: int, node: int, steps: int) -> int:
    """As many steps, earlier or later if negative, as there are places in the row: what can be undone exactly."""
    made = 0
    if steps > 0:
        while made < steps and st[BEFORE][node] < nodes:
            node = st[BEFORE][node]
            made += 1
        return made
    while made < -steps and st[AFTER][node] >= 0:
        node = st[AFTER][node]
        made += 1
    return -made


def tabu_moves(net: Table, st: Table, moves: int, slack: int, target: int, periodic: int) -> int:
    """Take the best of many moves of the critical chain, again and again; the number tried.

    Parameters
    ----------
    net, st
        The order in motion, its critical chain known.
    moves
        How many to try.
    slack
        How much worse than the present one the next order may be, in ns.
    target
        Stop at this value.
    periodic
        1 for the period, 0 for the makespan.
    """
    tried = 0
    while tried < moves:
        step = st[REG][STEP] + 1
        st[REG][STEP] = step
        here = st[REG][VALUE]
        cap = here + slack
        chosen = -1
        way = 0
        for k in range(CANDIDATES):
            if k % 2 == 0 and st[REG][BLOCKS] > 0:
                node = st[BLOCKED][int(draw(st) * st[REG][BLOCKS])]
                steps = 1
            else:
                node = st[CHAIN][int(draw(st) * st[REG][CHAINED])]
                steps = 1 + int(draw(st) * FARTHEST)
                if draw(st) < 0.5:
                    steps = -steps
            tried += 1
            steps = within_row(st, net[SHAPE][0], node, steps)
            if steps == 0:
                continue
            forbidden = st[TABU_EARLIER][node] if steps > 0 else st[TABU_LATER][node]
            threshold = min(cap, st[REG][BEST] - 1) if forbidden > step else cap
            if try_shift(net, st, node, steps, threshold, periodic) == 0:
                continue
            cap = st[REG][VALUE] - 1
            chosen = node
            way = steps
            try_shift(net, st, node, -steps, FAR, periodic)
            if cap < here:
                break
        if chosen < 0:
            chosen = st[CHAIN][int(draw(st) * st[REG][CHAINED])]
            way = 1 if draw(st) < 0.5 else -1
        if try_shift(net, st, chosen, way, here + slack, periodic) == 1:
            until = step + TENURE + int(draw(st) * TENURE)
            if way > 0:
                st[TABU_LATER][chosen] = until
            else:
                st[TABU_EARLIER][chosen] = until
        settle(net, st, periodic)
        critical(net, st, periodic)
        if st[REG][VALUE] < st[REG][BEST]:
            keep(net, st)
            if st[REG][BEST] <= target:
                break
    return tried
