"""Running tasks in worker processes, so that they use all cores and a native crash costs no result.

Workers are plain child processes that import zbsolve and talk over pipes: nothing is forked while
threads run, and the caller's main module is not imported again. Task i goes to worker i modulo
their number.

With a work limit results are handed on in the order of the tasks, whatever finishes first, so the
outcome does not depend on timing; without one they are handed on as they come.
"""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from zbsolve.solver.tasks import Find, Proof, Task, run
from zbsolve.solver.worker import read_message, write_message

__all__ = ["run_tasks"]

_GRACE_S = 1.0
"""How long after the deadline a worker may still report."""


def run_tasks(
    tasks: Sequence[Task],
    hand: Callable[[int, Find], None],
    *,
    workers: int,
    deadline: float,
    in_order: bool,
    isolated: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Run tasks and hand on what they find.

    Parameters
    ----------
    tasks
        What to do.
    hand
        Takes the number of a task and what it found.
    workers
        The most processes; with one worker tasks run in this process.
    deadline
        On the clock of `time.perf_counter`; tasks that are not done by then are cut off.
    in_order
        Hand everything on in the order of the tasks.
    isolated
        Use a process of its own even for one worker.
    stop
        Asked after each find: end now?

    Notes
    -----
    A worker that dies takes its unfinished tasks with it, and nothing else.
    """
    if not tasks:
        return
    if workers <= 1 and not isolated:
        for number, task in enumerate(tasks):
            run(task, deadline, lambda find, number=number: hand(number, find))  # type: ignore[misc]
            if stop():
                return
        return
    crew = _Crew(deadline)
    try:
        crew.start(tasks, max(1, min(workers, len(tasks))))
        for number, find in _sorted(crew.finds(), len(tasks)) if in_order else crew.finds():
            hand(number, find)
            if stop():
                return
    finally:
        crew.end()


def _sorted(finds: Iterator[tuple[int, Find]], count: int) -> Iterator[tuple[int, Find]]:
    """Hold back what comes from later tasks until the earlier ones have ended."""
    held: list[list[Find]] = [[] for _ in range(count)]
    ended = [False] * count
    turn = 0
    for number, find in finds:
        held[number].append(find)
        ended[number] = isinstance(find, Proof)
        while turn < count and ended[turn]:
            for ready in held[turn]:
                yield turn, ready
            turn += 1
    for number in range(turn, count):
        for find in held[number]:
            yield number, find


class _Crew:
    """The processes of one call and the threads that listen to them."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.heard: queue.SimpleQueue[tuple[int, Find] | None] = queue.SimpleQueue()
        self.workers: list[subprocess.Popen[bytes]] = []
        self.listeners: list[threading.Thread] = []

    def start(self, tasks: Sequence[Task], workers: int) -> None:
        """Start the processes, each with its share of the tasks."""
        start = f"import sys; sys.path[:] = {sys.path!r}; from zbsolve.solver.worker import main; main()"
        end = time.time() + max(0.0, self.deadline - time.perf_counter())
        for worker in range(workers):
            process = subprocess.Popen([sys.executable, "-c", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self.workers.append(process)
            numbered = list(enumerate(tasks))[worker::workers]
            listener = threading.Thread(target=self._listen, args=(process, (end, numbered)), daemon=True)
            self.listeners.append(listener)
            listener.start()

    def _listen(self, process: subprocess.Popen[bytes], message: object) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            write_message(process.stdin, message)  # type: ignore[arg-type]
            process.stdin.close()
            while True:
                self.heard.put(read_message(process.stdout))  # type: ignore[arg-type]
        except (EOFError, OSError, ValueError):
            self.heard.put(None)

    def finds(self) -> Iterator[tuple[int, Find]]:
        """Whatever the workers report, until all have ended or the time is over."""
        active = len(self.workers)
        while active:
            left = self.deadline + _GRACE_S - time.perf_counter()
            try:
                find = self.heard.get(timeout=max(0.0, left))
            except queue.Empty:
                return
            if find is None:
                active -= 1
            else:
                yield find

    def end(self) -> None:
        """End every worker that still runs."""
        for process in self.workers:
            process.kill()
        for listener in self.listeners:
            listener.join()
        for process in self.workers:
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
