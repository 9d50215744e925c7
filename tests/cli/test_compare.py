"""`compare` tells what would fit, and draws."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tests.cli.helpers import call, call_json, error_of, put_profile, put_timetable, small_profile, small_timetable

QUICK = ("--work-limit", "300", "--workers", "1")


def test_a_picture_of_all_rows(tmp_path):
    picture = tmp_path / "all.svg"
    profile = put_profile(tmp_path, small_profile(3))
    line = ("compare", profile, "-m", "6", "--memory", "1x", *QUICK)
    told = call_json(*line, "--schedule", "gpipe", "--schedule", "zb-h1", "--draw", str(picture))
    assert [row["schedule"] for row in told["rows"]] == ["gpipe", "zb-h1", "solved"]
    assert [row["needs"] for row in told["rows"]] == ["2x", None, None]
    assert told["picture"] == str(picture)
    text = "".join(ElementTree.fromstring(picture.read_bytes()).itertext())
    assert "gpipe (does not fit: needs 2x)" in text
    assert "solved" in text


def test_a_picture_of_timetables(tmp_path):
    a = put_timetable(tmp_path, small_timetable(microbatches=3), "a.json")
    b = put_timetable(tmp_path, small_timetable(microbatches=4), "b.json")
    picture = tmp_path / "two.png"
    call("compare", a, b, "--draw", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--draw", "x.pdf"), ".svg or .png"),
        (("--draw", "none/x.svg"), "no folder"),
        (("--draw", "x.svg", "-o", "x.svg"), "both name x.svg"),
        (("--schedule", "nonesuch"), "no schedule 'nonesuch'"),
    ],
)
def test_what_cannot_be_drawn_or_compared_is_told_before_the_search(tmp_path, monkeypatch, options, what):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("zbsolve.solver.solve", None)
    assert what in error_of(call("compare", put_profile(tmp_path), "-m", "3", *options, code=2))


def test_more_than_a_picture_holds_leaves_out_the_worst(tmp_path):
    paths = [put_timetable(tmp_path, small_timetable(microbatches=m), f"t{m}.json") for m in range(1, 27)]
    told = call("compare", *paths, "--draw", str(tmp_path / "x.svg"))
    assert "2 are left out" in told.stderr
    assert "t26" not in (tmp_path / "x.svg").read_text()


def test_recomputing_is_told_as_the_work_that_it_is(tmp_path):
    path = put_profile(tmp_path, small_profile(2))
    line = ("compare", path, "-m", "4", *QUICK, "--schedule", "gpipe")
    assert "recomputing counts" not in call(*line).stdout
    line += ("--recompute", "--schedule", "gpipe-recompute")
    rows = {row["schedule"]: row for row in call_json(*line)["rows"]}
    assert rows["gpipe"]["recompute_ns"] == 0 < rows["gpipe-recompute"]["recompute_ns"]
    assert "recomputing counts as work, of which it is: gpipe-recompute 2" in call(*line).stdout
