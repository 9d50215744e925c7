"""One process a rank, and none left behind.

The parent holds a pipe to the standard input of every child; a child whose parent is gone reads
its end and leaves. A child that fails writes a report, in JSON, before it closes its connections,
so the earliest report is the cause and later ones are echoes. The parent then kills the others.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from zbsolve.errors import RunError

__all__ = ["leave_with_parent", "report_failure", "run_ranks"]

_POLL_S = 0.02


def run_ranks(
    module: str, directory: Path, ranks: int, *, timeout_s: float, environment: Mapping[str, str] | None = None
) -> None:
    """Run ``python -m module directory rank`` once for each rank and wait for all.

    Parameters
    ----------
    module
        What to run; it calls `leave_with_parent` first and `report_failure` when it fails.
    directory
        Holds the job, and what the ranks write.
    ranks
        How many processes.
    timeout_s
        Seconds until all are killed.
    environment
        Variables set on top of this process's.

    Raises
    ------
    RunError
        If a rank fails or time runs out, with what the rank reported.
    """
    variables = {**os.environ, **(environment or {}), "PYTHONPATH": os.pathsep.join(p or "." for p in sys.path)}
    deadline = time.monotonic() + timeout_s
    with ExitStack() as stack:
        children = [stack.enter_context(_child(module, directory, rank, variables)) for rank in range(ranks)]
        while True:
            codes = [child.poll() for child in children]
            if any(codes):
                _raise_failure(directory, children)
            if None not in codes:
                return
            if time.monotonic() > deadline:
                late = ", ".join(str(rank) for rank, code in enumerate(codes) if code is None)
                raise RunError(
                    f"rank {late} did not finish within {timeout_s:g} s, so all ranks were stopped"
                    + _tail(directory, codes.index(None))
                )
            time.sleep(_POLL_S)


def leave_with_parent() -> None:
    """In a child: end this process when its parent is gone, and leave Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        # not through sys.stdin: its lock, held by a waiting thread, would abort the interpreter's exit
        with suppress(OSError):
            while os.read(0, 1):
                pass
        os._exit(70)

    threading.Thread(target=watch, daemon=True).start()


def report_failure(directory: Path, rank: int, message: str) -> None:
    """In a child: write down why this rank fails, before its connections close."""
    report = {"rank": rank, "at_ns": time.monotonic_ns(), "message": message}
    scratch = directory / f"failure-{rank}.part"
    scratch.write_text(json.dumps(report), encoding="utf-8")
    scratch.replace(directory / f"failure-{rank}.json")


@contextmanager
def _child(module: str, directory: Path, rank: int, variables: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with (directory / f"output-{rank}.txt").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(directory), str(rank)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(variables),
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()


def _raise_failure(directory: Path, children: Sequence[subprocess.Popen[bytes]]) -> None:
    # a rank that was killed from outside reports nothing; its neighbours' reports are echoes of it
    silent = [r for r, c in enumerate(children) if c.poll() and not (directory / f"failure-{r}.json").exists()]
    if silent:
        rank, code = silent[0], children[silent[0]].returncode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        raise RunError(f"rank {rank} {how}{hint}" + _tail(directory, rank))
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in directory.glob("failure-*.json")]
    first = min(reports, key=lambda report: int(report["at_ns"]))
    raise RunError(f"rank {first['rank']} failed: {first['message']}")


def _tail(directory: Path, rank: int) -> str:
    with suppress(OSError):
        lines = (directory / f"output-{rank}.txt").read_text(encoding="utf-8", errors="replace").splitlines()
        kept = [line for line in lines if line.strip()][-8:]
        if kept:
            return "; its last words:\n  " + "\n  ".join(kept)
    return ""
