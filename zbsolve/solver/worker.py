"""A worker process: reads tasks from its standard input, writes what they find to its standard output."""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
import time
from typing import Any, BinaryIO

from zbsolve.solver.tasks import Find, run

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
    """Do the tasks of one message, (number, task) each, until the wall-clock time that comes with them."""
    # an interrupt at the terminal reaches the whole group; the parent decides when workers end
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.fdopen(os.dup(1), "wb")
    # what a native library prints must not mix with messages
    os.dup2(2, 1)
    end, numbered = read_message(sys.stdin.buffer)
    deadline = time.perf_counter() + (end - time.time())
    for number, task in numbered:

        def hand(find: Find, number: int = number) -> None:
            write_message(out, (number, find))

        run(task, deadline, hand)
