"""Which calls every rank has made, and whether they are the same.

A call is whatever needs all ranks: building a pipeline, a step, an evaluation, `trace`, and `flush`
where a step waits for its validation. Each rank numbers its own and publishes where it stands::

    rank 0    1 build   2 step   3 step   4 eval ...      in call 4, waits for ...
    rank 1    1 build   2 step   3 eval                   in call 3        <- call 3 differs: told at once
    rank 2    1 build   2 step                            closed after 2   <- rank 0 needs it in 3: told at once
    rank 3    1 build   2 step                            between calls    <- may load data: told when `away_s` is over

Being ahead is no fault, as there is no barrier between calls. Everything here is arithmetic on what
was published, and the time is handed in.
"""

from __future__ import annotations

import json
import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

__all__ = ["Call", "CallLog", "CallWatch", "Finding", "Standing"]

_KEPT = 4096
_PUBLISHED = 6
_SHOWN = 16
_NOTICE_S = 10.0
_NTH = "nth"
_SAME = "all ranks must make the same calls of step, steps, eval, flush, state_dict and trace, in the same order"

Call = Mapping[str, str]
"""What a call is: its ``kind``, and whatever else must be the same on all ranks that say it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a rank stands.

    Parameters
    ----------
    made
        Calls so far, the one under way included.
    inside
        It is in the last of them.
    recent
        The last few calls, the newest last.
    left
        How it left for good; empty while it is there.
    doing
        What it is at, in words; empty between calls.
    busy
        It runs an operation, so it waits for nobody.
    """

    made: int = 0
    inside: bool = False
    recent: tuple[Call, ...] = ()
    left: str = ""
    doing: str = ""
    busy: bool = False

    def pack(self) -> str:
        """As text."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def unpack(cls, text: str | bytes) -> Standing:
        """From text."""
        fields = json.loads(text)
        return cls(**{**fields, "recent": tuple(fields["recent"])})

    def numbered(self) -> Iterable[tuple[int, Call]]:
        """The recent calls with their numbers, from 1."""
        return enumerate(self.recent, self.made - len(self.recent) + 1)

    def call(self) -> str:
        """The last call, in words."""
        return f"call {self.made} ({shown(self.recent[-1])})" if self.recent else "no call"


def shown(call: Call) -> str:
    """A call in words: its kind and which one of this kind it is."""
    return f"{call['kind']} {call[_NTH]}" if _NTH in call else call["kind"]


class CallLog:
    """The calls of this process's rank; written by the thread that makes them, read by the one that watches."""

    def __init__(self) -> None:
        self._calls: deque[Call] = deque(maxlen=_KEPT)
        self._made = 0
        self._of_kind: Counter[str] = Counter()
        self._inside = False
        self._left = ""
        self._lock = threading.Lock()

    def begin(self, call: Call) -> None:
        """A call starts."""
        with self._lock:
            self._of_kind[call["kind"]] += 1
            self._calls.append({**call, _NTH: str(self._of_kind[call["kind"]])})
            self._made += 1
            self._inside = True

    def end(self) -> None:
        """It is over, well or not."""
        with self._lock:
            self._inside = False

    def leave(self, how: str) -> None:
        """No call will follow."""
        with self._lock:
            self._left = self._left or how

    def call(self, number: int) -> Call | None:
        """The one of this number (from 1); None if it was not made or is long ago."""
        with self._lock:
            place = len(self._calls) - 1 - (self._made - number)
            return self._calls[place] if 0 <= place < len(self._calls) else None

    def standing(self, doing: str = "", *, busy: bool = False) -> Standing:
        """What is to be published."""
        with self._lock:
            last = range(max(0, len(self._calls) - _PUBLISHED), len(self._calls))
            return Standing(
                made=self._made,
                inside=self._inside,
                recent=tuple(self._calls[i] for i in last),
                left=self._left,
                doing=doing if self._inside else "",
                busy=busy and self._inside,
            )


@dataclass(frozen=True, slots=True)
class Finding:
    """What the watch has to say: a failure, or only a word to those who look."""

    text: str
    fatal: bool


class CallWatch:
    """Compares this rank's calls with the others'.

    Parameters
    ----------
    me
        How this rank is called.
    log
        Its calls.
    """

    def __init__(self, me: str, log: CallLog) -> None:
        self._me = me
        self._log = log
        self._waiting: dict[str, tuple[tuple[int, int], float]] = {}
        self._still: tuple[object, float] = None, 0.0
        self._noticed = 0

    def look(
        self, mine: Standing, others: Mapping[str, Standing | None], now: float, *, away_s: float, all_seen: bool
    ) -> Finding | None:
        """What is wrong, if anything.

        Parameters
        ----------
        mine
            Where this rank stands.
        others
            Where the others stand, by what they are called; None for those that have not come yet.
        now
            The time, in seconds.
        away_s
            How long a rank may stay between calls while this one waits in a call that it has not made; and how
            long all may wait, none of them with an operation to run.
        all_seen
            The others are all whom anyone may wait for.
        """
        present = {name: other for name, other in others.items() if other is not None}
        for name, other in present.items():
            text = self._different(name, other)
            if text is not None:
                return Finding(text, fatal=True)
        if not mine.inside or mine.busy:
            self._waiting.clear()
            self._still = None, now
            return None
        gone = {name: s for name, s in present.items() if s.left and s.made < mine.made}
        if gone:
            told = "; ".join(f"{name} {s.left} after {_calls(s.made)}" for name, s in gone.items())
            return Finding(f"{self._me} is in {mine.call()}, but {told}: {_SAME}", fatal=True)
        found = self._away(mine, others, now, away_s)
        return self._at_rest(mine, present, now, away_s) if found is None and all_seen else found

    def _different(self, name: str, other: Standing) -> str | None:
        for number, theirs in other.numbered():
            ours = self._log.call(number)
            if ours is None:
                continue
            for what, said in theirs.items():
                if what in ours and ours[what] != said:
                    if what in ("kind", _NTH):
                        return f"call {number} is {shown(ours)} on {self._me}, but {shown(theirs)} on {name}: {_SAME}"
                    return (
                        f"in call {number} ({shown(ours)}) the {what} is {ours[what]} on {self._me}, but {said} on "
                        f"{name}: it must be the same on all ranks that are given one"
                    )
        return None

    def _away(self, mine: Standing, others: Mapping[str, Standing | None], now: float, away_s: float) -> Finding | None:
        """Ranks that are between calls and have not made the one that this rank waits in."""
        missing = {
            name: 0 if other is None else other.made
            for name, other in others.items()
            if other is None or (other.made < mine.made and not other.inside)
        }
        self._waiting = {
            name: kept
            if (kept := self._waiting.get(name, (None, now)))[0] == (mine.made, made)
            else ((mine.made, made), now)
            for name, made in missing.items()
        }
        late = {name: now - since for name, (_, since) in self._waiting.items()}
        if not late:
            return None
        longest = max(late.values())
        told = "; ".join(
            f"{name} is between calls, {_calls(missing[name])} made" if others[name] is not None
            else f"{name} has not come to its pipeline"
            for name in list(late)[:_SHOWN]
        )  # fmt: skip
        here = f"{self._me} has been waiting in {mine.call()} for {longest:.0f} s; {told}"
        if longest > away_s:
            return Finding(f"{here}: {_SAME} (away_s = {away_s:g} sets how long a rank may stay away)", fatal=True)
        if longest > min(_NOTICE_S, away_s / 2) and self._noticed != mine.made:
            self._noticed = mine.made
            return Finding(f"{here}. This ends after {away_s:g} s (away_s)", fatal=False)
        return None

    def _at_rest(self, mine: Standing, present: Mapping[str, Standing], now: float, limit_s: float) -> Finding | None:
        """Everyone waits, and nothing has moved for long: it never will."""
        everyone = {self._me: mine, **present}
        if any(s.busy for s in everyone.values()):
            self._still = None, now
            return None
        picture = tuple(sorted((name, s.made, s.inside, s.doing) for name, s in everyone.items()))
        if self._still[0] != picture:
            self._still = picture, now
        if now - self._still[1] <= limit_s:
            return None
        told = "; ".join(
            s.doing if s.inside else f"{name} is between calls, {_calls(s.made)} made"
            for name, s in list(everyone.items())[:_SHOWN]
        )
        return Finding(f"nothing has moved for {now - self._still[1]:.0f} s: {told}", fatal=True)


def _calls(count: int) -> str:
    return "1 call" if count == 1 else f"{count} calls"
