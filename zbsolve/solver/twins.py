"""First in, first out: of operations that are alike, the k-th to run may as well be the k-th microbatch's.

Let a class be operations of one kind and stage that differ in nothing but their microbatch (`OpGraph.twin`).
Give the k-th place that a class has in an order to the k-th microbatch of the class, for all classes
at once. Nothing is lost: where F(s+1, j) started no earlier than the end of F(s, j) plus a lag for every
j, the k-th start on stage s+1 is no earlier than the k-th end on stage s plus the lag, since both sides
are only sorted; the same holds from F to B, from B to W and along the backward chain. Places, times and
memory stay as they were.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["in_turn"]


def in_turn(twin: Sequence[int], microbatch: Sequence[int], sequence: Sequence[int]) -> list[int]:
    """The sequence with the nodes of each class in microbatch order, in the places the class had.

    Parameters
    ----------
    twin, microbatch
        By node: its class, its microbatch.
    sequence
        Nodes, each after what it needs; so is the result.
    """
    classes: dict[int, list[int]] = {}
    for node in sequence:
        classes.setdefault(twin[node], []).append(node)
    waiting = {name: iter(sorted(nodes, key=microbatch.__getitem__)) for name, nodes in classes.items()}
    return [next(waiting[twin[node]]) for node in sequence]
