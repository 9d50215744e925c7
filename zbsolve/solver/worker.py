"""A worker process: hears of a case, then does one task after another."""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from zbsolve.solver.case import Case
from zbsolve.solver.compiled import compiled, plain
from zbsolve.solver.running import run
from zbsolve.solver.tasks import Done, Find, Task

__all__ = ["attempt", "main", "read_message", "write_message"]

_HEADER = struct.Struct("<Q")

_MOST_LETTERS = 100
"""Of the message of an error that is told."""


def write_message(stream: BinaryIO, message: Any) -> None:
    """Write one message: its length, then its pickle."""
    content = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(_HEADER.pack(len(content)))
    stream.write(content)
    stream.flush()


def read_message(stream: BinaryIO) -> Any:
    """Read one message.

    Raises
    ------
    EOFError
        If the other side has closed the stream.
    """
    header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise EOFError
    (length,) = _HEADER.unpack(header)
    content = stream.read(length)
    if len(content) < length:
        raise EOFError
    return pickle.loads(content)


def main() -> None:
    """Read a problem, then tasks until the other side closes; write (number, find).

    A task comes as (number, end by the clock on the wall, task, whether compiled kernels may be used).
    """
    # an interrupt at the terminal reaches the whole group; the parent decides when workers end
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.fdopen(os.dup(1), "wb")
    # what a native library prints must not mix with messages
    os.dup2(2, 1)
    problem, network = read_message(sys.stdin.buffer)
    cases: dict[bool, Case] = {}
    while True:
        try:
            number, end, task, fast = read_message(sys.stdin.buffer)
        except EOFError:
            return

        def hand(find: Find, number: int = number) -> None:
            try:
                write_message(out, (number, find))
            except BrokenPipeError:
                os._exit(0)  # nobody waits for it any more

        if fast not in cases:
            cases[fast] = Case(problem, compiled() if fast else plain(), network)
        hand(attempt(task, cases[fast], time.perf_counter() + (end - time.time()), hand))


def attempt(task: Task, case: Case, deadline: float, hand: Callable[[Find], None]) -> Done:
    """Do a task; what it raises costs this task alone, and is told."""
    try:
        return run(task, case, deadline, hand)
    except Exception as error:  # whatever it is, the search goes on with the other arms
        said = " ".join(str(error).split())[:_MOST_LETTERS]
        return Done(why=f"it raised {type(error).__name__}{f': {said}' if said else ''}")
