"""`simulate --jitter` and `solve --robust`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.cli.helpers import call, call_json, error_of, put_profile, put_timetable, small_profile, small_timetable
from zbsolve.cli._jitter import now_and_then
from zbsolve.cli._output import Output
from zbsolve.errors import UnitError
from zbsolve.files import read_timetable
from zbsolve.profile import ProfileSource, StageSpread
from zbsolve.units import parse_share


def test_simulate_tells_quantiles_and_who_is_to_blame(tmp_path):
    path = put_timetable(tmp_path)
    told = call_json("simulate", path, "--jitter", "5%", "--trials", "50", "--seed", "3", "--blame", "4")
    found = told["jitter"]
    assert found["planned_ns"] == told["period_ns"]
    assert found["least_ns"] <= found["p50_ns"] <= found["p95_ns"] <= found["greatest_ns"]
    assert (found["trials"], found["seed"], found["relative"], found["measured"]) == (50, 3, 0.05, False)
    assert len(found["operations"]) == 4
    assert found["operations"][0].keys() == {"rank", "kind", "stage", "microbatch", "critical", "late_ns"}
    table = call("simulate", path, "--jitter", "0.05", "--trials", "50", "--seed", "3").stdout
    assert "period, p95" in table
    assert "most to blame" in table
    assert "jitter" not in call_json("simulate", path)


def test_the_measured_spread_may_come_from_another_profile(tmp_path):
    path = put_timetable(tmp_path)
    assert "no measured spread" in error_of(call("simulate", path, "--jitter", "measured", code=2))
    spread = (StageSpread(forward_ns=100), StageSpread())
    measured = replace(small_profile(), source=ProfileSource(spread=spread))
    told = call_json("simulate", path, "--profile", put_profile(tmp_path, measured), "--jitter", "measured")
    assert told["jitter"]["measured"] is True
    late = {(one["kind"], one["stage"]) for one in told["jitter"]["stages"] if one["late_ns"]}
    assert late == {("forward", 0)}


@pytest.mark.parametrize("given", ["x", "-5%", "101%", "5 percent", ""])
def test_jitter_that_cannot_be_read(tmp_path, given):
    error_of(call("simulate", put_timetable(tmp_path), "--jitter", given, code=2))


def test_shares_are_read_exactly():
    assert [parse_share(text) for text in ("5%", "0.05", " 12.5 % ", "1")] == [0.05, 0.05, 0.125, 1.0]
    with pytest.raises(UnitError, match="percentage"):
        parse_share("five")


def test_solve_robust_tells_the_choice_and_writes_it(tmp_path):
    profile, path = put_profile(tmp_path, small_profile(3)), tmp_path / "t.json"
    line = ("solve", profile, "-m", "5", "--robust", "--work-limit", "500", "--workers", "1", "--trials", "30")
    told = call_json(*line, "-o", str(path))
    robust = told["robust"]
    assert robust["chosen"]["p95_ns"] <= robust["fastest"]["p95_ns"]
    assert robust["chosen"]["planned_ns"] == told["period_ns"] == read_timetable(path).period_ns
    call("check", str(path))
    assert "chosen among" in call(*line).stdout


@pytest.mark.parametrize("option", ["--jitter 5%", "--within 2%", "--trials 3", "--iterations 2"])
def test_options_of_robust_without_it(tmp_path, option):
    assert "is for --robust" in error_of(call("solve", put_profile(tmp_path), "-m", "3", *option.split(), code=2))


def test_a_timetable_that_does_not_fit_is_still_told(tmp_path):
    path = put_timetable(tmp_path, small_timetable())
    assert "period, p50" in call("simulate", path, "--memory", "1", "--jitter", "5%", "--trials", "5", code=1).stdout


def test_long_work_is_told_now_and_then(capsys):
    now = [0.0]
    listen = now_and_then(Output(), "trial", clock=lambda: now[0])
    for done in range(1, 101):
        now[0] += 0.125
        listen(done, 100)
    assert capsys.readouterr().err.splitlines() == [f"{done} of 100 trials timed" for done in (16, 32, 48, 64, 80, 96)]
    listen = now_and_then(Output(quiet=True), "trial", clock=lambda: 10.0 * now[0])
    now[0] += 10
    listen(1, 2)
    assert capsys.readouterr().err == ""
