"""Ctrl-C ends a search and keeps the best."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from tests.cli.helpers import ROOT, call, put_profile
from tests.cli.test_exit_codes import hard_profile

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


@pytest.mark.parametrize(
    ("sent", "to_all"),
    [
        pytest.param(signal.SIGINT, True, id="as a terminal sends it, to the whole group of processes"),
        pytest.param(signal.SIGINT, False, id="to the process alone"),
        pytest.param(signal.SIGTERM, False, id="as a batch system ends a job"),
    ],
)
def test_an_interrupted_search_prints_and_writes_its_best(tmp_path, sent, to_all):
    output = tmp_path / "t.json"
    line = ["solve", put_profile(tmp_path, hard_profile(8)), "-m", "24", "--memory", "0.6x", "--time-limit", "1000"]
    child = subprocess.Popen(
        [sys.executable, "-m", "zbsolve", *line, "-o", str(output)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    watchdog = threading.Timer(120, child.kill)
    watchdog.start()
    try:
        assert "best" in child.stderr.readline()  # a first timetable is there
        (os.killpg if to_all else os.kill)(child.pid, sent)
        told, talk = child.communicate()
    finally:
        watchdog.cancel()
    assert child.returncode == 0, talk
    assert "Traceback" not in talk
    assert "period" in told
    assert "feasible" in told
    call("check", str(output))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.json", "t.json"]


def test_an_interrupt_with_nothing_to_keep_is_one_line(tmp_path, monkeypatch):
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("zbsolve.solver.solve", interrupted)
    result = call("solve", put_profile(tmp_path), "-m", "3", code=130)
    assert result.stderr == "zbsolve: interrupted\n"
