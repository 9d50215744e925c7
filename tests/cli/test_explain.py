from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.helpers import call, call_json, error_of, put_timetable, small_timetable
from zbsolve.files import timetable_bytes
from zbsolve.simulate import simulate

QUICK = ("--work-limit", "500", "--workers", "1", "--time-limit", "60")


def test_it_tells_causes_phases_the_critical_cycle_bubbles_and_the_bound(tmp_path):
    told = call("explain", put_timetable(tmp_path), "--no-what-if").stdout
    for part in (
        "idle time by cause",
        "warm-up",
        "cool-down",
        "critical cycle",
        "the largest bubbles",
        "bound",
        "rank 1 idles",
    ):
        assert part in told
    assert "what if" not in told


def test_json_adds_up(tmp_path):
    told = call_json("explain", put_timetable(tmp_path), "--no-what-if", "--bubbles", "1000")
    table = small_timetable()
    work = sum(timed.end_ns - timed.start_ns for row in table.rows for timed in row)
    assert told["idle_ns"] == sum(told["causes"].values()) == 2 * told["value_ns"] - work
    assert sum(bubble["end_ns"] - bubble["start_ns"] for bubble in told["bubbles"]) == told["idle_ns"]
    assert sum(phase["idle_ns"] for phase in told["phases"]) == told["idle_ns"]
    assert told["value_ns"] == told["period_ns"]
    assert told["critical"]["steps"][0]["via"] == "iteration"
    assert told["bound"]["lower_bound_ns"] <= told["value_ns"]
    assert told["bound"]["recorded"] is False
    assert told["what_if"] == []


def test_what_if_is_marked_as_solved_again(tmp_path):
    path = put_timetable(tmp_path, small_timetable(memory_limit="1x"))
    told = call_json("explain", path, *QUICK)
    assert [answer["change"] for answer in told["what_if"]][:2] == [
        "as it is",
        "memory for one more microbatch, 2 B a rank",
    ]
    assert all(answer["solved_again"] for answer in told["what_if"])
    shown = call("explain", path, *QUICK)
    assert "found by solving again" in shown.stdout
    assert "solving: as it is" in shown.stderr
    assert call("explain", path, *QUICK, "-q").stderr == ""


def test_the_bound_of_a_solution_is_taken_from_its_file(tmp_path):
    from zbsolve.solver import solve

    solved = solve(small_timetable().problem, work_limit=500, workers=1)
    path = tmp_path / "s.json"
    path.write_bytes(timetable_bytes(solved))
    told = call_json("explain", path, "--no-what-if")
    assert told["bound"]["recorded"] is True
    assert told["bound"]["name"] == solved.bound
    claimed = json.loads(path.read_text())
    claimed["solver"]["bubble"] = 0.0123
    path.write_text(json.dumps(claimed))
    assert "a bubble of 0.0123 is claimed" in call("explain", path, "--no-what-if", code=1).stderr


def test_a_timetable_that_breaks_a_rule_is_not_explained(tmp_path):
    table = small_timetable()
    rows = json.loads(timetable_bytes(table))
    rows["ranks"][0][0][4] += 1
    path = Path(tmp_path, "broken.json")
    path.write_text(json.dumps(rows))
    assert "no valid timetable" in call("explain", path, code=1).stderr
    assert not call("report", path, "-o", tmp_path / "r.html", code=1).stdout
    assert not (tmp_path / "r.html").exists()


def test_report_writes_one_page(tmp_path):
    first, second = put_timetable(tmp_path), put_timetable(tmp_path, small_timetable(3, 4), "other.json")
    page = tmp_path / "report.html"
    told = call_json("report", first, second, "-o", page)
    assert told == {"files": [str(page)], "bytes": page.stat().st_size, "timetables": ["t", "other"]}
    assert page.read_bytes() == call("report", first, second, "-o", "-").stdout_bytes
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_report_needs_a_place_and_overwrites_no_input(tmp_path):
    path = put_timetable(tmp_path)
    assert "-o report.html" in error_of(call("report", path, code=2))
    assert "would overwrite" in error_of(call("report", path, "-o", path, code=2))
    assert "at most 24" in error_of(call("report", *[path] * 25, "-o", tmp_path / "r.html", code=2))


@pytest.mark.parametrize("limit", ["nan", "0", "-1"])
def test_a_time_limit_must_make_sense(tmp_path, limit):
    assert "positive" in error_of(call("explain", put_timetable(tmp_path), "--time-limit", limit, code=2))


def test_ranks_beyond_the_first_are_counted(tmp_path):
    table = small_timetable(18, 2)
    told = call("explain", put_timetable(tmp_path, simulate(table.problem, table.order)), "--no-what-if").stdout
    assert "2 more ranks" in told
