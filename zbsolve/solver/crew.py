"""Tasks done side by side in worker processes, so that a native crash costs one task and no result.

Workers are plain child processes that import zbsolve and talk over pipes: nothing is forked while
threads run, and the caller's main module is not imported again. They live as long as the solve; one
that dies or does not come back in time is replaced, and its task counts as lost.

With a work limit finds are handed on in the order of the tasks, whatever ends first, so that the
outcome does not depend on timing; without one they are handed on as they come.
"""

from __future__ import annotations

import contextlib
import heapq
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import Protocol

from zbsolve.solver.case import Case
from zbsolve.solver.compiled import cache_folder, environment, holds_all
from zbsolve.solver.running import run
from zbsolve.solver.tasks import Done, Find, Task, Warm
from zbsolve.solver.worker import read_message, write_message

__all__ = ["Crew", "InLine", "Processes"]

_GRACE_S = 2.0
"""How long after its end a task may still report before its worker is given up."""

_LAST_BREATH_S = 1.0
"""How long a worker whose end was noticed may take to be gone, so that it can be told how it ended."""

_REPLACED = 8
"""Workers that may be replaced in one solve; where they keep dying the machine has a reason."""


class Crew(Protocol):
    """Who does tasks."""

    size: int

    def submit(self, task: Task, until: float) -> int:
        """Begin a task that ends by a time on the clock of `time.perf_counter`; its number."""

    def hear(self, timeout_s: float) -> tuple[int, Find] | None:
        """The next find, or None if there was none in time; every task ends with a `Done`."""

    def end(self) -> None:
        """End all workers."""


class InLine:
    """Does the tasks in this process, one after the other, as if it were `size` workers."""

    def __init__(self, case: Case, size: int) -> None:
        self.size = size
        self._case = case
        self._count = 0
        self._waiting: deque[tuple[int, Task, float]] = deque()
        self._heard: deque[tuple[int, Find]] = deque()

    def submit(self, task: Task, until: float) -> int:
        """See `Crew`."""
        self._count += 1
        self._waiting.append((self._count, task, until))
        return self._count

    def hear(self, timeout_s: float) -> tuple[int, Find] | None:
        """See `Crew`; the time it takes is that of the task."""
        if not self._heard and self._waiting:
            number, task, until = self._waiting.popleft()
            done = run(task, self._case, until, lambda find: self._heard.append((number, find)))
            self._heard.append((number, done))
        return self._heard.popleft() if self._heard else None

    def end(self) -> None:
        """See `Crew`."""


class _Worker:
    """One process, its listener and what it is at."""

    def __init__(self, case: Case, folder: Path, heard: queue.SimpleQueue[tuple[_Worker, int, Find | None]]) -> None:
        start = f"import sys; sys.path[:] = {sys.path!r}; from zbsolve.solver.worker import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", start],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(folder),
        )
        self.task: int | None = None
        self.until = 0.0
        self.ended = False
        self._heard = heard
        self._outbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._outbox.put((case.problem, case.arrays))
        self._threads = [threading.Thread(target=t, daemon=True) for t in (self._talk, self._listen)]
        for thread in self._threads:
            thread.start()

    def send(self, number: int, task: Task, until: float, compiled: bool) -> None:
        self.task, self.until = number, until
        self._outbox.put((number, time.time() + max(0.0, until - time.perf_counter()), task, compiled))

    def _talk(self) -> None:
        assert self.process.stdin is not None
        try:
            while (message := self._outbox.get()) is not None:
                write_message(self.process.stdin, message)  # type: ignore[arg-type]
        except (OSError, ValueError):
            pass

    def _listen(self) -> None:
        assert self.process.stdout is not None
        try:
            while True:
                number, find = read_message(self.process.stdout)  # type: ignore[arg-type]
                self._heard.put((self, number, find))
        except Exception:  # whatever a dying process wrote, it is lost
            self._heard.put((self, -1, None))

    def end(self) -> None:
        self.ended = True
        self.process.kill()
        self._outbox.put(None)

    def bury_with_reason(self) -> str:
        """End and bury it; why it had to be."""
        late = self.ended
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_LAST_BREATH_S)
        unreadable = self.process.poll() is None
        self.end()
        self.bury()
        if late:
            return "its worker did not come back in time"
        if unreadable:
            return "what its worker wrote could not be read"
        code = self.process.returncode
        if code >= 0:
            return f"its worker ended with exit code {code}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return f"its worker was ended by {name}"

    def bury(self) -> None:
        for thread in self._threads:
            thread.join()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


class Processes:
    """Does tasks in processes.

    Parameters
    ----------
    case
        What all tasks share.
    size
        How many at once.
    in_order
        Hand finds on in the order of the tasks.

    Attributes
    ----------
    compiled
        False if the kernels have to be compiled first: until they are, tasks use them as they stand.
    """

    def __init__(self, case: Case, size: int, *, in_order: bool) -> None:
        self.size = size
        self._case = case
        self._in_order = in_order
        self._count = 0
        self._heard: queue.SimpleQueue[tuple[_Worker, int, Find | None]] = queue.SimpleQueue()
        self._waiting: deque[tuple[int, Task, float]] = deque()
        self._ready: list[tuple[int, int, Find]] = []
        self._serial = 0
        self._turn = 1
        self._replaced = 0
        folder = cache_folder()
        self._temporary = None if folder else tempfile.TemporaryDirectory(prefix="zbsolve-")
        self.compiled = folder is not None and holds_all(folder)
        self._folder = folder or Path(self._temporary.name if self._temporary else ".")
        self._workers = [_Worker(case, self._folder, self._heard) for _ in range(size)]

    def submit(self, task: Task, until: float) -> int:
        """See `Crew`."""
        self._count += 1
        self._waiting.append((self._count, task, until))
        self._dispatch()
        return self._count

    def _dispatch(self) -> None:
        if not self._workers:
            while self._waiting:
                self._note(self._waiting.popleft()[0], Done(why="no worker is left for it"))
        for worker in self._workers:
            if worker.task is None and not worker.ended and self._waiting:
                number, task, until = self._waiting.popleft()
                worker.send(number, task, until, self.compiled or isinstance(task, Warm))

    def hear(self, timeout_s: float) -> tuple[int, Find] | None:
        """See `Crew`."""
        until = time.perf_counter() + timeout_s
        while True:
            if self._ready and (not self._in_order or self._ready[0][0] == self._turn):
                number, _, ready = heapq.heappop(self._ready)
                if isinstance(ready, Done) and number == self._turn:
                    self._turn += 1
                return number, ready
            self._give_up_late()
            try:
                worker, number, find = self._heard.get(timeout=max(0.0, min(0.2, until - time.perf_counter())))
            except queue.Empty:
                if time.perf_counter() >= until:
                    return None
                continue
            if find is None:
                self._replace(worker)
            else:
                self._note(number, find)
                if isinstance(find, Done):
                    worker.task = None
            self._dispatch()

    def _note(self, number: int, find: Find) -> None:
        self._serial += 1
        heapq.heappush(self._ready, (number, self._serial, find))

    def _give_up_late(self) -> None:
        now = time.perf_counter()
        for worker in self._workers:
            if worker.task is not None and now > worker.until + _GRACE_S and not worker.ended:
                worker.end()

    def _replace(self, worker: _Worker) -> None:
        """Bury a dead worker, call its task lost, and start another in its place."""
        if worker not in self._workers:
            return
        why = worker.bury_with_reason()
        lost, at = worker.task, self._workers.index(worker)
        self._replaced += 1
        if self._replaced <= _REPLACED:
            self._workers[at] = _Worker(self._case, self._folder, self._heard)
        else:
            del self._workers[at]
        if lost is not None:
            self._note(lost, Done(why=why))

    def end(self) -> None:
        """See `Crew`."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.end()
        for worker in workers:
            worker.bury()
        if self._temporary is not None:
            self._temporary.cleanup()
