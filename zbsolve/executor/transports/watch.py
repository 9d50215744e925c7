"""Two threads a process, whatever the number of its connections: one asks the store, one looks at the clock.

The store may be kept by a process that is frozen, and a question to it never returns; so whoever asks
cannot be the one who notices. The thread with the clock asks nothing and never waits for anybody::

    asks    publish, read the others, publish, ...     blocked for 5 s: the keeper of the store is gone
    clock   own operation too long?  asking too long?  a failure known: end the step, else the process
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

__all__ = ["ASK_S", "CLOCK_S", "Watch", "Watched"]

ASK_S = 0.5
CLOCK_S = 0.1


class Watched(Protocol):
    """What is looked after."""

    def ask(self, now: float) -> None:
        """Exchange with the others; may block."""

    def tick(self, now: float, asking_s: float) -> None:
        """Judge by the clock alone, given for how long the question under way has been under way; never blocks."""


class Watch:
    """Looks after what is added to it, in threads that end when nothing is left.

    Parameters
    ----------
    clock
        The time, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._all: list[Watched] = []
        self._asking_since: float | None = None
        self._hurry = threading.Event()
        self._threads: dict[str, threading.Thread] = {}

    def add(self, watched: Watched) -> None:
        """Look after this one as well."""
        with self._lock:
            self._all.append(watched)
            for name, work in (("zbsolve watch", self._ask), ("zbsolve clock", self._tick)):
                if name not in self._threads:
                    self._threads[name] = threading.Thread(target=work, name=name, daemon=True)
                    self._threads[name].start()

    def remove(self, watched: Watched) -> None:
        """Look no more after this one."""
        with self._lock:
            self._all = [one for one in self._all if one is not watched]
        self._hurry.set()

    def hurry(self) -> None:
        """There is something to publish."""
        self._hurry.set()

    def _ask(self) -> None:
        while self._more():
            for watched in list(self._all):
                self._asking_since = self._clock()
                watched.ask(self._asking_since)
                self._asking_since = None
            self._hurry.wait(ASK_S)
            self._hurry.clear()

    def _tick(self) -> None:
        while self._more():
            now, since = self._clock(), self._asking_since
            for watched in list(self._all):
                with suppress(Exception):  # whoever moves on while looked at may give nonsense; the next look will do
                    watched.tick(now, 0.0 if since is None else now - since)
            time.sleep(CLOCK_S)

    def _more(self) -> bool:
        """Whether anything is left; said under the lock, so that nothing is added to a thread that is about to end."""
        with self._lock:
            if not self._all:
                self._threads.pop(threading.current_thread().name, None)
            return bool(self._all)
