"""Queueing links in the models of CP-SAT: each transfer an interval on its link, one at a time.

The order in which a link serves is not tied to the row of its sender, but for twins. That leaves more timetables than
there are, so what is proven holds; orders that are found are timed exactly as they stand.

A link repeats as a rank does: under the period objective the span from its first start to its last end counts too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from zbsolve.solver.kernels import Arrays

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

__all__ = ["add_links"]


def add_links(
    model: cp_model.CpModel,
    a: Arrays,
    sequence: Sequence[int],
    starts: Sequence[cp_model.IntVar],
    horizon: int,
    value: cp_model.IntVar | None,
    moves: Callable[[int], bool] = lambda node: True,
) -> None:
    """Let transfers wait for their links.

    Parameters
    ----------
    model
        With everything else in it.
    a
        The graph, times in units.
    sequence
        An order.
    starts
        By node.
    horizon
        A time that nothing need exceed.
    value
        The period; None where a makespan is asked for.
    moves
        Whether a node may change places with others; messages of those that may not keep their order.
    """
    sent: list[list[tuple[int, cp_model.IntVar, int]]] = [[] for _ in a.loads]
    there: dict[int, Any] = {}
    for node in sequence if a.loads else ():
        for message, link, busy in a.sends[node]:
            begin = model.new_int_var(0, horizon, "")
            model.add(begin >= starts[node] + a.duration[node])
            sent[link].append((node, begin, busy))
            there[message] = begin + busy
    for node, messages in enumerate(a.receives):
        for message, later in messages:
            model.add(starts[node] >= there[message] + later)
    for line, load in zip(sent, a.loads, strict=True):
        if not load:
            continue
        last: dict[int, Any] = {}
        ahead: list[Any]
        loose: list[Any]
        ahead, loose = [], []  # ends of what keeps its place, and of what does not, in front of the next
        for node, begin, busy in line:
            if a.twin[node] in last:
                model.add(begin >= last[a.twin[node]])
            last[a.twin[node]] = begin + busy
            for end in ahead if moves(node) else (*ahead, *loose):
                model.add(begin >= end)
            if moves(node):
                loose.append(begin + busy)
            else:
                ahead, loose = [begin + busy], []
        free = [(begin, busy) for node, begin, busy in line if moves(node)]
        model.add_no_overlap([model.new_fixed_size_interval_var(begin, busy, "") for begin, busy in free])
        if value is not None:
            opens = model.new_int_var(0, horizon, "")
            for _, begin, busy in line:
                model.add(opens <= begin)
                model.add(value >= begin + busy - opens)
