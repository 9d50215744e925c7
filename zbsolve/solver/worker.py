"""A worker process: hears of a case, then does one task after another."""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
import time
from typing import Any, BinaryIO

from zbsolve.solver.compiled import compiled
from zbsolve.solver.tasks import Case, Find, run

__all__ = ["main", "read_message", "write_message"]

_HEADER = struct.Struct("<Q")


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
    """Read a problem, then (number, wall-clock end, task) until the other side closes; write (number, find)."""
    # an interrupt at the terminal reaches the whole group; the parent decides when workers end
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.fdopen(os.dup(1), "wb")
    # what a native library prints must not mix with messages
    os.dup2(2, 1)
    problem, network = read_message(sys.stdin.buffer)
    case = Case(problem, compiled(), network)
    while True:
        try:
            number, end, task = read_message(sys.stdin.buffer)
        except EOFError:
            return

        def hand(find: Find, number: int = number) -> None:
            write_message(out, (number, find))

        hand(run(task, case, time.perf_counter() + (end - time.time()), hand))
