"""Threads that stay from call to call, one a rank.

To start a thread takes as long as several operations of a small stage, and what torch keeps for each
thread would be made anew in every step::

    step 0    rank 0: thread starts, works ...     waits
    step 1    rank 0:                    works ... waits
    dropped                                        ends

An idle thread refers to nothing but the queue that it waits at, so it keeps no pipeline alive.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from queue import SimpleQueue

__all__ = ["Hands", "Task"]


class Task:
    """Work handed to a thread.

    Parameters
    ----------
    name
        Of the thread.
    """

    __slots__ = ("_ended", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._ended = threading.Event()

    def end(self) -> None:
        """The work is over, well or not."""
        self._ended.set()

    def is_alive(self) -> bool:
        """It is still at work."""
        return not self._ended.is_set()

    def join(self, timeout_s: float) -> None:
        """Wait until the work is over, or for so many seconds."""
        self._ended.wait(timeout_s)


_Jobs = SimpleQueue["tuple[Callable[[], None], Task] | None"]


class Hands:
    """Threads by name, started when they are first needed; they end when this is dropped or closed."""

    def __init__(self) -> None:
        self._threads: dict[str, tuple[threading.Thread, _Jobs]] = {}
        weakref.finalize(self, _dismiss, self._threads)

    def start(self, name: str, work: Callable[[], None]) -> Task:
        """Have the thread of this name do some work, which raises nothing."""
        thread, jobs = self._threads.get(name, (None, None))
        if thread is None or jobs is None or not thread.is_alive():
            # in a process that was forked off the threads are gone
            jobs = SimpleQueue()
            thread = threading.Thread(target=_serve, args=(jobs,), name=name, daemon=True)
            self._threads[name] = thread, jobs
            thread.start()
        task = Task(name)
        jobs.put((work, task))
        return task

    def close(self, ended: Iterable[Task] = ()) -> None:
        """Let all threads end once they are done, and wait for those whose last tasks these were."""
        over = [self._threads[task.name][0] for task in ended if task.name in self._threads]
        _dismiss(self._threads)
        for thread in over:
            thread.join()


def _serve(jobs: _Jobs) -> None:
    while True:
        job = jobs.get()
        if job is None:
            return
        work, task = job
        try:
            work()
        finally:
            task.end()
        # while it waits, a thread must keep nothing alive
        del job, work, task


def _dismiss(threads: dict[str, tuple[threading.Thread, _Jobs]]) -> None:
    for _, jobs in threads.values():
        jobs.put(None)
    threads.clear()
