"""What a rank does, action by action, and what each action means to an executor.

A rank runs its actions one after the other in one thread. A *message* is what one operation hands
to another: the output of F to F of the next stage, the gradient of B to B of the stage before. Each
action either never blocks or blocks until something has happened that stays true:

============  =====================================================  ==================================
action        what the executor does                                 blocks until
============  =====================================================  ==================================
`post`        takes the message's receive slot and starts receiving  never
`wait`        takes the message in                                   it was sent and has arrived
`compute`     runs the operation                                     never
`hand_over`   gives a message to an operation of this same rank      never
`send`        starts sending the message                             never
`complete`    lets go of what was sent                               the send is complete, see below
`release`     gives the receive slot back                            never
============  =====================================================  ==================================

A *buffered* send is complete once it is started; a *rendezvous* send once its receive is posted as
well. On every ordered pair of ranks (an *edge*) the k-th send and the k-th post belong to the same
message, so that an executor needs neither tags nor a search.

An executor that does not know a message's shape when it is to be posted may post it later, at the
latest when a message of that edge posted no earlier is waited for. That is allowed as well, and proven.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from zbsolve.ops import Kind, Op

__all__ = ["Action", "Buffers", "Direction", "Do", "Lowered", "Message"]

Direction = Literal["forward", "backward"]
"""Which way a message goes: outputs forward, gradients backward."""


class Do(StrEnum):
    """What an action does."""

    POST = "post"
    WAIT = "wait"
    COMPUTE = "compute"
    HAND_OVER = "hand_over"
    SEND = "send"
    COMPLETE = "complete"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Action:
    """One action of a rank.

    Parameters
    ----------
    do
        What it does.
    op
        The operation it is for: the one that runs, that gives the message, or that needs it. What runs
        together is one `compute`; a message is that of one half of the pair.
    message
        Index in `Lowered.messages`; -1 for `compute`.
    """

    do: Do
    op: Op
    message: int = -1

    def __str__(self) -> str:
        return str(self.op) if self.do is Do.COMPUTE else f"{self.do} of message {self.message} for {self.op}"


@dataclass(frozen=True, slots=True)
class Message:
    """What one operation hands to another; sender and receiver are the same rank where it is a local hand-over.

    Parameters
    ----------
    tail, head
        The operation that gives it and the one that needs it; of a pair the half that does.
    sender, receiver
        Their ranks.
    bytes
        Of the tensors, as planned.
    slot
        Receive slot on the receiver, from 0 for each direction; -1 for a local hand-over.
    """

    tail: Op
    head: Op
    sender: int
    receiver: int
    bytes: int
    slot: int

    @property
    def local(self) -> bool:
        """Whether it stays on its rank."""
        return self.sender == self.receiver

    @property
    def direction(self) -> Direction:
        """Outputs go forward, gradients backward."""
        return "forward" if self.head.kind is Kind.FORWARD else "backward"

    def __str__(self) -> str:
        what = "output" if self.direction == "forward" else "input gradient"
        return f"the {what} of {self.tail} for {self.head}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """Message buffers of one rank.

    Parameters
    ----------
    forward_slots, backward_slots
        Receive slots for outputs of the stages before and for gradients from the stages behind:
        the most that are alive at once, from `post` to `release`.
    sends
        The most sends at once that are started and not completed.
    pool_bytes
        Of the receive slots, each as large as the largest message it takes.
    under_way_bytes
        The most bytes at once of messages that no operation counts as its own: received ones from
        `post` until their operation runs, sent ones from `send` to `complete`. They come beside the
        memory limit.
    """

    forward_slots: int
    backward_slots: int
    sends: int
    pool_bytes: int
    under_way_bytes: int

    def slots(self, direction: Direction) -> int:
        """Receive slots of one direction."""
        return self.forward_slots if direction == "forward" else self.backward_slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """The actions of every rank.

    Parameters
    ----------
    rows
        One row a rank.
    messages
        All messages, the actions' indices point here.
    buffers
        Of each rank.
    """

    rows: tuple[tuple[Action, ...], ...]
    messages: tuple[Message, ...]
    buffers: tuple[Buffers, ...]

    def __repr__(self) -> str:
        crossing = sum(not message.local for message in self.messages)
        return (
            f"Lowered({sum(map(len, self.rows))} actions on {len(self.rows)} ranks, {crossing} messages between ranks)"
        )
