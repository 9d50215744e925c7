"""`zbsolve check`: what a file claims is held against its rows, and its bound is computed anew."""

from __future__ import annotations

import json

import pytest

from tests.cli.helpers import (
    call,
    call_json,
)


def test_check_judges_by_another_limit(timetable):
    assert "no violation" in call("check", timetable).stdout
    told = call_json("check", timetable, "--memory", "1", code=1)
    assert not told["ok"]
    assert {violation["code"] for violation in told["violations"]} == {"memory"}
    assert told["violations"][0]["ops"][0].keys() == {"kind", "stage", "microbatch"}
    assert "memory: rank 0" in call("check", timetable, "--memory", "1", code=1).stdout


def test_check_tells_the_bound(timetable):
    told = call_json("check", timetable, "--bound", "--memory", "1x")
    assert (told["lower_bound_ns"], told["gap"]) == (10_000, 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"value_ns": 9_999}, "9999"),
        ({"lower_bound_ns": 10_001}, "above the claimed value"),
        ({"lower_bound_ns": 9_000}, "claimed optimal"),
        ({"status": "feasible"}, "feasible only"),
        ({"lower_bound_ns": 8_000, "status": "feasible", "gap": 0.2}, "a gap of 0.2 is claimed"),
        ({"lower_bound_ns": 0, "status": "feasible", "gap": 0.25}, "value / bound - 1 is infinity"),
        ({"gap": None}, "a gap of infinity"),
        ({"period_ns": 9_999}, "a period of 9999 ns is claimed, the order gives 10000 ns"),
        ({"makespan_ns": 1}, "a makespan of 1 ns is claimed"),
        ({"bubble": 0.05}, "a bubble of 0.05 is claimed, the order gives 0.1"),
        ({"peak_bytes": [4, 1]}, "a peak of 1 byte is claimed for rank 1"),
        ({"digest": "0" * 16}, "is of problem"),
        ({"objective": "makespan"}, "makespan"),
    ],
)
def test_check_believes_no_claim(profile, tmp_path, change, words):
    path = tmp_path / "t.json"
    call("baseline", "zb-h1", profile, "-m", "3", "--memory", "1x", "-o", str(path))
    content = json.loads(path.read_text())
    content["solver"].update(change)
    path.write_text(json.dumps(content))
    told = call_json("check", str(path), code=1)
    assert {violation["code"] for violation in told["violations"]} == {"claim"}
    assert any(words in violation["message"] for violation in told["violations"])


FALSE_BOUNDS = {
    "load": "load, computed again, gives 9000 ns, not 10000 ns",
    "chain": "chain, computed again, gives",
    "head-tail": "head-tail, computed again, gives 0 ns",
}


@pytest.mark.parametrize("name", FALSE_BOUNDS)
def test_check_computes_the_bound_that_is_claimed(profile, tmp_path, name):
    path = tmp_path / "t.json"
    call("baseline", "zb-h1", profile, "-m", "3", "--memory", "1x", "-o", str(path))
    content = json.loads(path.read_text())
    assert call_json("check", str(path), "--bound")["ok"]
    content["solver"]["bound"] = name
    path.write_text(json.dumps(content))
    told = call_json("check", str(path), "--bound", code=1)
    assert [v["code"] for v in told["violations"]] == ["claim"]
    assert FALSE_BOUNDS[name] in told["violations"][0]["message"]
    assert told["bound"] != name
    assert FALSE_BOUNDS[name] in call("check", str(path), "--bound", code=1).stdout
    # another limit is another question; the claim is of the file's own
    assert not call_json("check", str(path), "--bound", "--memory", "unlimited", code=1)["ok"]


def test_check_holds_no_weak_bound_against_a_file(profile, tmp_path):
    path = tmp_path / "t.json"
    call("baseline", "zb-h1", profile, "-m", "3", "--memory", "1x", "-o", str(path))
    content = json.loads(path.read_text())
    content["solver"].update(bound="load", lower_bound_ns=8_000, status="feasible", gap=0.25)
    path.write_text(json.dumps(content))
    assert call_json("check", str(path), "--bound")["ok"]
    assert call("check", str(path), "--bound").stderr == ""
    content["solver"]["bound"] = "CP-SAT"
    path.write_text(json.dumps(content))
    assert "'CP-SAT' does not say what proves it, but" in call("check", str(path), "--bound").stdout


def test_a_record_of_rows_without_figures_adds_nothing(profile, tmp_path):
    path = tmp_path / "t.json"
    call("baseline", "zb-h1", profile, "-m", "3", "-o", str(path))
    content = json.loads(path.read_text())
    content["ranks"][0].reverse()
    path.write_text(json.dumps(content))
    assert {v["code"] for v in call_json("check", str(path), "--bound", code=1)["violations"]} >= {"precedence"}
