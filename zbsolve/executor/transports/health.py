"""Ranks in different processes tell each other that they are alive, and why one is not.

Everything goes through the store that `torch.distributed` was started with::

    beat/P      grows every second while process P lives, whatever its main thread does
    failed      the first failure of all: process and what happened

Pipelines side by side share one story: a process looks at those of its own pipeline and at the next
of all (so whoever dies, someone alive sees it), and stops whichever pipeline the failure is in.

A thread in every process writes its beat and looks at the others'. When it sees a failure, its own
main thread may be blocked inside a library that cannot be interrupted; it is given a moment to
notice (its neighbours close their connections), then the process ends with exit code 1.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from zbsolve.executor.transports.protocol import Stopped

__all__ = ["Health"]

_BEAT_S = 0.5
_SILENT_S = 5.0
_SUSPECT_SILENT_S = 2.0
_GRACE_S = 1.5
_LAST_WORDS_S = 0.5
_GOODBYE_S = 30.0
_GONE = "gone"

_made: Counter[tuple[int, ...]] = Counter()


class Health:
    """What this process knows of all ranks.

    Parameters
    ----------
    rank, ranks
        This one's, and how many there are.
    members
        Their ranks in `torch.distributed`.
    everyone
        Those of all whose failure stops this pipeline; None for its members alone.
    """

    def __init__(self, rank: int, ranks: int, members: Sequence[int], everyone: Sequence[int] | None = None) -> None:
        self._members = tuple(members)
        self._everyone = tuple(members if everyone is None else everyone)
        # all processes make their pipelines in the same order, so these counts agree
        _made[self._everyone] += 1
        self.rank = rank
        self.ranks = ranks
        self._process = self._members[rank]
        after = self._everyone[(self._everyone.index(self._process) + 1) % len(self._everyone)]
        self._watched = sorted({*self._members, after} - {self._process})
        name = f"zbsolve/{_named(self._everyone)}/{_made[self._everyone]}"
        store: Any = dist.distributed_c10d._get_default_store()
        # a client of its own: the main thread may hold the other while it waits
        with contextlib.suppress(RuntimeError, NotImplementedError, AttributeError):
            store = store.clone()
        self._common: Any = dist.distributed_c10d.PrefixStore(name, store)
        self.store: Any = dist.distributed_c10d.PrefixStore(f"pipeline/{_named(self._members)}", self._common)
        self._suspects: set[int] = set()
        self._seen: dict[int, tuple[bytes, float]] = {}
        self._cause: tuple[int, str] | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._running = False
        self._doing: Callable[[], str] = lambda: f"rank {rank}"
        self._complaint: Callable[[], str | None] = lambda: None
        self._beats = 0
        self._all_began = ranks == 1
        # before anyone connects to this rank, so that whoever knows it can see it die
        self._common.set(f"beat/{self._process}", "0")
        self._thread = threading.Thread(target=self._watch, name=f"zbsolve watch {rank}", daemon=True)
        self._thread.start()

    def attend(self, doing: Callable[[], str], complaint: Callable[[], str | None]) -> None:
        """Tell how to see what this rank is at, and what is wrong with it, if anything."""
        self._doing, self._complaint = doing, complaint

    @contextlib.contextmanager
    def working(self) -> Any:
        """While this rank runs a step: a failure elsewhere ends this process if it does not end the step."""
        self._running = True
        try:
            yield
        finally:
            self._running = False

    def report(self, message: str) -> None:
        """Make known that this rank has failed; kept if it is the first."""
        self._note(self._process, message)

    def _note(self, process: int, message: str) -> None:
        with self._lock:
            if self._cause is None:
                self._cause = self._seen_from_here(process, message)
        with contextlib.suppress(Exception):
            text = json.dumps([process, message])
            first = self._common.compare_set("failed", "", text)
            self._cause = self._seen_from_here(*json.loads(first))

    def _seen_from_here(self, process: int, message: str) -> tuple[int, str]:
        """The rank in this pipeline; -1 and words that say who it was for a process of another one."""
        if process in self._members:
            return self._members.index(process), message
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
        deadline = time.monotonic() + _SILENT_S
        while self._cause is None and time.monotonic() < deadline:
            time.sleep(_BEAT_S / 10)
        if self._cause is None:
            return error
        return Stopped()

    def close(self) -> None:
        """Leave in good order: once every rank is here, or some rank has failed, or that takes too long."""
        if self._ended.is_set():
            return
        with contextlib.suppress(Exception):
            self._common.set(f"done/{self._process}", "1")
            keys = [f"done/{process}" for process in self._everyone]
            deadline = time.monotonic() + _GOODBYE_S
            while self._cause is None and not self._common.check(keys) and time.monotonic() < deadline:
                time.sleep(_BEAT_S / 50)
        self._ended.set()
        self._thread.join(2 * _BEAT_S)
        with contextlib.suppress(Exception):
            self._common.set(f"beat/{self._process}", _GONE)

    def _watch(self) -> None:
        misses = 0
        while not self._ended.wait(_BEAT_S):
            try:
                self._look()
                misses = 0
            except Exception as error:
                # the store lives in one of the processes; without it nobody can be asked
                misses += 1
                if misses >= 3 and self._cause is None:
                    gone = f"its process, which keeps the store, is gone ({type(error).__name__})"
                    self._cause = self._seen_from_here(self._everyone[0], gone)
            if self._cause is not None:
                self._end_process()
                return

    def _look(self) -> None:
        self._beats += 1
        self._common.set(f"beat/{self._process}", str(self._beats))
        if self._common.check(["failed"]):
            self._cause = self._seen_from_here(*json.loads(self._common.get("failed")))
            return
        complaint = self._complaint()
        if complaint is not None:
            self._note(self._process, complaint)
            return
        now = time.monotonic()
        for other, value in self._beats_of_others():
            before, since = self._seen.get(other, (b"", now))
            if value != before:
                self._seen[other] = value, now
            elif value == _GONE.encode():
                if other in self._suspects:
                    self._note(other, "its process has closed the pipeline and left while others still run")
                    return
            elif now - since > (_SUSPECT_SILENT_S if other in self._suspects else _SILENT_S):
                self._note(
                    other, f"its process has given no sign of life for {now - since:.0f} s: it was killed or is frozen"
                )
                return

    def _beats_of_others(self) -> list[tuple[int, bytes]]:
        """One question for all once all have begun: the store answers one client after the other."""
        others = self._watched
        keys = [f"beat/{process}" for process in others]
        if not self._all_began:
            self._all_began = bool(self._common.check(keys))
        if self._all_began and self._common.has_extended_api():
            return list(zip(others, self._common.multi_get(keys), strict=True))
        there = [(process, key) for process, key in zip(others, keys, strict=True) if self._common.check([key])]
        return [(process, self._common.get(key)) for process, key in there]

    def _end_process(self) -> None:
        """Give the main thread a moment to leave the step by itself."""
        from zbsolve.executor.story import blamed, failed

        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline:
            if not self._running:
                return
            time.sleep(_BEAT_S / 10)
        assert self._cause is not None
        rank, message = self._cause
        doing = self._doing()
        text = failed(rank, message) if rank == self.rank else blamed(doing, rank, message)
        print(f"zbsolve: {text}; this process ends", file=sys.stderr, flush=True)  # noqa: T201 - its last words
        threading.Timer(_LAST_WORDS_S, os._exit, (1,)).start()
        time.sleep(_LAST_WORDS_S / 2)
        os._exit(1)


def _named(processes: Sequence[int]) -> str:
    return "-".join(map(str, processes))
