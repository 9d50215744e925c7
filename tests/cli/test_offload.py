"""`--offload` and `--recompute` on the command line."""

from __future__ import annotations

import csv
from dataclasses import replace

from tests.cli.helpers import call, call_json, put_profile, small_profile
from zbsolve.profile import HostLink

QUICK = ("--work-limit", "300", "--workers", "1")


HOST = HostLink(latency_ns=1)


def put(tmp_path, host=HOST):
    profile = small_profile(4)
    stages = tuple(replace(cost, checkpoint_bytes=0) for cost in profile.stages)
    return put_profile(tmp_path, replace(profile, stages=stages, host_link=host))


def test_what_is_moved_is_told_written_judged_and_drawn(tmp_path):
    profile, made, picture = put(tmp_path), tmp_path / "t.json", tmp_path / "t.svg"
    line = ("solve", profile, "-m", "8", "--memory", "0.5x", *QUICK)
    told = call_json(*line, "--offload", "-o", str(made))
    assert told["offloaded"]
    assert told["value_ns"] < call_json(*line)["value_ns"]
    assert "offloaded" not in call_json(*line)
    assert "offload  " in call(*line, "--offload").stdout
    call("check", str(made), "--memory", "0.5x")
    call("simulate", str(made))
    call("explain", str(made))
    call("draw", str(made), "-o", str(picture))
    assert "copy to host memory" in picture.read_text()
    call("report", str(made), "-o", str(tmp_path / "t.html"))
    call("emit", str(made), "--to", "perfetto", "-o", str(tmp_path / "t.trace"))
    assert '"copy out"' in (tmp_path / "t.trace").read_text()
    call("emit", str(made), "--to", "csv", "-o", str(tmp_path / "plain.csv"))
    for other in ("torch-csv", "torch-csv-comms", "torchtitan", "primus", "zero-bubble"):
        refused = call("emit", str(made), "--to", other, "-o", str(tmp_path / "x.csv"), code=2)
        assert "no word for offload" in refused.stderr, other


def test_a_profile_that_does_not_know_the_way_is_refused(tmp_path):
    line = ("solve", put(tmp_path, None), "-m", "4", "--memory", "0.5x", "--offload", *QUICK)
    assert "give it a host_link" in call(*line, code=2).stderr


def test_a_sweep_may_choose_both(tmp_path):
    table = tmp_path / "s.csv"
    call(
        *("sweep", put(tmp_path), "-m", "6", "--memory", "0.3x,0.5x", "--recompute", "--offload"),
        *("--work-limit", "200", "--jobs", "1", "-o", str(table)),
    )
    values = [int(row["value_ns"]) for row in csv.DictReader(table.read_text().splitlines())]
    assert values == sorted(values, reverse=True)
