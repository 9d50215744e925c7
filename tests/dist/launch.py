"""Processes for tests: forked from a server that has imported torch once, one a rank, none left behind."""

from __future__ import annotations

import faulthandler
import importlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Ranks:
    """Running ranks of a scenario."""

    directory: Path
    processes: list[Any]
    started: float = field(default_factory=time.monotonic)

    def wait(self, timeout_s: float = 90.0) -> list[int]:
        """Exit codes; whatever does not end in time is killed, and the test fails by its code."""
        deadline = time.monotonic() + timeout_s
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        return self.codes()

    def codes(self) -> list[int]:
        return [process.exitcode for process in self.processes]

    def wait_for(self, name: str, timeout_s: float = 90.0) -> None:
        """Until a rank has written a file of this name."""
        deadline = time.monotonic() + timeout_s
        while not (self.directory / name).exists():
            assert time.monotonic() < deadline, self.said()
            assert any(process.is_alive() for process in self.processes), self.said()
            time.sleep(0.02)

    def said(self, rank: int | None = None) -> str:
        numbers = range(len(self.processes)) if rank is None else [rank]
        return "\n".join((self.directory / f"said-{r}.txt").read_text(errors="replace") for r in numbers)

    def signal(self, rank: int, number: int) -> None:
        os.kill(self.processes[rank].pid, number)

    def end(self) -> None:
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()


def start(scenario: str, ranks: int, directory: Path, **arguments: Any) -> Ranks:
    """Start ``scenario(rank, directory, **arguments)`` on every rank: of `tests.dist.scenarios`, or `file.scenario`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "tests.dist.scenarios"])
    processes = [
        context.Process(target=_run, args=(scenario, rank, ranks, str(directory), arguments)) for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    return Ranks(directory, processes)


def _run(scenario: str, rank: int, ranks: int, directory: str, arguments: dict[str, Any]) -> None:
    said = os.open(Path(directory) / f"said-{rank}.txt", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    import torch
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    code = 1
    faulthandler.dump_traceback_later(60, exit=True)
    try:
        dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=ranks)
        module, _, name = scenario.rpartition(".")
        found = importlib.import_module(f"tests.dist.{module or 'scenarios'}")
        getattr(found, name)(rank, Path(directory), **arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    sys.exit(code)
