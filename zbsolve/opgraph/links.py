"""Links on which transfers queue: which of them a problem uses, and who has to take which.

A transfer is no node: it stands in no row, and whoever walks rows would have to step around it. It is what
its arc says: `arc_link` takes it for `arc_busy_ns`, after the transfer ahead of it in the order of the sender's
row, and the rest of `arc_lag_ns` later it is there. The lag is what a transfer takes that need not wait::

    rank 0    F0 |====|F1 |====|
    link 0->1         |== 0 ====|== 1 ====|          arc_busy_ns each; 1 waits for 0
    rank 1                      ...F0 |====|...F1 |====|   the dots: lag less busy, the latency

So whatever looks at lags alone sees times that are too early at most: a relaxation.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from zbsolve.problem import Problem

__all__ = ["QueueingLink", "link_numbers", "links_of"]


@dataclass(frozen=True, slots=True)
class QueueingLink:
    """What serves one transfer at a time.

    Parameters
    ----------
    sender
        The rank that sends.
    receiver
        The rank that receives; None where all that leaves the sender shares one way out.
    """

    sender: int
    receiver: int | None

    def __str__(self) -> str:
        return f"out of rank {self.sender}" if self.receiver is None else f"{self.sender} -> {self.receiver}"


def links_of(problem: Problem) -> tuple[QueueingLink, ...]:
    """The queueing links of a problem, by sender and receiver."""
    return tuple(
        sorted(
            set(_by_pair(problem).values()), key=lambda one: (one.sender, -1 if one.receiver is None else one.receiver)
        )
    )


def link_numbers(problem: Problem) -> dict[tuple[int, int], int]:
    """Which of `links_of` a transfer between an ordered pair of ranks takes; pairs that do not queue are not there."""
    number = {link: at for at, link in enumerate(links_of(problem))}
    return {pair: number[link] for pair, link in _by_pair(problem).items()}


def _by_pair(problem: Problem) -> dict[tuple[int, int], QueueingLink]:
    link = problem.profile.link
    if not link.queues:
        return {}
    found: dict[tuple[int, int], QueueingLink] = {}
    for route in problem.placement.routes:
        for above, below in itertools.pairwise(route):
            for pair in ((above, below),) if problem.forward_only else ((above, below), (below, above)):
                how = link.queueing_between(*pair)
                if pair[0] != pair[1] and how is not None:
                    found[pair] = QueueingLink(pair[0], None if how == "sender" else pair[1])
    return found
