"""`zbsolve check --bound`: the bound in a file is proven anew, not believed."""

from __future__ import annotations

import json

import pytest

from tests.cli.helpers import call, call_json, put_timetable
from tests.solver.instances import unequal
from zbsolve.solver import solve


@pytest.fixture
def solved(tmp_path):
    problem = unequal(microbatches=4)
    path = put_timetable(tmp_path, solve(problem, time_limit_s=20.0, work_limit=2_000, workers=1))

    def change(**fields):
        content = json.loads((tmp_path / "t.json").read_text())
        record = content["solver"] | fields
        value, bound = record["value_ns"], record["lower_bound_ns"]
        record |= {"status": "optimal" if value == bound else "feasible", "gap": value / bound - 1}
        content["solver"] = record
        (tmp_path / "t.json").write_text(json.dumps(content))
        return path

    return change


def test_a_true_bound_is_verified(solved):
    told = call_json("check", solved(bound="load", lower_bound_ns=100), "--bound")
    assert (told["verdict"], told["claimed_bound"], told["claimed_bound_ns"]) == ("verified", "load", 100)
    assert "verified" in call("check", solved(), "--bound").stdout


@pytest.mark.parametrize(
    ("bound", "value"), [("load", 165), ("rank-subset[2]", 174), ("windows[1+3,at=2]", 174), ("quantised[u=40]", 174)]
)
def test_a_bound_that_its_name_does_not_prove_is_wrong(solved, bound, value):
    told = call_json("check", solved(bound=bound, lower_bound_ns=value), "--bound", code=1)
    assert told["verdict"] == "wrong"
    assert [v["code"] for v in told["violations"]] == ["claim"]


def test_too_little_time_is_no_fault(solved):
    path = solved(bound="windows[2+2,at=0]", lower_bound_ns=174)
    told = call_json("check", path, "--bound", "--bound-time", "0.000001")
    assert told["verdict"] == "not verified in time"


def test_the_claim_is_of_the_problem_in_the_file_whatever_limit_is_asked_for(solved):
    path = solved(bound="load", lower_bound_ns=165)
    assert call_json("check", path, "--bound", "--memory", "9x", code=1)["verdict"] == "wrong"


def test_the_time_must_be_positive(solved):
    call("check", solved(), "--bound", "--bound-time", "0", code=2)
