"""The runtime over gloo, one process a rank: the same numbers, and the same words when something breaks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.dist.launch import start

LIMIT_S = 10.0
WAITS = r"rank 2 (waits for F\d of stage 1 from rank 1, which|is in \w+ of stage 2; rank 1) failed: "


@pytest.fixture
def launch(tmp_path):
    running = []

    def begin(scenario, ranks, **arguments):
        running.append(start(scenario, ranks, tmp_path, **arguments))
        return running[-1]

    yield begin
    for ranks in running:
        ranks.end()


@pytest.mark.parametrize(
    "scenario", ["equality", "slices", "offload", "post_validation", "tensors", "unused", "side_by_side"]
)
def test_processes_compute_what_one_process_computes(launch, scenario):
    ranks = launch(scenario, 4)
    assert ranks.wait() == [0] * 4, ranks.said()


SCRIPT = """
import sys
import torch
from tests.executor import pipes
from zbsolve.executor.runtime import Pipeline
from zbsolve.placement import Placement

torch.set_num_threads(1)
data = pipes.batch(4)
with Pipeline(pipes.timetable(Placement.linear(2), 4), pipes.model(2), pipes.square_loss) as pipe:
    losses = pipe.steps([data] * 2)
    rank = pipe.ranks[0].number if len(pipe.ranks) == 1 else "all"
    open(sys.argv[1] + f"/{rank}", "w").write(str(losses[-1]))
"""


def test_one_script_runs_in_one_process_and_under_torchrun(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    root = Path(__file__).parent.parent.parent
    variables = {**os.environ, "PYTHONPATH": str(root), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for command in ([], launcher):
        subprocess.run(
            [sys.executable, *command, str(script), str(tmp_path)],
            cwd=root, env=variables, check=True, timeout=120, capture_output=True,
        )  # fmt: skip
    said = {name: (tmp_path / name).read_text() for name in ("all", "0", "1")}
    assert said["0"] == "None"
    assert said["1"] == said["all"]
    assert said["all"].startswith("tensor(")


def assert_all_stop(ranks, since, *, but=()):
    """Every rank ends by itself, within the time promised, with exit code 1."""
    while any(p.is_alive() for r, p in enumerate(ranks.processes) if r not in but):
        assert time.monotonic() - since < LIMIT_S, ranks.said()
        time.sleep(0.05)
    assert [code for r, code in enumerate(ranks.codes()) if r not in but] == [1] * (len(ranks.processes) - len(but))


def test_a_killed_rank_stops_all(launch):
    ranks = launch("trouble", 3, at=1, what="sleep")
    ranks.wait_for("trouble")
    ranks.signal(1, signal.SIGKILL)
    assert_all_stop(ranks, time.monotonic(), but=(1,))
    assert re.search(WAITS + "its process has given no sign", ranks.said(2))
    assert re.search("rank 1,? (which )?failed: its process", ranks.said(0))


def test_a_frozen_rank_stops_all(launch):
    ranks = launch("trouble", 3, at=1, what="sleep")
    ranks.wait_for("trouble")
    ranks.signal(1, signal.SIGSTOP)
    assert_all_stop(ranks, time.monotonic(), but=(1,))
    assert re.search(WAITS + "its process has given no sign", ranks.said(2))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("raise", "F1 of stage 1: ValueError: no such luck"),
        (
            "shape",
            "stage 1 gives tensor 0 of microbatch 1 as float32 (4, 4), wants a gradient; expected float32 (2, 4)",
        ),
    ],
)
def test_a_rank_that_raises_stops_all(launch, what, message):
    ranks = launch("trouble", 3, at=1, what=what)
    ranks.wait_for("trouble")
    assert_all_stop(ranks, time.monotonic())
    assert "rank 1 failed: " in ranks.said(1)
    assert message in ranks.said(1)
    assert re.search(WAITS, ranks.said(2))
    assert message in ranks.said(2)
    assert message in ranks.said(0)


def test_a_stalled_rank_stops_all(launch):
    ranks = launch("trouble", 3, at=1, what="sleep", stall_s=1.0)
    ranks.wait_for("trouble")
    assert_all_stop(ranks, time.monotonic() + 1.0)
    for rank in range(3):
        assert "F1 of stage 1 stalls: it has been running for" in ranks.said(rank)
