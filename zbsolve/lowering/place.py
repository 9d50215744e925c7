"""Placing sends, receives and buffers by the planned times.

All operations are put in one sequence that respects rows, arcs and planned starts. Every action
that blocks is placed at an operation that comes *after* what it waits for in that sequence::

    sender's row      ... F3  send ...................  complete  F7 ...    F7 is later than G3
    receiver's row    ... post  F2 ...  wait  G3 ......                     F2 runs when F3 ends

so a rank only ever waits for something earlier in the sequence, and nothing can wait in a circle.
Receives are posted just early enough for the transfer to start when its sender is done; slots go
to posts in row order, lowest free one first, which for intervals uses as few as can be. Copies to host
memory and back run by themselves once they are issued, so for all of this they take no time, and stand where
the computing ahead of them in the row has ended.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zbsolve.check import violations
from zbsolve.errors import OrderError
from zbsolve.lowering.actions import Action, Buffers, Do, Lowered, Message
from zbsolve.opgraph import KINDS, OpGraph
from zbsolve.opgraph.pairs import handed
from zbsolve.ops import Kind, Op
from zbsolve.timetable import Timetable

__all__ = ["lower"]


def lower(timetable: Timetable, *, forward_only: bool = False) -> Lowered:
    """Turn a timetable into what every rank does.

    Parameters
    ----------
    timetable
        Any timetable of any placement. Its rows decide the order of operations, its times only
        where sends, receives and completions stand. Reductions of gradients and optimizers are left
        to the executor.
    forward_only
        Keep the forwards alone, for evaluation.

    Raises
    ------
    OrderError
        If the rows are no order of the problem or can never finish, with who waits for whom, or
        if an operation is planned to start before what it needs has ended.
    """
    rows = timetable.rows
    graph = OpGraph.build(timetable.problem, timetable.order.rows)
    encoded = [row.tolist() for row in graph.encode(timetable.order)]
    start, end = [0] * len(graph), [0] * len(graph)
    for row, timed_row in zip(encoded, rows, strict=True):
        for node, timed in zip(row, timed_row, strict=True):
            start[node], end[node] = timed.start_ns, timed.end_ns
    # what ends the iteration is the executor's own: it sums and optimizes as stages are complete
    nodes = [[node for node in row if graph.microbatch[node] >= 0] for row in encoded]
    _refuse_impossible_times(graph, nodes, start, end)
    _issue_copies(graph, nodes, start, end)
    ops = [graph.op(node) for node in range(len(graph))]
    plan = _Plan(graph, nodes, start, end, _sequence(timetable, graph, nodes, start), ops)
    if forward_only:
        forward = KINDS.index(Kind.FORWARD)
        keep = (graph.kind == forward).tolist()
        forwards = [op.halves[0] for op in ops]  # of what runs together, the forward
        plan = _Plan(graph, [[n for n in row if keep[n]] for row in nodes], start, end, plan.sequence, forwards)
    return _assemble(plan)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The rows as nodes, with planned times, the place of every node in the one sequence, and its operation."""

    graph: OpGraph
    rows: list[list[int]]
    start: list[int]
    end: list[int]
    sequence: list[int]
    ops: list[Op]


@dataclass(slots=True)
class _Crossing:
    """A message between ranks or within one: nodes, and places in the rows (post, complete, release)."""

    tail: int
    head: int
    tail_op: Op
    head_op: Op
    bytes: int
    tail_place: int
    head_place: int
    post: int = 0
    complete: int = 0
    release: int = 0


def _refuse_impossible_times(graph: OpGraph, rows: list[list[int]], start: list[int], end: list[int]) -> None:
    before = [(a, b) for row in graph.by_lane(rows) for a, b in itertools.pairwise(row)]
    before += [(ahead, copy) for row in rows for ahead, copy in _copies(graph, row)]
    once = (graph.microbatch < 0).tolist()
    arcs = zip(graph.arc_tail.tolist(), graph.arc_head.tolist(), strict=True)
    needed = [(tail, head) for tail, head in arcs if not once[head]]
    for tail, head in (*before, *needed):
        if start[head] < end[tail] or end[head] < start[head]:
            raise OrderError(
                f"{graph.op(head)} is planned to start at {start[head]} ns, but {graph.op(tail)}, which comes before "
                f"it, ends at {end[tail]} ns; time the order with simulate"
            )


def _copies(graph: OpGraph, row: list[int]) -> Iterator[tuple[int, int]]:
    """The copies of a row, each with the last computation ahead of it, which there always is: its forward."""
    lane, rank = graph.lane.tolist(), graph.rank.tolist()
    ahead = -1
    for node in row:
        if lane[node] == rank[node]:
            ahead = node
        elif ahead >= 0:
            yield ahead, node


def _issue_copies(graph: OpGraph, rows: list[list[int]], start: list[int], end: list[int]) -> None:
    """Put copies where they are issued."""
    for row in rows:
        for ahead, copy in _copies(graph, row):
            start[copy] = end[copy] = end[ahead]


def _sequence(timetable: Timetable, graph: OpGraph, rows: list[list[int]], start: list[int]) -> list[int]:
    """The place of every node in one sequence in which rows, arcs and planned starts ascend."""
    pointers, tails = graph.pred_ptr.tolist(), graph.arc_tail.tolist()
    place = [-1] * len(graph)
    reached = [0] * len(rows)
    waiting: dict[int, list[int]] = defaultdict(list)
    ready = [(start[row[0]], rank) for rank, row in enumerate(rows) if row]
    heapq.heapify(ready)
    count = 0
    while ready:
        _, rank = heapq.heappop(ready)
        node = rows[rank][reached[rank]]
        blocker = next((t for t in tails[pointers[node] : pointers[node + 1]] if place[t] < 0), -1)
        if blocker >= 0:
            waiting[blocker].append(rank)
            continue
        place[node] = count
        count += 1
        reached[rank] += 1
        freed = waiting.pop(node, [])
        if reached[rank] < len(rows[rank]):
            freed.append(rank)
        for other in freed:
            heapq.heappush(ready, (start[rows[other][reached[other]]], other))
    if count < sum(map(len, rows)):
        found = violations(timetable.problem, timetable.order)
        story = "; ".join(v.message for v in found if v.code in ("deadlock", "precedence"))
        raise OrderError(f"the order can never finish: {story or 'its ranks wait for each other'}")
    return place


def _assemble(plan: _Plan) -> Lowered:
    crossings = _crossings(plan)
    graph, ranks = plan.graph, len(plan.rows)
    rank_of = graph.rank.tolist()
    by_edge: dict[tuple[int, int], list[_Crossing]] = defaultdict(list)
    last_use = _last_uses(plan)
    for crossing in crossings:
        edge = rank_of[crossing.tail], rank_of[crossing.head]
        if edge[0] != edge[1]:
            by_edge[edge].append(crossing)
            crossing.release = last_use[rank_of[crossing.head], _cell(crossing.head_op)]
    for edge, on_edge in by_edge.items():
        on_edge.sort(key=lambda c: c.tail_place)
        _place_posts(plan, edge[1], on_edge)
        _place_completions(plan, edge[0], on_edge)
    writer = _Writer(plan.ops, rank_of, crossings, ranks)
    rows = tuple(writer.row(rank, row) for rank, row in enumerate(plan.rows))
    messages = tuple(
        Message(c.tail_op, c.head_op, rank_of[c.tail], rank_of[c.head], c.bytes, writer.slot.get(m, -1))
        for m, c in enumerate(crossings)
    )
    buffers = tuple(_buffers(row, messages) for row in rows)
    return Lowered(rows=rows, messages=messages, buffers=buffers)


def _crossings(plan: _Plan) -> list[_Crossing]:
    """Every tensor handed along, in the sequence of the operations that give it."""
    graph = plan.graph
    place = {node: at for row in plan.rows for at, node in enumerate(row)}
    columns = (graph.arc_tail.tolist(), graph.arc_head.tolist(), graph.arc_bytes.tolist())
    found: list[_Crossing] = []
    before: Counter[tuple[int, int]] = Counter()
    for tail, head, size in zip(*columns, strict=True):
        if size >= 0 and tail in place and head in place:
            possible = handed(plan.ops[tail], plan.ops[head])
            at = before[tail, head]
            if at < len(possible):  # else one of a backward, which is left out
                before[tail, head] += 1
                found.append(_Crossing(tail, head, *possible[at], size, place[tail], place[head]))
    found.sort(key=lambda c: (plan.sequence[c.tail], plan.sequence[c.head]))
    return found


def _cell(op: Op) -> tuple[int, int | None]:
    return op.stage, op.microbatch


def _last_uses(plan: _Plan) -> dict[tuple[int, tuple[int, int | None]], int]:
    """Where in its row a stage is done with a microbatch: until then it may look at what it received."""
    return {
        (rank, _cell(op)): at
        for rank, row in enumerate(plan.rows)
        for at, node in enumerate(row)
        for op in plan.ops[node].halves
    }


def _place_posts(plan: _Plan, receiver: int, on_edge: list[_Crossing]) -> None:
    """Before the operation that runs when the sender is done; never later than a later send of the edge."""
    row = plan.rows[receiver]
    at = 0
    for crossing in on_edge:
        sent = plan.end[crossing.tail]
        while at < len(row) and plan.end[row[at]] <= sent:
            at += 1
        crossing.post = min(at, crossing.head_place)
    latest = len(row)
    for crossing in reversed(on_edge):
        crossing.post = latest = min(crossing.post, latest)


def _place_completions(plan: _Plan, sender: int, on_edge: list[_Crossing]) -> None:
    """Before the first operation that comes after the one that needs the message, in the one sequence."""
    row = plan.rows[sender]
    for crossing in on_edge:
        needed = plan.sequence[crossing.head]
        at, beyond = crossing.tail_place + 1, len(row)
        while at < beyond:
            middle = (at + beyond) // 2
            if plan.sequence[row[middle]] > needed:
                beyond = middle
            else:
                at = middle + 1
        crossing.complete = at


class _Writer:
    """Writes the rows; gives every post the lowest slot that is free."""

    def __init__(self, ops: list[Op], rank_of: list[int], crossings: list[_Crossing], ranks: int) -> None:
        self.slot: dict[int, int] = {}
        self._ops, self._crossings = ops, crossings
        self._outgoing: dict[int, list[int]] = defaultdict(list)
        self._incoming: dict[int, list[int]] = defaultdict(list)
        self._posts: list[dict[int, list[int]]] = [defaultdict(list) for _ in range(ranks)]
        self._completions: list[dict[int, list[int]]] = [defaultdict(list) for _ in range(ranks)]
        self._releases: list[dict[int, list[int]]] = [defaultdict(list) for _ in range(ranks)]
        self._local = [rank_of[c.tail] == rank_of[c.head] for c in crossings]
        # crossings ascend in the sequence of their tails, so every list here is in the order of its edge's sends
        for message, crossing in enumerate(crossings):
            self._outgoing[crossing.tail].append(message)
            if self._local[message]:
                continue
            self._incoming[crossing.head].append(message)
            self._posts[rank_of[crossing.head]][crossing.post].append(message)
            self._completions[rank_of[crossing.tail]][crossing.complete].append(message)
            self._releases[rank_of[crossing.head]][crossing.release].append(message)

    def row(self, rank: int, nodes: Sequence[int]) -> tuple[Action, ...]:
        """The actions of one rank."""
        made: list[Action] = []
        free: dict[bool, list[int]] = {True: [], False: []}
        used = {True: 0, False: 0}
        posts, completions, releases = self._posts[rank], self._completions[rank], self._releases[rank]
        for at in range(len(nodes) + 1):
            for message in posts.get(at, ()):
                forward = self._head(message).kind is Kind.FORWARD
                if free[forward]:
                    self.slot[message] = heapq.heappop(free[forward])
                else:
                    self.slot[message] = used[forward]
                    used[forward] += 1
                made.append(Action(Do.POST, self._head(message), message))
            made += [Action(Do.COMPLETE, self._tail(message), message) for message in completions.get(at, ())]
            if at == len(nodes):
                break
            node = nodes[at]
            made += [Action(Do.WAIT, self._head(message), message) for message in self._incoming.get(node, ())]
            made.append(Action(Do.COMPUTE, self._ops[node]))
            for message in self._outgoing.get(node, ()):
                do = Do.HAND_OVER if self._local[message] else Do.SEND
                made.append(Action(do, self._tail(message), message))
            for message in releases.get(at, ()):
                forward = self._head(message).kind is Kind.FORWARD
                heapq.heappush(free[forward], self.slot[message])
                made.append(Action(Do.RELEASE, self._head(message), message))
        return tuple(made)

    def _head(self, message: int) -> Op:
        return self._crossings[message].head_op

    def _tail(self, message: int) -> Op:
        return self._crossings[message].tail_op


def _buffers(row: Sequence[Action], messages: Sequence[Message]) -> Buffers:
    """Walk a row and see how many buffers it has at once."""
    largest: dict[tuple[str, int], int] = {}
    entering: dict[Op, int] = defaultdict(int)
    sends = most_sends = under_way = most_under_way = 0
    for action in row:
        message = messages[action.message] if action.message >= 0 else None
        if message is None:
            under_way -= sum(entering.pop(half, 0) for half in action.op.halves)
        elif action.do is Do.POST:
            key = message.direction, message.slot
            largest[key] = max(largest.get(key, 0), message.bytes)
            entering[message.head] += message.bytes
            under_way += message.bytes
        elif action.do is Do.SEND:
            sends += 1
            under_way += message.bytes
        elif action.do is Do.COMPLETE:
            sends -= 1
            under_way -= message.bytes
        most_sends, most_under_way = max(most_sends, sends), max(most_under_way, under_way)
    return Buffers(
        forward_slots=sum(direction == "forward" for direction, _ in largest),
        backward_slots=sum(direction == "backward" for direction, _ in largest),
        sends=most_sends,
        pool_bytes=sum(largest.values()),
        under_way_bytes=most_under_way,
    )
