"""Every exit code of the design, produced for real."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.cli.helpers import (
    ROOT,
    call,
    call_json,
    error_of,
    process,
    put_profile,
    put_timetable,
    small_profile,
    small_timetable,
)
from zbsolve.cli import _search
from zbsolve.files import read_timetable

WITHOUT = """
import sys
sys.modules[{module!r}] = None  # as if it were not installed
from zbsolve.cli import main
main(sys.argv[1:], prog_name="zbsolve")
"""

# twelve unequal stages under tight memory: no bound meets a timetable within the time of a test
HARD = ("--memory", "0.6x", "--time-limit", "1", "--work-limit", "50")


def hard_profile(stages: int = 6):
    even = small_profile(stages, activation_bytes=7, backward_weight_bytes=3)
    uneven = (
        replace(s, forward_ns=1000 + 97 * i, backward_input_ns=900 + 31 * i * i) for i, s in enumerate(even.stages)
    )
    return replace(even, stages=tuple(uneven))


def test_0_fine(tmp_path):
    assert call("check", put_timetable(tmp_path)).exit_code == 0


def test_1_violations(tmp_path):
    path = put_timetable(tmp_path)
    content = json.loads((tmp_path / "t.json").read_text())
    content["ranks"][0].pop()
    (tmp_path / "t.json").write_text(json.dumps(content))
    assert "missing" in call("check", path, code=1).stdout
    result = call("emit", path, "--to", "torch-csv", code=1)
    assert result.stdout == ""
    assert "missing" in result.stderr


def test_2_usage():
    for line in ("", "slove", "solve", "solve x.json", "solve x.json -m 2 --bogus", "profile", "baseline"):
        result = call(*line.split(), code=2)
        assert result.stdout == ""
        assert result.stderr


def test_2_a_bad_file(tmp_path):
    assert "no such file" in error_of(call("profile", "show", str(tmp_path / "none.json"), code=2))
    assert "directory" in error_of(call("profile", "show", str(tmp_path), code=2))
    assert "a timetable" in error_of(call("profile", "show", put_timetable(tmp_path), code=2))


def test_2_a_schedule_whose_conditions_do_not_hold(tmp_path):
    path = put_profile(tmp_path, small_profile(4))
    result = call("baseline", "zb-h1", path, "-m", "3", "--placement", "v", code=2)
    assert "one stage a rank" in error_of(result)
    assert "zb-h1" in error_of(call("baseline", "zb-h9", path, "-m", "3", code=2))


def test_3_infeasible_names_the_smallest_limit(tmp_path):
    path, output = put_profile(tmp_path), tmp_path / "t.json"
    line = ("solve", path, "-m", "3", "--memory", "1", "-o", str(output), "--time-limit", "5")
    told = call_json(*line, code=3)
    assert told["status"] == "infeasible"
    assert told["smallest_limit_bytes"] == [2, 2]
    assert not output.exists()
    limits = ",".join(map(str, told["smallest_limit_bytes"]))
    call("solve", path, "-m", "3", "--memory", limits, "-o", str(output), "--time-limit", "2", "-q")
    assert read_timetable(output).problem.limit_bytes == (2, 2)
    result = call("solve", path, "-m", "3", "--memory", "1", "-q", code=3)
    assert "2" in error_of(result)
    assert result.stdout == ""


def test_3_names_the_one_limit_that_fits_every_rank_and_the_list_of_each(tmp_path):
    even = small_profile(3)
    uneven = (replace(stage, activation_bytes=2 + 5 * i) for i, stage in enumerate(even.stages))
    path = put_profile(tmp_path, replace(even, stages=tuple(uneven)))
    line = ("solve", path, "-m", "3", "--time-limit", "1", "-q")
    told = call_json(*line, "--memory", "1", code=3)
    least = told["smallest_limit_bytes"]
    words = error_of(call(*line, "--memory", "1", code=3))
    assert least == [2, 7, 12]
    assert told["message"] == words
    assert "every rank is --memory 12 (12 B)" in words
    assert words.endswith("of each rank --memory 2,7,12")
    for limit in ("12", "2,7,12"):
        call(*line, "--memory", limit)
    for limit in ("11", "2,7,11", "1,7,12"):
        assert error_of(call(*line, "--memory", limit, code=3)) == words


def test_3_in_compare_after_the_rows_that_there_are(tmp_path):
    result = call("compare", put_profile(tmp_path), "-m", "3", "--memory", "1", "--json", code=3)
    rows = json.loads(result.stdout)["rows"]
    assert rows
    assert not any(row["fits"] for row in rows)


def test_4_nothing_found(tmp_path, monkeypatch):
    from zbsolve.errors import NothingFound

    def gives_up(*args: object, **kwargs: object) -> None:
        raise NothingFound("no timetable was found in time")

    monkeypatch.setattr("zbsolve.solver.solve", gives_up)
    told = call_json("solve", put_profile(tmp_path), "-m", "3", code=4)
    assert told == {"status": "nothing_found", "message": "no timetable was found in time"}


def test_5_not_proven_but_written(tmp_path):
    output = tmp_path / "t.json"
    line = ("solve", put_profile(tmp_path, hard_profile()), "-m", "9", *HARD, "--require-optimal", "-o", str(output))
    result = call(*line, "--json", code=5)
    assert json.loads(result.stdout)["status"] == "feasible"
    assert "--require-optimal" in result.stderr
    call("check", str(output))


@pytest.mark.parametrize(
    ("module", "line"),
    [("torch", "profile measure some:thing"), ("matplotlib", "draw TIMETABLE -o PICTURE.svg")],
)
def test_6_an_extra_is_missing(tmp_path, module, line):
    path = put_timetable(tmp_path, small_timetable())
    words = [word.replace("TIMETABLE", path).replace("PICTURE", str(tmp_path / "x")) for word in line.split()]
    ended = process(*words, code=WITHOUT.format(module=module))
    assert ended.returncode == 6, ended.stderr
    assert ended.stderr.splitlines()[-1].endswith(
        {"torch": "'zbsolve[torch]'", "matplotlib": "'zbsolve[plot]'"}[module]
    )
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "x.svg").exists()


def test_a_bug_is_one_line_and_a_traceback_only_if_asked(tmp_path, monkeypatch):
    def broken(*args: object) -> None:
        raise RuntimeError("oh\nno \x1b[31m")

    monkeypatch.setattr(_search, "run_search", broken)
    monkeypatch.setattr("zbsolve.cli.solve.run_search", broken)
    from click.testing import CliRunner

    from zbsolve.cli import main

    line = ["solve", put_profile(tmp_path), "-m", "3"]
    result = CliRunner().invoke(main, line)
    assert result.exit_code == 1
    assert "please report it (RuntimeError: oh no \\x1b[31m)" in error_of(result)
    assert "Traceback" in CliRunner(env={"ZBSOLVE_DEBUG": "1"}).invoke(main, line).stderr


@pytest.mark.parametrize(
    ("error", "words", "code"),
    [
        (MemoryError(), "not enough memory", 1),
        (OSError(28, "No space left on device", "/x/y"), "/x/y: No space left on device", 2),
        (KeyboardInterrupt(), "interrupted", 130),
    ],
)
def test_what_the_system_refuses_is_one_line(tmp_path, monkeypatch, error, words, code):
    def refuse(*args: object) -> None:
        raise error

    monkeypatch.setattr("zbsolve.cli.solve.run_search", refuse)
    result = call("solve", put_profile(tmp_path), "-m", "3", code=code)
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_target_that_fails_is_one_line(tmp_path):
    (tmp_path / "bad_model.py").write_text("def make():\n    raise ValueError('no [red] model\\nhere')\n")
    ended = process("profile", "measure", "bad_model:make", cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert ended.returncode == 2, ended.stderr
    assert "ValueError: no [red] model here" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
