"""One process a rank, forked once torch is imported: importing it four times takes longer than a quick benchmark."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from zbsolve.errors import RunError

__all__ = ["fork_ranks"]


def fork_ranks(work: Callable[[int], Any], ranks: int, *, timeout_s: float) -> list[Any]:
    """Run ``work(rank)`` in a process for each rank; what they return, in order of ranks.

    Raises
    ------
    RunError
        If a rank fails or time runs out; all processes are gone then.
    """
    context = multiprocessing.get_context("fork")
    ends = [context.Pipe(duplex=False) for _ in range(ranks)]
    processes = [
        context.Process(target=_child, args=(work, rank, ends[rank][1]), name=f"rank {rank}", daemon=True)
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for _, sending in ends:
        sending.close()
    results: list[Any] = [None] * ranks
    deadline = time.monotonic() + timeout_s
    try:
        for rank, (receiving, _) in enumerate(ends):
            if not receiving.poll(max(0.0, deadline - time.monotonic())):
                raise RunError(f"rank {rank} did not finish within {timeout_s:g} s")
            try:
                results[rank] = receiving.recv()
            except EOFError:
                raise RunError(f"rank {rank} failed") from None
        return results
    finally:
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()


def _child(work: Callable[[int], Any], rank: int, sending: Any) -> None:
    code = 1
    try:
        sending.send(work(rank))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # without the interpreter's farewell, which is the parent's to do
        os._exit(code)
