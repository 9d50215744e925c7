"""A few processes that do one call after another, side by side.

Each is a fresh interpreter that hears calls and answers over its pipes, in the solver workers' own
messages. It starts a session of its own, so Ctrl-C at the terminal reaches the parent alone, which then
ends them. A script needs no guard against being imported again, as `multiprocessing` would ask for.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from zbsolve.errors import RunError

__all__ = ["Crew", "main"]

_START = "import sys; sys.path[:] = {path!r}; from zbsolve.analysis.processes import main; main()"


class Crew:
    """Does calls; a context that ends its processes.

    Parameters
    ----------
    size
        How many at once. One is a process, too: in this one a solve would take Ctrl-C for its own end.
    """

    def __init__(self, size: int) -> None:
        self._waiting: deque[tuple[Any, ...]] = deque()
        self._heard: queue.SimpleQueue[tuple[_Process, Any]] = queue.SimpleQueue()
        self._processes = [_Process(self._heard) for _ in range(size)]
        self.busy = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.end()

    def submit(self, key: int, call: Callable[..., Any], *arguments: Any) -> None:
        """Have a call done; all of it travels as a pickle, and `key` comes back with the answer."""
        self.busy += 1
        self._waiting.append((key, call, arguments))
        self._dispatch()

    def _dispatch(self) -> None:
        for process in self._processes:
            if self._waiting and process.key is None:
                key, call, arguments = self._waiting.popleft()
                process.send(key, (call, arguments))

    def hear(self) -> tuple[int, Any]:
        """Wait for the next answer.

        Raises
        ------
        RunError
            If a process died; what a call raised is raised here.
        """
        while True:
            try:  # waiting without end would not hear Ctrl-C everywhere
                process, answer = self._heard.get(timeout=0.2)
                break
            except queue.Empty:
                continue
        key, process.key = process.key, None
        self.busy -= 1
        self._dispatch()
        if isinstance(answer, BaseException):
            raise answer
        assert key is not None
        return key, answer


class _Process:
    def __init__(self, heard: queue.SimpleQueue[tuple[_Process, Any]]) -> None:
        self.key: int | None = None
        self._heard = heard
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START.format(path=sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def send(self, key: int, message: Any) -> None:
        from zbsolve.solver.worker import write_message

        self.key = key
        with contextlib.suppress(OSError):  # the listener tells of a process that has died
            write_message(self.process.stdin, message)  # type: ignore[arg-type]

    def _listen(self) -> None:
        from zbsolve.solver.worker import read_message

        try:
            while True:
                self._heard.put((self, read_message(self.process.stdout)))  # type: ignore[arg-type]
        except Exception:
            self._heard.put(
                (self, RunError("a process of the sweep has died; was there enough memory? Try fewer jobs"))
            )

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._listener.join()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def main() -> None:
    """Answer calls until the other side closes."""
    from zbsolve.solver.worker import read_message, write_message

    out = os.fdopen(os.dup(1), "wb")
    # what a native library prints must not mix with messages
    os.dup2(2, 1)
    while True:
        try:
            call, arguments = read_message(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = call(*arguments)
        except Exception as error:
            answer = error
        write_message(out, answer)
