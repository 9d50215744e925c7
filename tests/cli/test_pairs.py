"""Pairs on the command line."""

from __future__ import annotations

from tests.cli.helpers import call, call_json
from zbsolve.files.profile import write_profile
from zbsolve.files.timetable import read_timetable
from zbsolve.profile import Profile


def put(tmp_path) -> str:
    path = tmp_path / "p.json"
    costs = {"forward_ns": 1000, "backward_input_ns": 1000, "backward_weight_ns": 1000}
    write_profile(path, Profile.uniform(4, overlap_ns=2200, **costs))
    return str(path)


ASKED = ("-m", "6", "--placement", "v")


def test_baseline_compare_and_solve_take_pairs(tmp_path):
    profile = put(tmp_path)
    apart = call_json("baseline", "dualpipe-v", profile, *ASKED)
    together = call_json("baseline", "dualpipe-v", profile, *ASKED, "--paired")
    assert together["period_ns"] < apart["period_ns"]
    assert "paired" not in apart
    assert together["paired"] > 0
    compared = call_json("compare", profile, *ASKED, "--paired", "--work-limit", "500", "--workers", "1")
    rows = {row["schedule"]: row for row in compared["rows"]}
    assert rows["dualpipe-v"]["period_ns"] == together["period_ns"]
    out = tmp_path / "t.json"
    solved = call_json("solve", profile, *ASKED, "--paired", "--work-limit", "2000", "--workers", "1", "-o", str(out))
    assert solved["period_ns"] <= together["period_ns"]
    assert solved["lower_bound_ns"] <= solved["period_ns"]
    assert "paired" in read_timetable(out).problem.allow
    assert call("check", str(out)).exit_code == 0
    assert "each has half" in call("draw", str(out)).output or solved["paired"] == 0


def test_pairs_go_to_torch_and_back(tmp_path):
    profile, made, csv = put(tmp_path), str(tmp_path / "t.json"), str(tmp_path / "x.csv")
    together = call_json("baseline", "dualpipe-v", profile, *ASKED, "--paired", "-o", made)
    assert call("emit", made, "--to", "torch-csv", "-o", csv).exit_code == 0
    read = call_json("read", "torch-csv", csv, "--profile", profile, "--paired")
    assert read["period_ns"] == together["period_ns"]
    plain = call("read", "torch-csv", csv, "--profile", profile)
    assert "read as two" in plain.stderr
    refused = call("emit", made, "--to", "primus", "-o", str(tmp_path / "y.json"), code=None)
    assert refused.exit_code in (1, 2)
    assert "solve without pairs" in refused.stderr
