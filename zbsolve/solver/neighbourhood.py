"""An order that changes by one operation at a time, and stays an order all the while.

Held as a sequence of all nodes in which each stands after what it needs, so timing is one pass and
a move is a local rearrangement: to put v in front of u in its row, the part of the sequence from u
to v is split into what v needs (which goes with it) and the rest (which stays behind).

A move is refused when operations of one twin class would change places, when v needs an operation
it would overtake, when memory would exceed the limit (prefix sums tell), or when v needs u through
other ranks, which would close a circle.
"""

from __future__ import annotations

from collections.abc import Sequence

from zbsolve.solver.kernels import Arrays

__all__ = ["LiveOrder", "Move"]

Move = tuple[int, int, list[int], int, int]
"""First and last place of the changed part of the sequence, its new content, the node moved, and its
new row predecessor (a number from `len(nodes)` on stands for the front of that rank)."""


class LiveOrder:
    """The sequence with its row links and memory levels.

    Parameters
    ----------
    arrays
        The graph.
    sequence
        The order to begin with; must fit the memory.

    Attributes
    ----------
    sequence
        All nodes, each after what it needs.
    place
        Where each node stands in it.
    before, after
        Row predecessor and successor of each node; -1 after the last; ``N + r`` before the first of rank r.
    last
        The last node of each rank; ``N + r`` if it has none.
    level
        Bytes on its rank before each node starts.
    """

    def __init__(self, arrays: Arrays, sequence: Sequence[int]) -> None:
        self.arrays = arrays
        nodes = len(arrays.rank)
        self.sequence = list(sequence)
        self.place = [0] * nodes
        self.before = [0] * nodes
        self.after = [-1] * (nodes + arrays.ranks)
        self.last = [nodes + r for r in range(arrays.ranks)]
        self.level = [0] * nodes
        held = list(arrays.base)
        for place, node in enumerate(self.sequence):
            r = arrays.rank[node]
            self.place[node] = place
            self.before[node] = ahead = self.last[r]
            self.after[ahead] = node
            self.last[r] = node
            self.level[node] = held[r]
            held[r] += arrays.start_bytes[node] + arrays.end_bytes[node]

    def earlier(self, node: int, steps: int) -> Move | None:
        """The move of a node in front of its `steps`-th row predecessor; None if it is refused."""
        a = self.arrays
        nodes, before, level = len(a.rank), self.before, self.level
        twin, needed, limit = a.twin[node], a.preds[node], a.limit[a.rank[node]]
        change = a.start_bytes[node] + a.end_bytes[node]
        target = node
        for _ in range(steps):
            ahead = before[target]
            if ahead >= nodes:
                break
            if a.twin[ahead] == twin or ahead in needed:
                return None
            if change > 0 and level[ahead] + change + a.start_bytes[ahead] > limit:
                return None
            target = ahead
        if target == node or level[target] + a.start_bytes[node] > limit:
            return None
        low, high = self.place[target], self.place[node]
        region = self._carry_back(low, high)
        return None if region is None else (low, high, region, node, before[target])

    def later(self, node: int, steps: int) -> Move | None:
        """The move of a node behind its `steps`-th row successor; None if it is refused."""
        a = self.arrays
        after, level, preds = self.after, self.level, a.preds
        twin, limit = a.twin[node], a.limit[a.rank[node]]
        change = a.start_bytes[node] + a.end_bytes[node]
        target = node
        for _ in range(steps):
            behind = after[target]
            if behind < 0:
                break
            if a.twin[behind] == twin or node in preds[behind]:
                return None
            if change < 0 and level[behind] - change + a.start_bytes[behind] > limit:
                return None
            target = behind
        if target == node:
            return None
        if level[target] + a.end_bytes[target] + a.start_bytes[target] - change + a.start_bytes[node] > limit:
            return None
        low, high = self.place[node], self.place[target]
        region = self._carry_on(low, high)
        return None if region is None else (low, high, region, node, target)

    def _carry_back(self, low: int, high: int) -> list[int] | None:
        """The part with its last node in front, behind only what it needs."""
        a, sequence = self.arrays, self.sequence
        rank, preds = a.rank, a.preds
        node = sequence[high]
        own = rank[node]
        wanted = set(preds[node])
        ranks: set[int] = set()
        with_it, behind = [], []
        for place in range(high - 1, low - 1, -1):
            other = sequence[place]
            r = rank[other]
            if r in ranks or other in wanted:
                if r == own:
                    return None
                ranks.add(r)
                wanted.update(preds[other])
                with_it.append(other)
            else:
                behind.append(other)
        with_it.reverse()
        behind.reverse()
        return [*with_it, node, *behind]

    def _carry_on(self, low: int, high: int) -> list[int] | None:
        """The part with its first node at the end, ahead only of what needs it."""
        a, sequence = self.arrays, self.sequence
        rank, preds = a.rank, a.preds
        node = sequence[low]
        own = rank[node]
        moved = {node}
        ranks: set[int] = set()
        ahead, with_it = [], []
        for place in range(low + 1, high + 1):
            other = sequence[place]
            r = rank[other]
            if r in ranks or not moved.isdisjoint(preds[other]):
                if r == own:
                    return None
                ranks.add(r)
                moved.add(other)
                with_it.append(other)
            else:
                ahead.append(other)
        return [*ahead, node, *with_it]

    def link(self, node: int, ahead: int) -> int:
        """Take a node out of its row and put it behind `ahead`; returns what it stood behind, to undo."""
        before, after = self.before, self.after
        rank = self.arrays.rank[node]
        old, behind = before[node], after[node]
        after[old] = behind
        if behind >= 0:
            before[behind] = old
        else:
            self.last[rank] = old
        behind = after[ahead]
        after[ahead] = node
        before[node] = ahead
        after[node] = behind
        if behind >= 0:
            before[behind] = node
        else:
            self.last[rank] = node
        return old

    def commit(self, move: Move) -> None:
        """Make a move whose rows are linked already the present state."""
        low, high, region, node, _ = move
        a, place, level = self.arrays, self.place, self.level
        self.sequence[low : high + 1] = region
        rank = a.rank[node]
        nodes = len(a.rank)
        for at, other in enumerate(region, low):
            place[other] = at
        for other in region:
            if a.rank[other] == rank:
                ahead = self.before[other]
                level[other] = (
                    a.base[rank] if ahead >= nodes else level[ahead] + a.start_bytes[ahead] + a.end_bytes[ahead]
                )
