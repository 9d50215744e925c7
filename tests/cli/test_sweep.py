"""`zbsolve sweep`."""

from __future__ import annotations

import csv
import json
from xml.etree import ElementTree

import click
import pytest

from tests.cli.helpers import call, call_json, error_of, put_profile, put_timetable, small_profile
from zbsolve.cli._ranges import limits, numbers

QUICK = ("--work-limit", "200", "--jobs", "1")


@pytest.fixture
def profile(tmp_path):
    return put_profile(tmp_path, small_profile(4))


def rows_of(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_a_sweep_is_a_table_a_csv_and_a_picture(tmp_path, profile):
    table, picture = tmp_path / "s.csv", tmp_path / "s.svg"
    line = ("sweep", profile, "-m", "4,6", "--memory", "0.1x,0.5x:1x:0.25x,unlimited", *QUICK)
    told = call_json(*line, "-o", str(table), "--draw", str(picture))
    rows = rows_of(table)
    assert [(row["microbatches"], row["memory"]) for row in rows] == [
        (m, limit) for m in ("4", "6") for limit in ("0.1x", "0.5x", "0.75x", "1x", "unlimited")
    ]
    assert [row["value_ns"] for row in told["rows"]] == [int(r["value_ns"]) if r["value_ns"] else None for r in rows]
    assert rows[0]["status"] == "infeasible"
    for m in ("4", "6"):
        values = [int(row["value_ns"]) for row in rows if row["microbatches"] == m and row["value_ns"]]
        assert values == sorted(values, reverse=True)
    text = "".join(ElementTree.fromstring(picture.read_bytes()).itertext())
    assert "linear on 4 ranks, 6 microbatches" in text
    assert "nothing fits" in text
    assert "infeasible" in call(*line).stdout


def test_a_sweep_goes_on_with_what_is_there(tmp_path, profile, monkeypatch):
    line = ("sweep", profile, "-m", "5", "--memory", "0.5x:1x:0.25x", *QUICK)
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    call(*line, "-o", str(first))
    kept = sorted((tmp_path / "a-timetables").iterdir())
    assert len(kept) == 3
    call("check", str(kept[0]))
    folder = tmp_path / "b-timetables"
    folder.mkdir()
    (folder / kept[1].name).write_bytes(kept[1].read_bytes())  # as if interrupted
    result = call(*line, "-o", str(second))
    assert second.read_bytes() == first.read_bytes()
    assert result.stderr.count("(known)") == 1
    monkeypatch.setattr("zbsolve.solver.solve", None)
    call(*line, "-o", str(second))


def test_an_interrupt_tells_what_is_kept(tmp_path, profile, monkeypatch):
    from zbsolve.analysis.processes import Crew

    heard = []
    hear = Crew.hear

    def once(crew):
        if heard:
            raise KeyboardInterrupt
        heard.append(hear(crew))
        return heard[0]

    monkeypatch.setattr(Crew, "hear", once)
    line = ("sweep", profile, "-m", "5", "--memory", "0.5x,1x", *QUICK, "-o", str(tmp_path / "s.csv"))
    result = call(*line, code=130)
    assert "1 point of 2 kept in" in result.stderr
    assert not (tmp_path / "s.csv").exists()
    monkeypatch.undo()
    assert "(known)" in call(*line).stderr


def test_a_timetable_of_something_else_is_refused(tmp_path, profile):
    line = ("sweep", profile, "-m", "5", "--memory", "1x", *QUICK, "-o", str(tmp_path / "s.csv"))
    call(*line)
    (kept,) = (tmp_path / "s-timetables").iterdir()
    kept.write_bytes((tmp_path / put_timetable(tmp_path)).read_bytes())
    assert "no timetable of this sweep" in error_of(call(*line, code=2))
    kept.write_bytes(kept.read_bytes().replace(b'"forward"', b'"sideways"', 1))
    error_of(call(*line, code=2))


def test_a_broken_timetable_is_refused(tmp_path, profile):
    line = ("sweep", profile, "-m", "5", "--memory", "1x", *QUICK, "-o", str(tmp_path / "s.csv"))
    call(*line)
    (kept,) = (tmp_path / "s-timetables").iterdir()
    told = json.loads(kept.read_text())
    told["solver"]["value_ns"] -= 1
    kept.write_text(json.dumps(told))
    assert "is no valid timetable" in call(*line, code=1).stderr


def test_limits_and_numbers():
    assert limits("0.3x:0.5x:0.1x") == ("0.3x", "0.4x", "0.5x")
    assert limits("0.5x, 1x,unlimited,72GiB") == ("0.5x", "1x", "unlimited", "72GiB")
    assert limits("1KiB:2KiB:512") == ("1024", "1536", "2048")
    assert limits("0.5x,0.5x:1x:0.5x") == ("0.5x", "1x")
    assert numbers("-m", "8:32:8,3") == (8, 16, 24, 32, 3)


@pytest.mark.parametrize(
    "text", ["", "1x:2x", "2x:1x:0.1x", "1x:2x:0x", "1x:2GiB:1", "1x:2x:0.0001x", ",1x", "a:b:c", "1x:2x:0.1x:1x"]
)
def test_limits_that_cannot_be_read(text):
    with pytest.raises(click.UsageError):
        limits(text)


@pytest.mark.parametrize("text", ["", "0", "x", "1:2", "5:1:1", "1.5", "1:5:0", "-3"])
def test_numbers_that_cannot_be_read(text):
    with pytest.raises(click.UsageError):
        numbers("-m", text)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("-m", "4", "--placement", "zigzag"), "none of linear"),
        (("-m", "4", "--memory", "much"), "cannot read 'much'"),
        (("-m", "4", "--draw", "x.pdf"), ".svg or .png"),
        (("-m", "1:900:1", "--memory", "1x:5x:1x"), "more than 2000 points"),
        (("-m", "4", "--timetables", "none/here"), "folder for timetables"),
        (("-m", "4", "--memory", "1x,1.0x"), "are the same"),
    ],
)
def test_what_makes_no_sense(tmp_path, profile, monkeypatch, options, what):
    monkeypatch.chdir(tmp_path)
    assert what in error_of(call("sweep", profile, *options, code=2))
