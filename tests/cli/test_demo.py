"""The verb `demo` hands on what the demo says; the demo itself has tests of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.helpers import call, small_timetable

pytest.importorskip("torch")

from zbsolve.cli.baseline import as_solution
from zbsolve.demo import DemoResult
from zbsolve.demo.run import DemoRow
from zbsolve.errors import RunError


@pytest.fixture
def calls(monkeypatch):
    calls = []

    def run(directory, *, seed, quick, say):
        calls.append((directory, seed, quick))
        say("\nstep: \x1b[31mred")
        row = DemoRow(
            schedule="solved",
            predicted_ns=1000,
            measured_ns=2000,
            torch_measured_ns=3000,
            bubble=0.25,
            peak_bytes=2048,
            gradient_error=1e-16,
            torch_gradient_error=2e-16,
        )
        solution = as_solution("zb-h1", small_timetable().problem)
        return DemoResult(rows=(row,), solution=solution, files=(Path(directory, "t.json"),), cores=2)

    monkeypatch.setattr("zbsolve.demo.run_demo", run)
    return calls


def test_the_report_is_the_result(calls):
    result = call("demo", "--quick", "--seed", "3", "-o", "here")
    assert result.stdout == "\nstep: \\x1b[31mred\n"
    assert result.stderr == ""
    assert calls == [("here", 3, True)]


def test_json_and_quiet(calls):
    result = call("demo", "--json")
    told = json.loads(result.stdout)
    assert told["rows"][0] == {
        "schedule": "solved",
        "predicted_ns": 1000,
        "measured_ns": 2000,
        "torch_measured_ns": 3000,
        "bubble": 0.25,
        "peak_bytes": 2048,
        "gradient_error": 1e-16,
        "torch_gradient_error": 2e-16,
    }
    assert told["files"] == [str(Path("zbsolve-demo", "t.json"))]
    assert told["solution"]["method"] == "zb-h1"
    assert "step" in result.stderr
    quiet = call("demo", "--quiet")
    assert quiet.stderr == ""
    assert "1.0e-16" in quiet.stdout
    assert "2.0e-16" in quiet.stdout
    assert "step:" not in quiet.stdout
    assert calls == [("zbsolve-demo", 0, False)] * 2


def test_a_failed_run_is_one_line(monkeypatch):
    def fails(directory, **options):
        raise RunError("rank 2 died")

    monkeypatch.setattr("zbsolve.demo.run_demo", fails)
    assert call("demo", code=1).stderr == "zbsolve: error: rank 2 died\n"
