"""Sends and receives between the operations of a row, in one order for all ranks.

torch posts a receive where it stands in the row and waits for it at the operation that needs it. Over
NCCL all sends and receives of a rank go through one queue, one after the other, and there are no
tags: two ranks whose queues have two messages in different orders wait for each other for ever.

So all messages and operations are put in *one* sequence, by the planned time at which an operation ends
or a message sets out, and every row is a part of that sequence::

    rank 0    0F0  0SEND_F0  0F1  0RECV_B0 ...        a message is one point in time: what one rank
    rank 1         1RECV_F0  1F0  1SEND_B0 ...        sends between two points, the other receives there

Whatever waits then waits for something earlier in the sequence. A receive stands ahead of the operation
that runs when the message sets out, so that the transfer can begin then.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

from zbsolve.errors import OrderError
from zbsolve.interop.torch.cells import Cell
from zbsolve.interop.torch.messages import circle, message_faults
from zbsolve.lowering import Message, lower
from zbsolve.ops import Kind, Op
from zbsolve.timetable import Timetable

__all__ = ["GATHERED", "comms_rows", "in_one_sequence"]

GATHERED = 3
"""How many stages of a rank keep sharded weights gathered at once: as many as with torch's own lowering."""


def comms_rows(timetable: Timetable, number: Sequence[int] | None = None) -> list[list[Cell]]:
    """The cells of a compute_comms CSV, one row a rank.

    Besides sends and receives there are the actions that torch's runtime expects for sharded weights (it
    does nothing for them elsewhere), and the one that scales and reduces the gradients of a stage.

    Parameters
    ----------
    timetable
        Of a placement with one route; only kinds of `cells.LETTERS`.
    number
        The microbatch that each microbatch of the timetable is called; default its own number.

    Raises
    ------
    OrderError
        If the rows are no order of the problem or can never finish.
    """
    rows = [_with_weights(row) for row in in_one_sequence(timetable)]
    located = [[(place, half) for place, cell in enumerate(row) for half in cell.halves] for row in rows]
    route = timetable.problem.placement.routes[0]
    fault = next(message_faults(located, route), None) or circle(located, route)
    if fault is not None:  # never, by the argument above
        raise OrderError(f"rank {fault.row}: {fault.message}")
    if number is None:
        return rows

    def renumbered(cell: Cell) -> Cell:
        beside = None if cell.beside is None else renumbered(cell.beside)
        return Cell(cell.stage, cell.action, number[cell.microbatch] if cell.microbatch >= 0 else -1, beside)

    return [list(map(renumbered, row)) for row in rows]


def in_one_sequence(timetable: Timetable, *, hand_over: bool = False) -> list[list[Cell]]:
    """Operations and messages of every rank, in an order of time that keeps rows and precedences.

    With `hand_over` a message within a rank is a send and a receive as well, next to each other.
    """
    lowered = lower(timetable)
    messages = [message for message in lowered.messages if hand_over or not message.local]
    outgoing: dict[Op, list[int]] = defaultdict(list)
    missing: dict[Op, int] = defaultdict(int)
    for number, message in enumerate(messages):
        outgoing[message.tail].append(number)
        missing[message.head] += 1
    rows: list[list[Cell]] = [[] for _ in timetable.rows]
    reached = [0] * len(rows)
    # of things at one time messages go first: what waits for them may take no time at all
    heap: list[tuple[int, int, int]] = []

    def enter(rank: int) -> None:
        if reached[rank] < len(timetable.rows[rank]):
            timed = timetable.rows[rank][reached[rank]]
            if not any(missing[half] for half in timed.op.halves):
                heapq.heappush(heap, (timed.end_ns, 1, rank))

    for rank in range(len(rows)):
        enter(rank)
    while heap:
        now, is_operation, which = heapq.heappop(heap)
        if is_operation:
            op = timetable.rows[which][reached[which]].op
            rows[which].append(Cell.of(op))
            reached[which] += 1
            for half in op.halves:
                for number in outgoing[half]:
                    heapq.heappush(heap, (now, 0, number))
            enter(which)
        else:
            message = messages[which]
            rows[message.sender].append(_end(message, "SEND", message.tail))
            rows[message.receiver].append(_end(message, "RECV", message.head))
            missing[message.head] -= 1
            row = timetable.rows[message.receiver]
            if not missing[message.head] and message.head in row[reached[message.receiver]].op.halves:
                enter(message.receiver)
    return rows


def _end(message: Message, what: str, op: Op) -> Cell:
    assert op.microbatch is not None
    return Cell(op.stage, f"{what}_{'F' if message.head.kind is Kind.FORWARD else 'B'}", op.microbatch)


def _with_weights(row: Sequence[Cell]) -> list[Cell]:
    """The row with weights gathered ahead of their use and dropped after it, and gradients reduced when complete."""
    uses: dict[int, deque[int]] = defaultdict(deque)
    last_gradient: dict[int, int] = {}
    for at, half in ((at, half) for at, cell in enumerate(row) for half in cell.halves):
        if half.kind is not None:
            uses[half.stage].append(at)
            if half.kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT):
                last_gradient[half.stage] = at
    made: list[Cell] = []
    gathered: list[int] = []
    complete: list[Cell] = []
    for at, cell in enumerate(row):
        if not (cell.action == "SEND_B" and complete and complete[0].stage == cell.stage):
            made += complete
            complete = []
        if cell.kind is not None:
            wanted = _soonest(uses, GATHERED)
            made += [Cell(stage, "RESHARD", -1) for stage in gathered if stage not in wanted]
            made += [Cell(stage, "UNSHARD", -1) for stage in wanted if stage not in gathered]
            gathered = [stage for stage in gathered if stage in wanted] + [s for s in wanted if s not in gathered]
            for half in cell.halves:
                uses[half.stage].popleft()
        made.append(cell)
        for half in cell.halves:
            if last_gradient.get(half.stage) == at:
                complete = [Cell(half.stage, "REDUCE_GRAD", -1)]
    return [*made, *complete, *(Cell(stage, "RESHARD", -1) for stage in gathered)]


def _soonest(uses: dict[int, deque[int]], count: int) -> list[int]:
    """The stages that run next, each once."""
    soonest: Iterable[tuple[int, int]] = ((at[0], stage) for stage, at in uses.items() if at)
    return [stage for _, stage in heapq.nsmallest(count, soonest)]
