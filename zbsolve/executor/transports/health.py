"""Ranks in different processes tell each other that they are alive, and why one is not.

Everything goes through the store that `torch.distributed` was started with::

    beat/R      grows every second while rank R's process lives, whatever its main thread does
    failed      the first failure of all: rank and what happened

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
    """

    def __init__(self, rank: int, ranks: int, members: Sequence[int]) -> None:
        # all members make their pipelines in the same order, so these counts agree
        _made[tuple(members)] += 1
        self.rank = rank
        self.ranks = ranks
        name = f"zbsolve/{'-'.join(map(str, members))}/{_made[tuple(members)]}"
        store: Any = dist.distributed_c10d._get_default_store()
        # a client of its own: the main thread may hold the other while it waits
        with contextlib.suppress(RuntimeError, NotImplementedError, AttributeError):
            store = store.clone()
        self.store: Any = dist.distributed_c10d.PrefixStore(name, store)
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
        self.store.set(f"beat/{rank}", "0")
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
        self._note(self.rank, message)

    def _note(self, rank: int, message: str) -> None:
        with self._lock:
            if self._cause is None:
                self._cause = rank, message
        with contextlib.suppress(Exception):
            text = json.dumps([rank, message])
            first = self.store.compare_set("failed", "", text)
            found = json.loads(first)
            self._cause = int(found[0]), str(found[1])

    def cause(self) -> tuple[int, str] | None:
        """The first failure that is known here."""
        return self._cause

    def stopped(self, peer: int, error: BaseException) -> BaseException:
        """What to raise where the connection to a rank broke: `Stopped`, once it is known who is to blame."""
        self._suspects.add(peer)
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
            self.store.set(f"done/{self.rank}", "1")
            keys = [f"done/{rank}" for rank in range(self.ranks)]
            deadline = time.monotonic() + _GOODBYE_S
            while self._cause is None and not self.store.check(keys) and time.monotonic() < deadline:
                time.sleep(_BEAT_S / 50)
        self._ended.set()
        self._thread.join(2 * _BEAT_S)
        with contextlib.suppress(Exception):
            self.store.set(f"beat/{self.rank}", _GONE)

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
                    self._cause = 0, f"its process, which keeps the store, is gone ({type(error).__name__})"
            if self._cause is not None:
                self._end_process()
                return

    def _look(self) -> None:
        self._beats += 1
        self.store.set(f"beat/{self.rank}", str(self._beats))
        if self.store.check(["failed"]):
            rank, message = json.loads(self.store.get("failed"))
            self._cause = int(rank), str(message)
            return
        complaint = self._complaint()
        if complaint is not None:
            self._note(self.rank, complaint)
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
        """One question for all ranks once all have begun: the store answers one client after the other."""
        others = [rank for rank in range(self.ranks) if rank != self.rank]
        keys = [f"beat/{rank}" for rank in others]
        if not self._all_began:
            self._all_began = bool(self.store.check(keys))
        if self._all_began and self.store.has_extended_api():
            return list(zip(others, self.store.multi_get(keys), strict=True))
        there = [(rank, key) for rank, key in zip(others, keys, strict=True) if self.store.check([key])]
        return [(rank, self.store.get(key)) for rank, key in there]

    def _end_process(self) -> None:
        """Give the main thread a moment to leave the step by itself."""
        from zbsolve.executor.story import blamed

        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline:
            if not self._running:
                return
            time.sleep(_BEAT_S / 10)
        assert self._cause is not None
        rank, message = self._cause
        doing = self._doing()
        text = f"rank {rank} failed: {message}" if rank == self.rank else blamed(doing, rank, message)
        print(f"zbsolve: {text}; this process ends", file=sys.stderr, flush=True)  # noqa: T201 - its last words
        threading.Timer(_LAST_WORDS_S, os._exit, (1,)).start()
        time.sleep(_LAST_WORDS_S / 2)
        os._exit(1)
