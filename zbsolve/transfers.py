"""Transfers on queueing links: when each of them has its link, and how fast the links can repeat them.

A timetable holds the times of operations alone. A link serves in the order of its sender's row, so all else
follows: a transfer starts when its operation has ended and the transfer ahead of it has left the link.

Under the period objective the next iteration's first transfer follows on this one's last, so a link has a span
as a rank has: from the start of its first transfer to the end of its last. The first may be put off as long as all
that follow still arrive in time. So with b_1..b_n what n transfers take, and

    e    the end of the last one, all as soon as possible
    l    the latest start of the first one, all arriving just before they are needed

the link repeats after no less than max(b_1 + .. + b_n, e - l): put the first at l; the last then ends at e, or at
l + b_1 + .. + b_n if all follow on each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem

__all__ = ["Sent", "Timed", "link_spans", "queued_transfers"]


class Timed(Protocol):
    """An operation with its times, in ns."""

    @property
    def op(self) -> Op:
        """What is done."""

    @property
    def start_ns(self) -> int:
        """Planned or measured."""

    @property
    def end_ns(self) -> int:
        """Planned or measured."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One transfer on a queueing link.

    Parameters
    ----------
    tail, head
        The operation that hands over, and the one that needs it.
    sender, receiver
        Their ranks.
    ready_ns
        When `tail` ends.
    start_ns, end_ns
        From when to when it has the link.
    arrival_ns
        When it is there.
    needed_ns
        When `head` starts.
    behind
        Which transfer of the same link it had to wait for, as its place in the list, -1 for the last of the
        iteration before; None if for none.
    """

    tail: Op
    head: Op
    sender: int
    receiver: int
    ready_ns: int
    start_ns: int
    end_ns: int
    arrival_ns: int
    needed_ns: int
    behind: int | None = None

    @property
    def waited_ns(self) -> int:
        """How long it waited for the link."""
        return self.start_ns - self.ready_ns


def queued_transfers(
    problem: Problem, rows: Sequence[Sequence[Timed]], *, period_ns: int | None = None
) -> dict[tuple[int, int | None], list[Sent]]:
    """The transfers of each link that queues, in their order, as soon as possible.

    Parameters
    ----------
    problem
        What was asked.
    rows
        Those of a timetable.
    period_ns
        After which time the next iteration begins; then first transfers wait for the last ones of the iteration
        before. None: nothing comes before.

    Returns
    -------
    By (sender, receiver), with None for a receiver where all that leaves the sender shares one way out.
    """
    if not problem.profile.link.queues:
        return {}
    found = _served(problem, rows, {})
    if period_ns is not None:
        free = {link: sent[-1].end_ns - period_ns for link, sent in found.items()}
        found = _served(problem, rows, free)
    return found


def _served(
    problem: Problem, rows: Sequence[Sequence[Timed]], free: dict[tuple[int, int | None], int]
) -> dict[tuple[int, int | None], list[Sent]]:
    """The transfers of each link, which takes none before it is free."""
    doer = {part: (rank, timed) for rank, row in enumerate(rows) for timed in row for part in timed.op.parts}
    found: dict[tuple[int, int | None], list[Sent]] = {}
    for sender, row in enumerate(rows):
        for timed in row:
            for need, stage in _readers(problem, timed.op):
                receiver, reader = doer.get(need, (sender, timed))
                how = problem.profile.link.queueing_between(sender, receiver)
                if receiver == sender or how is None:
                    continue
                latency, bandwidth = problem.profile.link.between(sender, receiver)
                assert bandwidth is not None
                busy = -(-problem.cost(stage, timed.op.microbatch).output_bytes * 10**9 // bandwidth)
                link = (sender, None if how == "sender" else receiver)
                ahead = found.setdefault(link, [])
                open_ns = ahead[-1].end_ns if ahead else free.get(link, timed.end_ns)
                start = max(open_ns, timed.end_ns)
                end = start + busy
                behind = len(ahead) - 1 if open_ns > timed.end_ns else None
                times = (timed.end_ns, start, end, end + latency, reader.start_ns)
                ahead.append(Sent(timed.op, reader.op, sender, receiver, *times, behind))
    return found


def _readers(problem: Problem, op: Op) -> list[tuple[Op, int]]:
    """The parts that need what an operation hands on, each with the stage whose output it is, or its gradient."""
    found = []
    for part in op.parts:
        if part.microbatch is None or not 0 <= part.stage < problem.placement.stages:
            continue
        if part.kind is Kind.FORWARD and part.stage < problem.placement.stages - 1:
            found.append((Op(Kind.FORWARD, part.stage + 1, part.microbatch), part.stage))
        if part.kind is Kind.BACKWARD_INPUT and part.stage > 0:
            found.append((Op(Kind.BACKWARD_INPUT, part.stage - 1, part.microbatch), part.stage - 1))
    return found


def link_spans(problem: Problem, rows: Sequence[Sequence[Timed]]) -> dict[tuple[int, int | None], int]:
    """The ns after which each queueing link can repeat, the operations at their times."""
    spans = {}
    for link, sent in queued_transfers(problem, rows).items():
        latest = None
        for one in reversed(sent):
            by = one.needed_ns - (one.arrival_ns - one.end_ns)
            latest = (by if latest is None else min(by, latest)) - (one.end_ns - one.start_ns)
        assert latest is not None
        spans[link] = max(sum(one.end_ns - one.start_ns for one in sent), sent[-1].end_ns - latest)
    return spans
