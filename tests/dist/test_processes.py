"""Ranks that fail, die, hang or lose their parent: reported, and none left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra torch is not installed")

from zbsolve.errors import RunError
from zbsolve.executor.processes import run_ranks

ROOT = Path(__file__).parents[2]


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.syspath_prepend(str(ROOT))

    def write(mode):
        (tmp_path / "job.json").write_text(json.dumps({"mode": mode}))
        return tmp_path

    return write


def pids(directory):
    return [int(path.read_text()) for path in directory.glob("pid-?")]


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # a process nobody has waited for yet is still listed, as a zombie
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_ranks_that_end_well_are_waited_for(job):
    directory = job("fine")
    run_ranks("stub_rank", directory, 3, timeout_s=120)
    assert len(pids(directory)) == 3


def test_the_first_report_is_the_cause_and_later_ones_are_echoes(job):
    with pytest.raises(RunError, match="rank 1 failed: the real cause"):
        run_ranks("stub_rank", job("reports"), 2, timeout_s=120)


def test_a_killed_rank_is_named_and_the_others_are_stopped(job):
    directory = job("killed")
    with pytest.raises(RunError, match="rank 1 was killed by signal 9"):
        run_ranks("stub_rank", directory, 2, timeout_s=120)
    assert len(pids(directory)) == 2
    assert all(map(is_gone, pids(directory)))


def test_a_crash_without_a_report_shows_its_last_words(job):
    with pytest.raises(
        RunError, match=r"(?s)ended with exit code 1; its last words:.*about to divide.*ZeroDivisionError"
    ):
        run_ranks("stub_rank", job("crashes"), 1, timeout_s=120)


def test_a_hang_ends_at_the_time_limit(job):
    directory = job("hangs")
    with pytest.raises(RunError, match=r"rank 0, 1 did not finish within 0\.5 s"):
        run_ranks("stub_rank", directory, 2, timeout_s=0.5)
    assert all(map(is_gone, pids(directory)))


def test_children_leave_when_their_parent_is_killed(job):
    directory = job("orphan")
    code = (
        "import sys; from pathlib import Path; from zbsolve.executor.processes import run_ranks; "
        "run_ranks('stub_rank', Path(sys.argv[1]), 1, timeout_s=300)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", code, str(directory)], env=environment)
    try:
        while not (directory / "watching").exists():
            assert parent.poll() is None
            time.sleep(0.05)
    finally:
        parent.kill()
        parent.wait()
    (child,) = pids(directory)
    # ends by the test's own timeout if the child stays
    while not is_gone(child):
        time.sleep(0.05)
