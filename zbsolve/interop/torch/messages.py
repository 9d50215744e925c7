"""Whether the sends and receives of a compute_comms CSV are right: torch checks none of it.

`message_faults` finds what is wrong whatever the transport: a message that is missing, sent before it is
there, received too late, or mixed up with another, since there are no tags. `circle` finds
what hangs where all sends and receives of a rank go through one queue, as over NCCL: then a message is *one*
event for both ranks, and the events and operations must not wait for each other in a circle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

from zbsolve.interop.torch.cells import Cell
from zbsolve.ops import Kind

__all__ = ["Fault", "Located", "circle", "message_faults"]

Located = Sequence[tuple[int, Cell]]
"""A row: its actions with the place of the cell each stands in."""

Message = tuple[str, int, int]
"""``F`` or ``B``, the stage that gives it, the microbatch."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, in which row, at which place."""

    row: int
    place: int
    message: str


def message_faults(rows: Sequence[Located], rank_of: Sequence[int]) -> Iterator[Fault]:
    """Everything that is wrong with the messages of rows whose operations are right.

    Parameters
    ----------
    rows
        One a rank.
    rank_of
        The rank of every stage.
    """
    sends: dict[Message, tuple[int, int]] = {}
    receives: dict[Message, tuple[int, int]] = {}
    for rank, row in enumerate(rows):
        done: set[tuple[str, int, int]] = set()
        for place, cell in row:
            if cell.kind is not None:
                done.add((_way(cell), cell.stage, cell.microbatch))
                if (needed := _needs(cell, rank_of)) and needed not in receives:
                    yield Fault(rank, place, f"{cell} runs before its {_receive(needed)}")
            elif cell.action in ("SEND_F", "SEND_B", "RECV_F", "RECV_B"):
                message, mine = _message(cell), (sends if cell.action.startswith("SEND") else receives)
                if (fault := _misplaced(cell, message, rank_of)) is not None:
                    yield Fault(rank, place, fault)
                elif message in mine:
                    yield Fault(rank, place, f"{cell} stands twice in this row")
                else:
                    mine[message] = rank, place
                    what = (cell.action[-1], cell.stage, cell.microbatch)
                    if mine is sends and what not in done:
                        yield Fault(rank, place, f"{cell} sends what has not been computed yet")
                    if mine is receives and what in done:
                        yield Fault(rank, place, f"{cell} comes after the operation that needs it")
    for message, (rank, place) in receives.items():
        if message not in sends:
            yield Fault(rank, place, f"{_receive(message)} waits for {_send(message)}, which stands nowhere")
    for message, (rank, place) in sends.items():
        if message not in receives:
            yield Fault(rank, place, f"{_send(message)} has no {_receive(message)}")
    yield from _mixed_up(sends, receives)


def _way(cell: Cell) -> str:
    """Which message an operation gives."""
    return {Kind.FORWARD: "F", Kind.BACKWARD_WEIGHT: "W"}.get(cell.kind or Kind.FORWARD, "B")


def _needs(cell: Cell, rank_of: Sequence[int]) -> Message | None:
    """The message from another rank that an operation waits for."""
    way = _way(cell)
    before = {"F": cell.stage - 1, "B": cell.stage + 1}.get(way, -1)
    if not 0 <= before < len(rank_of) or rank_of[before] == rank_of[cell.stage]:
        return None
    return way, before, cell.microbatch


def _message(cell: Cell) -> Message:
    way, sending = cell.action[-1], cell.action.startswith("SEND")
    return way, cell.stage if sending else cell.stage + (-1 if way == "F" else 1), cell.microbatch


def _misplaced(cell: Cell, message: Message, rank_of: Sequence[int]) -> str | None:
    way, tail, _ = message
    head = tail + (1 if way == "F" else -1)
    if not (0 <= tail < len(rank_of) and 0 <= head < len(rank_of)):
        return f"{cell} has no stage at its other end"
    if rank_of[tail] == rank_of[head]:
        return f"{cell} goes from stage {tail} to stage {head}, which lie on one rank: torch hands over without it"
    return None


def _send(message: Message) -> str:
    return str(Cell(message[1], f"SEND_{message[0]}", message[2]))


def _receive(message: Message) -> str:
    return str(Cell(message[1] + (1 if message[0] == "F" else -1), f"RECV_{message[0]}", message[2]))


def _mixed_up(sends: dict[Message, tuple[int, int]], receives: dict[Message, tuple[int, int]]) -> Iterator[Fault]:
    """Where the k-th send and the k-th receive from one rank to another are of different messages."""
    edges: dict[tuple[int, int], tuple[list[Message], list[Message]]] = defaultdict(lambda: ([], []))
    both = [message for message in sends if message in receives]
    for which, ends in enumerate((sends, receives)):
        for message in sorted(both, key=lambda m: ends[m]):
            edges[sends[message][0], receives[message][0]][which].append(message)
    for (sender, receiver), (sent, received) in edges.items():
        for s, r in zip_longest(sent, received):
            if s != r:
                rank, place = receives[r]
                yield Fault(
                    rank,
                    place,
                    f"{_receive(r)} would take what {_send(s)} sends: from rank {sender} to rank {receiver} "
                    "the order of sends and receives differs, and torch has no tags",
                )
                break


def circle(rows: Sequence[Located], rank_of: Sequence[int]) -> Fault | None:
    """A send or receive that never starts where each rank has one queue for all of them; None if all do.

    The rows are those in which `message_faults` finds nothing.
    """
    ids: dict[object, int] = {}
    after: dict[int, list[int]] = defaultdict(list)
    waits: dict[int, int] = defaultdict(int)

    def node(of: object) -> int:
        return ids.setdefault(of, len(ids))

    def arc(tail: int, head: int) -> None:
        after[tail].append(head)
        waits[head] += 1

    first: dict[int, tuple[int, int, Cell]] = {}
    for rank, row in enumerate(rows):
        computes, queue = [], []
        for place, cell in row:
            if cell.kind is not None:
                here = node(cell)
                computes.append(here)
                if needed := _needs(cell, rank_of):
                    arc(node(needed), here)
            elif cell.microbatch >= 0:
                here = node(_message(cell))
                first.setdefault(here, (rank, place, cell))
                queue.append(here)
                if computes:
                    arc(computes[-1], here)
        for line in (computes, queue):
            for a, b in pairwise(line):
                arc(a, b)
    ready = [here for here in ids.values() if not waits[here]]
    started = set(ready)
    while ready:
        for later in after[ready.pop()]:
            waits[later] -= 1
            if not waits[later]:
                started.add(later)
                ready.append(later)
    stuck = next((where for here, where in first.items() if here not in started), None)
    if stuck is None:
        return None
    rank, place, cell = stuck
    told = f"{cell} and its other end wait for each other where a rank has one queue for all messages"
    return Fault(rank, place, told)
