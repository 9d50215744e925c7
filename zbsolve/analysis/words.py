"""Idle times and critical paths in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zbsolve.analysis.critical import CriticalPath
from zbsolve.analysis.holds import Hold, chain
from zbsolve.analysis.idle import Cause, Idle, place_that_fits
from zbsolve.analysis.network import Network
from zbsolve.units import counted, format_bytes, format_ns

__all__ = ["MEANING", "Bubble", "bubbles", "path_in_words"]

MEANING = {
    Cause.DATA: "waits for an operation of another rank",
    Cause.QUEUE: "what it waits for has to wait for its link, which is busy",
    Cause.LINK: "what it waits for is on its way",
    Cause.MEMORY: "operations are ready, but do not fit in memory",
    Cause.ORDER: "an operation is ready and fits, but the row puts another first",
    Cause.LATE: "the next operation could run, but is planned later",
    Cause.PACE: "ready for the next iteration, which the slowest cycle of ranks paces",
    Cause.DONE: "nothing left to do until the iteration ends",
}
"""Each cause in words."""

_TOLD_HOPS = 3


@dataclass(frozen=True, slots=True)
class Bubble:
    """The whole idle time before one operation of a rank.

    Parameters
    ----------
    pieces
        Its pieces in the order of time, each with a cause.
    text
        Why, in words.
    """

    pieces: tuple[Idle, ...]
    text: str

    @property
    def length_ns(self) -> int:
        """How long it lasts."""
        return self.pieces[-1].end_ns - self.pieces[0].start_ns


def bubbles(network: Network, pieces: Sequence[Idle], *, most: int, least_ns: int = 1) -> tuple[Bubble, ...]:
    """The longest bubbles, told.

    Parameters
    ----------
    network
        Of the timetable.
    pieces
        Its idle times.
    most
        How many at most.
    least_ns
        How long they are at least.
    """
    grouped: dict[tuple[int, int | None, bool], list[Idle]] = {}
    for piece in pieces:
        grouped.setdefault((piece.rank, piece.before, piece.wraps), []).append(piece)
    groups = [group for group in grouped.values() if group[-1].end_ns - group[0].start_ns >= least_ns]
    groups.sort(key=lambda group: (group[0].start_ns - group[-1].end_ns, group[0].rank))
    return tuple(Bubble(tuple(group), _told(network, group)) for group in groups[:most])


def _told(network: Network, group: Sequence[Idle]) -> str:
    first, length = group[0], format_ns(group[-1].end_ns - group[0].start_ns)
    if first.before is None:
        return f"rank {first.rank} idles {length} at the end: nothing is left for it to do"
    following = " of the next iteration" if first.wraps else ""
    reasons: list[tuple[int, str]] = []
    for piece in group:
        if piece.cause is Cause.LINK and reasons:  # the last bit of the same wait
            before, why = reasons.pop()
            reasons.append((before + piece.length_ns, f"{why} ({format_ns(piece.length_ns)} of it on the link)"))
        else:
            reasons.append((piece.length_ns, _why(network, piece)))
    told = [why if len(reasons) == 1 else f"{format_ns(ns)} as it {why}" for ns, why in reasons]
    return f"rank {first.rank} idles {length} before {_own(network, first.before)}{following}: {'; then '.join(told)}"


def _why(network: Network, piece: Idle) -> str:
    match piece.cause:
        case Cause.DATA:
            assert piece.waits_for is not None
            return f"waits for {_where(network, piece.waits_for)}{_onward(network, chain(network, piece.waits_for))}"
        case Cause.QUEUE:
            assert piece.transfer is not None
            return f"waits for {_busy_link(network, piece.transfer)}"
        case Cause.LINK:
            assert piece.waits_for is not None
            return f"waits for the link from rank {network.rank(piece.waits_for)}"
        case Cause.MEMORY:
            assert piece.ready is not None
            return _no_room(network, piece, piece.ready)
        case Cause.ORDER:
            assert piece.ready is not None
            assert piece.before is not None
            longer = network.end(piece.ready) - network.start(piece.ready) > piece.length_ns
            what = f"{_own(network, piece.ready)}, ready and within memory{', if longer than that' if longer else ''}"
            return f"keeps to its order: {what}, comes after {_own(network, piece.before)}"
        case Cause.LATE:
            return "could go on, but is planned to do so later"
        case Cause.PACE:
            return "is ready for it, but the period is longer, which the critical cycle sets"
        case _:
            return MEANING[piece.cause]


def _busy_link(network: Network, transfer: int) -> str:
    """The link of a transfer, and what keeps it from serving that."""
    sent = network.transfer(transfer)
    assert sent is not None
    name = f"link {network.link(transfer)}"
    if sent.behind is None:
        return name
    line = network.links[network.column(transfer) - network.ranks][1]
    before = " of the iteration before" if sent.behind < 0 else ""
    return f"{name}, busy with what {_where(network, line[sent.behind])}{before} hands over"


def _no_room(network: Network, piece: Idle, ready: int) -> str:
    """Which operation has to end before the one that is ready fits."""
    row = network.rows[piece.rank].tolist()
    assert piece.before is not None
    here = row.index(piece.before)
    place = place_that_fits(network, ready, here)
    until = f" until {_own(network, row[place - 1])} ends" if place > here else ""
    asks = format_bytes(int(network.graph.start_bytes[ready]))
    return f"waits for memory{until}: {_own(network, ready)} is ready, but its {asks} do not fit"


def _own(network: Network, node: int) -> str:
    """An operation on a rank that was named already."""
    op = network.op(node)
    several = len(network.timetable.problem.placement.stages_of(network.rank(node))) > 1
    return str(op) if several or op.microbatch is None else f"{op.kind.letter}{op.microbatch}"


def _where(network: Network, node: int) -> str:
    return f"{network.op(node)} on rank {network.rank(node)}"


def _onward(network: Network, links: Sequence[Hold]) -> str:
    """What holds an operation: up to two more that it waits for, or how a longer chain begins."""
    last = links[-1]
    if len(links) <= _TOLD_HOPS:
        return "".join(_held(network, link) for link in links)
    return f", the last of a chain of {len(links)} operations from {_where(network, last.node)}{_held(network, last)}"


def _held(network: Network, link: Hold) -> str:
    by = "" if link.by is None else _own(network, link.by)
    match link.kind:
        case "data":
            assert link.by is not None
            return f", which waits for {_where(network, link.by)}"
        case "queue":
            assert link.by is not None
            return f", which waits for a link that is busy with what {_where(network, link.by)} hands over"
        case "busy":
            return f", which waits until {by} ends there"
        case "memory":
            return f", which waits for memory until {by} ends"
        case "order":
            return f", which the order puts behind {by}"
        case "pace":
            return ", which begins its rank's iteration"
        case "start":
            return ", which begins the iteration"
        case _:
            return ", which is planned later than it must be"


def path_in_words(network: Network, path: CriticalPath) -> tuple[str, ...]:
    """One line a stretch on one rank: what runs there, and what hands over to the next."""
    stretches: list[list[int]] = []
    arrivals: list[str] = []
    for step in path.steps:
        column = network.column(step.node)
        if stretches and step.via in ("row", "data") and network.column(stretches[-1][-1]) == column:
            stretches[-1].append(step.node)
            continue
        stretches.append([step.node])
        travelled = f" after {format_ns(step.lag_ns)} on the link" if step.lag_ns else ""
        arrivals.append(
            {"start": "", "row": "", "data": f"hands over{travelled} to ", "iteration": "next iteration: "}[step.via]
        )
    if not stretches:
        return ()
    if network.by_period:
        arrivals[0] = ""
    lines = []
    for arrival, stretch in zip(arrivals, stretches, strict=True):
        first, last = stretch[0], stretch[-1]
        work = sum(network.end(node) - network.start(node) for node in stretch)
        runs = _own(network, first) if len(stretch) == 1 else f"{_own(network, first)} to {_own(network, last)}"
        on_link = network.transfer(first) is not None
        size = "" if len(stretch) == 1 else f", {counted(len(stretch), 'transfer' if on_link else 'operation')}"
        where = f"link {network.link(first)}: what comes from" if on_link else f"rank {network.rank(first)}:"
        lines.append(f"{arrival}{where} {runs}{size}, {format_ns(work)}")
    return tuple(lines)
