"""Ctrl-C ends a search and keeps the best."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from tests.cli.helpers import ROOT, call, process, put_profile
from tests.cli.test_exit_codes import hard_profile
from zbsolve.cli._interrupts import PATIENCE_S, no_interruption, one_interruption

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


@pytest.mark.parametrize("verb", ["solve", "compare"])
@pytest.mark.parametrize("more", [signal.SIGINT, signal.SIGTERM])
def test_interrupts_after_the_first_do_not_lose_the_best(tmp_path, monkeypatch, verb, more):
    from zbsolve.disk import write_atomic
    from zbsolve.solver import solve

    heard = []

    def interrupted(problem, **options):
        found = solve(problem, time_limit_s=1)
        for sent in (signal.SIGINT, more, more):
            try:
                os.kill(os.getpid(), sent)
            except KeyboardInterrupt:
                heard.append(sent)
        return found

    def slow(path, data):
        os.kill(os.getpid(), more)
        write_atomic(path, data)
        os.kill(os.getpid(), more)

    monkeypatch.setattr("zbsolve.solver.solve", interrupted)
    monkeypatch.setattr("zbsolve.files.write_atomic", slow)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    told = call(verb, put_profile(tmp_path), "-m", "3", "-o", str(tmp_path / "t.json"))
    assert heard == [signal.SIGINT]
    assert "period" in told.stdout
    call("check", str(tmp_path / "t.json"))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_search_that_does_not_end_is_interrupted_again():
    now = [0.0]

    def press():
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            return True
        return False

    with one_interruption(lambda: now[0]):
        assert press()
        now[0] = PATIENCE_S - 1
        assert not press()
        now[0] = PATIENCE_S
        assert press()
        with no_interruption():
            now[0] = 9 * PATIENCE_S
            assert not press()


def test_a_signal_that_was_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with one_interruption():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)


IMPORTING = """
import runpy, sys
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
runpy.run_module("zbsolve", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("module", ["zbsolve.cli", "zbsolve.cli.check"])
def test_an_interrupt_during_imports_is_one_line(module):
    ended = process("check", "none.json", code=IMPORTING.format(module=module))
    assert (ended.returncode, ended.stderr) == (130, "zbsolve: interrupted\n")


def test_an_interrupt_with_nothing_to_keep_is_one_line(tmp_path, monkeypatch):
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("zbsolve.solver.solve", interrupted)
    result = call("solve", put_profile(tmp_path), "-m", "3", code=130)
    assert result.stderr == "zbsolve: interrupted\n"
