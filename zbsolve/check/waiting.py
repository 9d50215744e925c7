"""Rules about waiting: no rank waits for itself, and no ranks wait for each other in a circle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from zbsolve.check.sheet import LONGEST_LIST, Entry, Sheet, show
from zbsolve.timetable import Violation

__all__ = ["circles_of_ranks", "row_against_need"]


def row_against_need(sheet: Sheet) -> Iterator[Violation]:
    """In a row, every operation stands behind those of the row that it needs."""
    for entry in sheet.known:
        for need in entry.needs:
            if need.rank == entry.rank and need.place > entry.place:
                yield Violation(
                    "precedence",
                    f"{entry} (place {entry.place}) stands ahead of {show(need.op)} (place {need.place}), "
                    "which it needs: the rank waits for itself",
                    (entry.op, need.op),
                )


def circles_of_ranks(sheet: Sheet) -> Iterator[Violation]:
    """Issued row by row, each operation as soon as what it needs is done, all rows come to their end."""
    stuck = _issue(sheet)
    for circle in _circles({lane: _lane(need) for lane, (_, need) in stuck.items()}):
        yield _story([stuck[lane] for lane in circle], stuck)


def _lane(entry: Entry) -> int:
    """A number for what runs it, four a rank."""
    return 4 * entry.rank + entry.beside


def _issue(sheet: Sheet) -> dict[int, tuple[Entry, Entry]]:
    """Issue all rows as far as they go, what computes, what the network runs and what is copied each by itself.

    Returns
    -------
    For each lane that is stuck: its next operation, and what that waits for on another lane.
    """
    lanes: list[list[Entry]] = [[] for _ in range(4 * len(sheet.rows))]
    computes_ahead: dict[Entry, Entry] = {}
    for row in sheet.rows:
        compute: Entry | None = None
        for entry in row:
            lanes[_lane(entry)].append(entry)
            if not entry.beside:
                compute = entry
            elif compute is not None:
                computes_ahead[entry] = compute
    reached = [0] * len(lanes)
    done: set[Entry] = set()
    stuck: dict[int, tuple[Entry, Entry]] = {}
    waiting: dict[Entry, list[int]] = {}
    ready = list(range(len(lanes)))
    while ready:
        lane = ready.pop()
        row, place = lanes[lane], reached[lane]
        stuck.pop(lane, None)
        while place < len(row):
            entry = row[place]
            need = _unmet(entry, computes_ahead.get(entry), done)
            if need is not None:
                stuck[lane] = entry, need
                waiting.setdefault(need, []).append(lane)
                break
            place += 1
            done.add(entry)
            ready += waiting.pop(entry, ())
        reached[lane] = place
    return stuck


def _unmet(entry: Entry, ahead: Entry | None, done: set[Entry]) -> Entry | None:
    """What an operation still waits for on another lane; what stands behind it in its own row is another rule's."""
    for need in entry.needs if ahead is None else (ahead, *entry.needs):
        if need not in done and (need.rank != entry.rank or need.place < entry.place):
            return need
    return None


def _circles(waits_for: Mapping[int, int]) -> Iterator[list[int]]:
    """The circles among lanes that wait for one other each: every circle once, from its least lane on."""
    walked_from: dict[int, int] = {}
    for root in sorted(waits_for):
        path: list[int] = []
        rank = root
        while rank not in walked_from:
            walked_from[rank] = root
            path.append(rank)
            rank = waits_for[rank]
        if walked_from[rank] == root:
            circle = path[path.index(rank) :]
            least = circle.index(min(circle))
            yield circle[least:] + circle[:least]


def _story(links: list[tuple[Entry, Entry]], stuck: Mapping[int, tuple[Entry, Entry]]) -> Violation:
    """Tell a circle: each rank, what it is at, what that waits for, and what stands in the way there."""
    told = []
    for entry, need in links:
        next_there = stuck[_lane(need)][0]
        behind = "" if next_there is need else f", which stands there behind {show(next_there.op)}"
        told.append(f"rank {entry.rank}, at {show(entry.op)}, waits for {show(need.op)} on rank {need.rank}{behind}")
    if len(told) > LONGEST_LIST:
        half = LONGEST_LIST // 2
        told[half:-half] = [f"... ({len(told) - 2 * half} more ranks) ..."]
    told.append(f"so rank {links[0][0].rank} waits for itself")
    return Violation("deadlock", "; ".join(told), tuple(dict.fromkeys(entry.op for link in links for entry in link)))
