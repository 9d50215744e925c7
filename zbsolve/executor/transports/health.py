"""Ranks in different processes tell each other that they are alive, what they are at, and why one fails.

They do so on a board that all can read (`zbsolve.executor.transports.board`).

Pipelines side by side share one story: a process looks at those of its own pipeline and at the next
of all (so whoever dies, someone alive sees it), and stops whichever pipeline the failure is in.

When a failure is known, the main thread may be blocked inside a library that cannot be interrupted; it
is given a moment to notice (its neighbours close their connections), then the process ends with exit
code 1. No step of this outlasts `PROMISE_S` (`tests/executor/test_health.py` adds them up)::

    an operation is too long         LEAST_STALL_S   CLOCK_S   ASK_S   GRACE_S   LAST_WORDS_S
    a process is silent              ASK_S   SILENT_S   ASK_S  ASK_S   GRACE_S   LAST_WORDS_S
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from zbsolve.errors import RunError
from zbsolve.executor.story import blamed, failed, told
from zbsolve.executor.transports.board import Board
from zbsolve.executor.transports.calls import Call, CallLog, CallWatch, Standing
from zbsolve.executor.transports.leaving import at_exit
from zbsolve.executor.transports.protocol import Stopped
from zbsolve.executor.transports.watch import Watch

__all__ = ["Attendant", "Health"]

PROMISE_S = 10.0
SILENT_S = 5.0
_SUSPECT_SILENT_S = 2.0
GRACE_S = 1.0
LAST_WORDS_S = 0.25
_GOODBYE_S = 30.0
_MISSES = 3
_NO_ONE = -1

_watch = Watch()


class Attendant(Protocol):
    """Whoever makes the calls of this rank, and knows what it is at."""

    away_s: float

    def doing(self) -> str:
        """What the rank is at, in words."""

    def busy(self) -> bool:
        """It runs an operation, so it waits for nobody."""

    def complaint(self, now: float) -> str | None:
        """What is wrong with it, if anything."""


class Health:
    """What this process knows of all ranks.

    Parameters
    ----------
    rank
        This one's.
    members
        The processes of all ranks, by their numbers in `torch.distributed`.
    everyone
        Those of all whose failure stops this pipeline; None for its members alone.
    longest_s
        How long connections may take to be made.
    store, watch, leave
        The store; what looks after this; how to end the process. Tests have their own.
    """

    def __init__(
        self,
        rank: int,
        members: Sequence[int],
        everyone: Sequence[int] | None = None,
        *,
        longest_s: float = 1800.0,
        store: Any = None,
        watch: Watch | None = None,
        leave: Callable[[str], None] | None = None,
    ) -> None:
        self._members = tuple(members)
        self._everyone = tuple(members if everyone is None else everyone)
        self.rank = rank
        self._pid = os.getpid()
        self._process = self._members[rank]
        after = self._everyone[(self._everyone.index(self._process) + 1) % len(self._everyone)]
        self._watched = sorted({*self._members, after} - {self._process})
        self._watch = _watch if watch is None else watch
        self._leave = _end_process if leave is None else leave
        self._board = Board(self._process, self._members, self._everyone, store)
        self.store: Any = self._board.store
        self.log = CallLog()
        self._calls = CallWatch(self._called(self._process), self.log)
        self.longest_s = longest_s
        self._suspects: set[int] = set()
        self._seen: dict[int, tuple[int, float]] = {}
        self._standings: dict[int, Standing] = {}
        self._cause: tuple[int, str] | None = None
        self._to_tell: tuple[int, str] | None = None
        self._known_since: float | None = None
        self._told = False
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._attendant: Attendant | None = None
        self._closing = False
        self._closed = False
        self.pipelines = 0
        self._misses = 0
        # before anyone connects to this rank, so that whoever knows it can see it die
        self._publish()
        self._watch.add(self)
        self._forget = at_exit(self, Health._process_ends)

    @contextlib.contextmanager
    def call(self, call: Call, attendant: Attendant) -> Iterator[None]:
        """While this rank makes a call: a failure elsewhere ends this process if it does not end the call.

        Raises
        ------
        RunError
            If some rank has failed before, or this one has closed the pipeline.
        """
        if self._cause is not None:
            self._told = True
            raise RunError(f"{failed(*self._cause)}; the pipeline cannot go on")
        if self._closed:
            raise RunError(f"this rank has closed the pipeline, so it can make no {call['kind']}")
        self._attendant = attendant
        self.log.begin(call)
        try:
            yield
        finally:
            self.log.end()
            self._attendant = None

    def exchanged(self, text: str) -> list[str]:
        """What all ranks of this pipeline say, by rank; waits for all to say it.

        Raises
        ------
        RunError
            If some rank fails instead.
        """
        keys = self._board.say(text)
        while (said := self._board.said(keys)) is None:
            if self._cause is not None:
                self._told = True
                raise RunError(failed(*self._cause))
            time.sleep(0.01)
        return said

    def report(self, message: str) -> None:
        """Make known that this rank has failed; kept if it is the first."""
        self._told = True
        self._note(self._process, message)
        with contextlib.suppress(Exception):
            self._publish_failure()

    def _note(self, process: int, message: str) -> None:
        """Take down a failure, to be published at once."""
        with self._lock:
            if self._cause is None:
                self._cause = self._seen_from_here(process, message)
                self._to_tell = process, message
        self._watch.hurry()

    def _publish_failure(self) -> None:
        """The first to be published is the cause for all."""
        to_tell = self._to_tell
        if to_tell is None:
            return
        first = self._board.fail(*to_tell)
        self._to_tell = None
        self._cause = self._seen_from_here(*first)

    def _seen_from_here(self, process: int, message: str) -> tuple[int, str]:
        """The rank in this pipeline; -1 and words that say who it was for a process of another one, or for nobody."""
        if process in self._members:
            return self._members.index(process), message
        if process == _NO_ONE:
            return -1, message
        return -1, f"process {process}, of another replica or group, failed: {message}"

    def cause(self) -> tuple[int, str] | None:
        """The first failure that is known here: the rank, -1 if it is in another pipeline, and what happened."""
        return self._cause

    def stopped(self, peer: int | None, error: BaseException) -> BaseException:
        """What to raise where a connection (to a rank, if known) broke: `Stopped`, once it is known who is to blame."""
        if peer is None:
            self._suspects.update(self._watched)
        else:
            self._suspects.add(self._members[peer])
        deadline = time.monotonic() + SILENT_S
        while self._cause is None and time.monotonic() < deadline:
            time.sleep(0.05)
        if self._cause is None:
            return error
        self._told = True
        return Stopped()

    def close(self, *, quietly: bool = False) -> None:
        """Leave in good order: once every rank is here, or some rank has failed, or that takes too long.

        Parameters
        ----------
        quietly
            Say nothing of a failure, as this rank has its own to tell.

        Raises
        ------
        RunError
            If another rank has failed, or needs this one, and this rank has not been told yet.
        """
        if self._ended.is_set():
            return
        self.log.leave("has closed the pipeline")
        self._closed = True
        self._closing = True
        with contextlib.suppress(Exception):
            self._publish()
            self._board.leave()
            deadline = time.monotonic() + _GOODBYE_S
            while self._cause is None and not self._board.all_leave:
                if time.monotonic() > deadline and not any(s.inside for s in self._standings.values()):
                    break
                time.sleep(0.01)
        self._end()
        if self._cause is not None and not self._told and not quietly:
            raise RunError(f"while this rank closed the pipeline: {failed(*self._cause)}")

    def drop(self) -> None:
        """Leave without waiting: nobody uses the pipeline of this rank any more."""
        # a forked worker of a data loader drops only its copy
        if not self._ended.is_set() and os.getpid() == self._pid:
            self.log.leave("has dropped its pipeline")
            with contextlib.suppress(Exception):
                self._publish()
            self._end()

    def _process_ends(self) -> None:
        """The interpreter of this process ends, perhaps by an error that nobody caught."""
        if self._ended.is_set():
            return
        error = getattr(sys, "last_value", None)
        # a notebook remembers errors that are long dealt with
        if error is not None and not hasattr(sys, "ps1"):
            self.report(f"its process ended with {told(error)}")
        self.log.leave("has ended its process")
        with contextlib.suppress(Exception):
            self._publish()
        self._end()

    def _end(self) -> None:
        self._ended.set()
        self._closing = False
        self._forget()
        self._watch.remove(self)

    def ask(self, now: float) -> None:
        """Publish, and see how the others are."""
        if self._ended.is_set():
            return
        try:
            self._exchange(now)
            self._misses = 0
        except Exception as error:
            if self._ended.is_set():
                return
            self._misses += 1
            if self._misses >= _MISSES:
                self._store_is_gone(f"is gone ({type(error).__name__})")

    def tick(self, now: float, asking_s: float) -> None:
        """Judge by the clock alone: this rank's own operation, the store's silence, and the end of this process."""
        attendant = self._attendant
        if self._cause is None and not self._ended.is_set():
            if asking_s > SILENT_S:
                self._store_is_gone("does not answer: it is frozen")
            elif attendant is not None and (complaint := attendant.complaint(now)) is not None:
                self._note(self._process, complaint)
        if self._cause is None or self._ended.is_set():
            return
        if self._known_since is None:
            self._known_since = now
            if not self._inside() and not self._told:
                self._told = True
                _say(f"{failed(*self._cause)}; the pipeline cannot go on")
        if now - self._known_since < GRACE_S:
            return
        if self._inside():
            rank, message = self._cause
            doing = f"rank {self.rank} closes the pipeline" if attendant is None else attendant.doing()
            self._leave(failed(rank, message) if rank in (self.rank, -1) else blamed(doing, rank, message))
        self._watch.remove(self)

    def _inside(self) -> bool:
        return self._attendant is not None or self._closing

    def _store_is_gone(self, what: str) -> None:
        if self._cause is not None:
            return
        kept = self._standings.get(0)
        if not self._inside() and kept is not None and kept.left and kept.made == self.log.standing().made:
            # its keeper went home after the last call; nothing more can be asked, nor needs to be
            self._end()
            return
        # whoever makes no further call need not know
        self._told = self._told or not self._inside()
        with self._lock:
            if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
                self._cause = -1, f"the launcher, which keeps the store of torch.distributed, {what}"
            else:
                self._cause = self._seen_from_here(
                    0, f"its process, which keeps the store of torch.distributed, {what}"
                )

    def _publish(self) -> None:
        self._board.beat(self._standing(self._attendant))

    def _standing(self, attendant: Attendant | None) -> Standing:
        return self.log.standing() if attendant is None else self.log.standing(attendant.doing(), busy=attendant.busy())

    def _exchange(self, now: float) -> None:
        self._publish()
        self._publish_failure()
        if self._cause is not None:
            return
        failure = self._board.failure()
        if failure is not None:
            self._cause = self._seen_from_here(*failure)
            return
        for other, count, standing in self._board.beats(self._watched):
            self._standings[other] = standing
            before, since = self._seen.get(other, (-1, now))
            if count != before:
                self._seen[other] = count, now
            elif standing.left:
                if other in self._suspects:
                    self._note(other, f"it {standing.left} while others still run")
                    return
            elif now - since > (_SUSPECT_SILENT_S if other in self._suspects else SILENT_S):
                silent = f"its process has given no sign of life for {now - since:.0f} s: it was killed or is frozen"
                self._note(other, silent)
                return
        self._compare(now)

    def _compare(self, now: float) -> None:
        attendant = self._attendant
        mine, away_s = self._standing(attendant), self.longest_s if attendant is None else attendant.away_s
        others = {self._called(p): self._comparable(p) for p in self._watched}
        all_seen = len(self._watched) == len(self._everyone) - 1
        finding = self._calls.look(mine, others, now, away_s=away_s, all_seen=all_seen)
        if finding is None:
            return
        if finding.fatal:
            self._note(_NO_ONE, finding.text)
        else:
            _say(finding.text)

    def _comparable(self, process: int) -> Standing | None:
        """Its standing; of a replica on other data only the kinds of its calls are the same as here."""
        standing = self._standings.get(process)
        if standing is None or process in self._members:
            return standing
        return replace(standing, recent=tuple({"kind": call["kind"]} for call in standing.recent))

    def _called(self, process: int) -> str:
        return f"rank {self._members.index(process)}" if process in self._members else f"process {process}"


def _say(text: str) -> None:
    print(f"zbsolve: {text}", file=sys.stderr, flush=True)  # noqa: T201 - nothing else may be told where


def _end_process(text: str) -> None:
    _say(f"{text}; this process ends")
    threading.Timer(LAST_WORDS_S, os._exit, (1,)).start()
    time.sleep(LAST_WORDS_S / 2)
    os._exit(1)
