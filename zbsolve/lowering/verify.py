"""Proof, before anything runs, that lowered actions do the right thing and can never hang.

Why one simulation a rule of completion decides it: each rank is a sequential process with no choice,
and whatever an action blocks on (a message was sent, a receive was posted) stays true once it is
true. So two actions that can go now can go in either order with the same outcome (a Kahn process
network), every way of interleaving the ranks runs the same actions, and if one comes to the end of
all rows, all do. If one gets stuck, all get stuck at the same place, whatever the timing.

Three rules are simulated: *buffered* sends, complete as soon as they start (the in-process
transport, and small messages of most others); *rendezvous* sends, complete once the receive is
posted (gloo, NCCL); and rendezvous sends whose receives are posted as late as an executor may, when
they are waited for (the first step, before shapes are known). A real transport lies between them:
it may complete a send earlier or later than the rules say, but not later than the last one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

from zbsolve.errors import OrderError
from zbsolve.lowering.actions import Action, Direction, Do, Lowered, Message
from zbsolve.ops import Op

__all__ = ["RULES", "faults", "verify"]

RULES = ("buffered", "rendezvous", "late rendezvous")
"""When a send completes; see the top of this module."""

_LONGEST_CIRCLE = 8

_Edge = tuple[int, int]
_Places = Mapping[tuple[Do, int], list[tuple[int, int]]]


def verify(lowered: Lowered) -> None:
    """Prove that actions deliver every message once, in order, into free buffers, and cannot hang.

    Raises
    ------
    OrderError
        With every fault found.
    """
    found = faults(lowered)
    if found:
        more = f"\n  ... and {len(found) - 20} more" if len(found) > 20 else ""
        raise OrderError("these actions cannot be run:\n  " + "\n  ".join(found[:20]) + more)


def faults(lowered: Lowered) -> tuple[str, ...]:
    """Everything that is wrong with lowered actions, for people; empty if they can be run."""
    places: dict[tuple[Do, int], list[tuple[int, int]]] = defaultdict(list)
    computes: dict[Op, list[tuple[int, int]]] = defaultdict(list)
    for rank, row in enumerate(lowered.rows):
        for at, action in enumerate(row):
            if action.do is Do.COMPUTE:
                for half in action.op.halves:
                    computes[half].append((rank, at))
            elif not 0 <= action.message < len(lowered.messages):
                return (f"rank {rank}: {action} is of no message",)
            else:
                places[action.do, action.message].append((rank, at))
    found = [*_operations(computes), *_once(lowered, places)]
    if not found:
        found += [*_in_place(lowered, places, computes), *_same_order(lowered), *_slots(lowered)]
    if not found:
        found += [story for rule in RULES for story in _hangs(lowered, rule)]
    return tuple(found)


def _operations(computes: Mapping[Op, Sequence[tuple[int, int]]]) -> Iterator[str]:
    for op, at in computes.items():
        if len(at) > 1:
            yield f"{op} is run {len(at)} times, on ranks {', '.join(str(rank) for rank, _ in at)}"


def _once(lowered: Lowered, places: _Places) -> Iterator[str]:
    """Every message has each of its actions once, on the right rank."""
    for number, message in enumerate(lowered.messages):
        wanted = (
            {Do.HAND_OVER: message.sender}
            if message.local
            else {
                Do.SEND: message.sender,
                Do.COMPLETE: message.sender,
                Do.POST: message.receiver,
                Do.WAIT: message.receiver,
                Do.RELEASE: message.receiver,
            }
        )
        for do in Do:
            if do is Do.COMPUTE:
                continue
            at = [rank for rank, _ in places.get((do, number), ())]
            expected = [wanted[do]] if do in wanted else []
            if at != expected:
                yield f"{do} of message {number}, {message}, is done by ranks {at}; expected {expected}"


def _in_place(lowered: Lowered, places: _Places, computes: Mapping[Op, Sequence[tuple[int, int]]]) -> Iterator[str]:
    """Nothing is sent before it is there, used before it arrived, or let go while it is in use."""
    last: dict[tuple[int, int, int | None], int] = {}
    for op, at in computes.items():
        for rank, place in at:
            key = rank, op.stage, op.microbatch
            last[key] = max(last.get(key, -1), place)
    for number, message in enumerate(lowered.messages):
        ends = {}
        for op, rank in ((message.tail, message.sender), (message.head, message.receiver)):
            if not computes.get(op) or computes[op][0][0] != rank:
                yield f"message {number}: {op} does not run on rank {rank}"
            else:
                ends[op] = computes[op][0][1]
        if len(ends) < 2:
            continue
        place_of = {do: places[do, number][0][1] for do in Do if (do, number) in places}
        tail, head = ends[message.tail], ends[message.head]
        if message.local:
            steps = [
                (tail, place_of[Do.HAND_OVER], "handed over before its operation has run"),
                (place_of[Do.HAND_OVER], head, "used before it is handed over"),
            ]
        else:
            user = last[message.receiver, message.head.stage, message.head.microbatch]
            steps = [
                (tail, place_of[Do.SEND], "sent before its operation has run"),
                (place_of[Do.SEND], place_of[Do.COMPLETE], "completed before it is sent"),
                (place_of[Do.POST], place_of[Do.WAIT], "waited for before it is posted"),
                (place_of[Do.WAIT], head, "used before it is waited for"),
                (user, place_of[Do.RELEASE], "released while its stage may still look at it"),
            ]
        for first, second, what in steps:
            if first >= second:
                yield f"message {number}, {message}, is {what}"


def _same_order(lowered: Lowered) -> Iterator[str]:
    """On every edge the order of sends is the order of posts."""
    for edge, (sent, posted) in _edges(lowered).items():
        for place, (s, p) in enumerate(zip_longest(sent, posted)):
            if s != p:
                yield (
                    f"from rank {edge[0]} to rank {edge[1]}, send {place} is message {s} "
                    f"but receive {place} is for message {p}"
                )
                break


def _edges(lowered: Lowered) -> dict[_Edge, tuple[list[int], list[int]]]:
    """For every edge its messages in the order of sends and in the order of posts."""
    edges: dict[_Edge, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for row in lowered.rows:
        for action in row:
            if action.do in (Do.SEND, Do.POST):
                message = lowered.messages[action.message]
                edges[message.sender, message.receiver][action.do is Do.POST].append(action.message)
    return edges


def _slots(lowered: Lowered) -> Iterator[str]:
    """A slot holds one message at a time, and there are as many as are needed at once, no more."""
    for rank, (row, buffers) in enumerate(zip(lowered.rows, lowered.buffers, strict=True)):
        held: dict[tuple[Direction, int], int] = {}
        alive: dict[Direction, int] = {"forward": 0, "backward": 0}
        most = dict(alive)
        for action in row:
            if action.do not in (Do.POST, Do.RELEASE):
                continue
            number, message = action.message, lowered.messages[action.message]
            key, what = (message.direction, message.slot), f"{message.direction} slot {message.slot}"
            if action.do is Do.RELEASE:
                alive[message.direction] -= 1
                if held.pop(key, None) != number:
                    yield f"rank {rank} releases {what}, which message {number} does not hold"
                continue
            if not 0 <= message.slot < buffers.slots(message.direction):
                yield f"rank {rank} has no {what}, which message {number} needs"
            if key in held:
                yield f"rank {rank} receives message {number} into {what}, where message {held[key]} still is"
            held[key] = number
            alive[message.direction] += 1
            most[message.direction] = max(most[message.direction], alive[message.direction])
        for (direction, slot), number in held.items():
            yield f"rank {rank} never releases {direction} slot {slot} of message {number}"
        for direction, needed in most.items():
            if buffers.slots(direction) != needed:
                yield f"rank {rank} has {buffers.slots(direction)} {direction} slots, but needs {needed} at once"


class _Run:
    """Runs all rows as far as they go under one rule of completion."""

    def __init__(self, lowered: Lowered, rule: str) -> None:
        self.lowered = lowered
        self.reached = [0] * len(lowered.rows)
        self._rendezvous, self._late = rule != "buffered", rule == "late rendezvous"
        self._number: dict[int, int] = {}
        for sent, _ in _edges(lowered).values():
            self._number.update({message: k for k, message in enumerate(sent)})
        self._sent: dict[_Edge, int] = defaultdict(int)
        self._posted: dict[_Edge, int] = defaultdict(int)
        self._waiting: dict[_Edge, set[int]] = defaultdict(set)
        ready = list(range(len(lowered.rows)))
        while ready:
            rank = ready.pop()
            row = lowered.rows[rank]
            while self.reached[rank] < len(row):
                action = row[self.reached[rank]]
                if action.message >= 0:
                    message = lowered.messages[action.message]
                    edge = message.sender, message.receiver
                    freed = self._start(action, edge)
                    if freed:
                        ready += self._waiting.pop(edge, ())
                    if self._blocked(action, edge):
                        self._waiting[edge].add(rank)
                        break
                self.reached[rank] += 1

    def _start(self, action: Action, edge: _Edge) -> bool:
        """What an action makes true at once; whether that is news to the edge."""
        number = self._number.get(action.message, 0) + 1
        if action.do is Do.SEND:
            self._sent[edge] = number
            return True
        if action.do is (Do.WAIT if self._late else Do.POST) and self._posted[edge] < number:
            self._posted[edge] = number
            return True
        return False

    def _blocked(self, action: Action, edge: _Edge) -> bool:
        number = self._number.get(action.message, 0)
        if action.do is Do.WAIT:
            return self._sent[edge] <= number
        return action.do is Do.COMPLETE and self._rendezvous and self._posted[edge] <= number


def _hangs(lowered: Lowered, rule: str) -> Iterator[str]:
    """Run the rows; if some do not come to their end, tell the circle."""
    reached = _Run(lowered, rule).reached
    stuck = {rank: row[reached[rank]] for rank, row in enumerate(lowered.rows) if reached[rank] < len(row)}
    if not stuck:
        return
    rank, path = min(stuck), []
    while rank in stuck and rank not in path:
        path.append(rank)
        rank = _partner(stuck[rank], lowered.messages)
    circle = path[path.index(rank) :] if rank in path else path
    told = [_waits(stuck[r], lowered.messages[stuck[r].message], r) for r in circle]
    if len(told) > _LONGEST_CIRCLE:
        half = _LONGEST_CIRCLE // 2
        told[half:-half] = [f"... ({len(told) - 2 * half} more ranks) ..."]
    end = f"so rank {circle[0]} waits for itself" if rank in path else f"but rank {rank} is at the end of its row"
    yield f"deadlock with {rule} sends: " + "; ".join([*told, end])


def _partner(action: Action, messages: Sequence[Message]) -> int:
    message = messages[action.message]
    return message.sender if action.do is Do.WAIT else message.receiver


def _waits(action: Action, message: Message, rank: int) -> str:
    if action.do is Do.WAIT:
        return f"rank {rank}, before {message.head}, waits for {message.tail} from rank {message.sender}"
    return f"rank {rank} waits until rank {message.receiver} receives {message}"
