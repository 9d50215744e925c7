"""A rank that does what the job's ``mode`` says; needs torch only where zbsolve's own code is under test."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

directory, rank = Path(sys.argv[1]), int(sys.argv[2])
mode = json.loads((directory / "job.json").read_text())["mode"]
(directory / f"pid-{rank}.part").write_text(str(os.getpid()))
(directory / f"pid-{rank}.part").rename(directory / f"pid-{rank}")

if mode == "killed" and rank == 1:
    while not (directory / "pid-0").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
if mode == "crashes":
    sys.stdout.write("about to divide\n")
    sys.exit(1 // 0)
if mode == "orphan":
    from zbsolve.executor.processes import leave_with_parent

    leave_with_parent()
    (directory / "watching").touch()
if mode == "reports":
    from zbsolve.executor.processes import report_failure

    if rank == 0:
        while not (directory / "failure-1.json").exists():
            time.sleep(0.01)
        report_failure(directory, rank, "the connection was closed")
    else:
        report_failure(directory, rank, "the real cause")
    sys.exit(1)
if mode != "fine":
    time.sleep(600)
