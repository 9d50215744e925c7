"""How states reach the neighbours: two messages a step and neighbour, five numbers each.

::

    rank r-1  --- prefix --->  rank r  --- prefix --->  rank r+1      in `step_begin`
    rank r-1  <--- full -----  rank r  <--- full -----  rank r+1      in `validate`

Sending returns at once, whatever the receiver does: a send that waits for its receiver would be
the barrier that post-validation is there to avoid. Each direction of a pair is first in, first out.
"""

from __future__ import annotations

import queue
from typing import Protocol

from zbsolve.errors import InvalidInput, RunError
from zbsolve.executor.optimizer.verdict import Words

__all__ = ["Channel", "QueueChannel", "queue_channels"]


class Channel(Protocol):
    """What `PostValidatedOptimizer` needs of a transport; the runtime's own will do."""

    def send(self, to: int, words: Words) -> None:
        """Hand five float64 numbers to a neighbouring position and return at once."""

    def receive(self, source: int) -> Words:
        """Wait for the next five numbers from a neighbouring position, bits unchanged."""


class QueueChannel:
    """One rank's end of the queues between threads of one process.

    Parameters
    ----------
    rank
        Position of this end.
    queues
        A queue for each ordered pair of neighbours, shared by all ends.
    timeout_s
        How long to wait for a neighbour before giving it up.
    """

    def __init__(self, rank: int, queues: dict[tuple[int, int], queue.SimpleQueue[Words]], timeout_s: float) -> None:
        self._rank = rank
        self._queues = queues
        self._timeout_s = timeout_s

    def send(self, to: int, words: Words) -> None:
        """Put the numbers into the neighbour's queue."""
        self._queues[self._rank, to].put(words)

    def receive(self, source: int) -> Words:
        """Take the next numbers from the neighbour's queue.

        Raises
        ------
        RunError
            If none come in time.
        """
        try:
            return self._queues[source, self._rank].get(timeout=self._timeout_s)
        except queue.Empty:
            what = "prefix" if source < self._rank else "full"
            raise RunError(
                f"rank {self._rank} waited {self._timeout_s:g} s for the {what} gradient state of rank {source}: "
                "that rank failed, or its calls of step_begin and validate do not match"
            ) from None


def queue_channels(ranks: int, timeout_s: float = 60.0) -> tuple[QueueChannel, ...]:
    """Channels of ``ranks`` threads of this process, one each."""
    if ranks < 1:
        raise InvalidInput(f"ranks must be at least 1, not {ranks}")
    pairs = [(a, b) for a in range(ranks) for b in (a - 1, a + 1) if 0 <= b < ranks]
    queues: dict[tuple[int, int], queue.SimpleQueue[Words]] = {pair: queue.SimpleQueue() for pair in pairs}
    return tuple(QueueChannel(rank, queues, timeout_s) for rank in range(ranks))
