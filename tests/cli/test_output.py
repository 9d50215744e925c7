"""Where output goes, and that text from files cannot do harm on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys

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
from zbsolve.cli._text import inert, one_line
from zbsolve.files import profile_bytes

HOSTILE = "\x1b[31mred\x1b]0;title\x07 [red]x[/] [/] \x9b2J \u202egpj \u2028 \r\b end"


def test_inert_text_is_printable_and_plain_text_is_itself():
    shown = inert(HOSTILE)
    assert shown.isprintable()
    assert "\\x1b[31mred" in shown
    assert "[red]x[/] [/]" in shown
    assert inert("größer 模型 1.5x") == "größer 模型 1.5x"
    assert inert("\udcff") == "\\udcff"
    assert one_line("a\nb\tc") == "a b\\tc"


def hostile_profile():
    from dataclasses import replace

    plain = small_profile(name=HOSTILE)
    return replace(plain, stages=tuple(replace(stage, name=HOSTILE) for stage in plain.stages))


@pytest.mark.parametrize(
    "line",
    [
        "profile show PROFILE",
        "baseline 1f1b PROFILE -m 3",
        "compare PROFILE -m 3 --memory 1x --time-limit 2",
        "compare TIMETABLE TIMETABLE",
        "check TIMETABLE --memory 1",
        "simulate TIMETABLE",
        "draw TIMETABLE",
        "emit TIMETABLE --to torch-csv",
    ],
)
def test_hostile_names_come_out_inert(tmp_path, line):
    profile = hostile_profile()
    name = "\x1b[2J[bold]\u202e"
    files = {
        "PROFILE": put_profile(tmp_path, profile, f"{name}.json"),
        "TIMETABLE": put_timetable(tmp_path, small_timetable(profile=profile), f"{name}t.json"),
    }
    for extra in ([], ["--json"]):
        result = call(*(files.get(word, word) for word in line.split()), *extra, code=None)
        assert result.exit_code in (0, 1)
        for stream in (result.stdout, result.stderr):
            assert all(c.isprintable() or c == "\n" for c in stream)
        if extra and "emit" not in line:
            json.loads(result.stdout)


def test_markup_is_text(tmp_path):
    path = put_profile(tmp_path, small_profile(name="[red]x[/] [/] :smile:"))
    assert "[red]x[/] [/] :smile:" in call("profile", "show", path).stdout
    assert "[red]x[/] [/] :smile:" in call("baseline", "1f1b", path, "-m", "3").stdout


def test_hostile_arguments_come_out_inert():
    for line in (["\x1b[31m"], ["solve", "\x1b[31m", "-m", "1"], ["baseline", "\x1b[31m", "x", "-m", "1"]):
        assert "\\x1b[31m" in error_of(call(*line, code=2))


def test_a_file_goes_to_stdout_and_its_figures_to_stderr(tmp_path):
    profile = put_profile(tmp_path)
    result = call("baseline", "1f1b", profile, "-m", "3", "-o", "-")
    assert json.loads(result.stdout)["format"] == "zbsolve.timetable/1"
    assert "bubble" in result.stderr
    assert call("baseline", "1f1b", profile, "-m", "3", "-o", "-", "-q").stderr == ""
    assert "stdout" in error_of(call("baseline", "1f1b", profile, "-m", "3", "-o", "-", "--json", code=2))


def test_standard_input_and_output_make_a_pipe(tmp_path):
    made = call("baseline", "zb-h1", "-", "-m", "3", "-o", "-", given=profile_bytes(small_profile())).stdout
    assert call_json("check", "-", given=made)["ok"]
    assert call("emit", "-", "--to", "torch-csv", given=made).stdout.startswith("0F0,")
    assert "F0" in call("draw", "-", given=made).stdout


def test_what_cannot_be_written_is_told_before_the_work(tmp_path, monkeypatch):
    def never(*args: object) -> None:
        raise AssertionError("the work has begun")

    monkeypatch.setattr("zbsolve.cli.solve.run_search", never)
    profile = put_profile(tmp_path)
    (tmp_path / "file").write_text("x")
    for output in (tmp_path, tmp_path / "none" / "t.json", tmp_path / "file" / "t.json"):
        assert "cannot be written" in (text := error_of(call("solve", profile, "-m", "3", "-o", output, code=2))) or (
            "directory" in text
        )


@pytest.mark.parametrize("link", ["", "symbolic", "hard", "roundabout"])
@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("solve PROFILE -m 3 -o", "PROFILE"),
        ("solve PROFILE -m 3 --start T.json -o", "T.json"),
        ("baseline 1f1b PROFILE -m 3 -o", "PROFILE"),
        ("compare PROFILE -m 3 -o", "PROFILE"),
        ("compare PROFILE -m 3 --start T.json -o", "T.json"),
        ("simulate T.json -o", "T.json"),
        ("simulate T.json --profile PROFILE -o", "PROFILE"),
        ("draw MORE.json T.json -o", "T.json"),
        ("emit T.json --to torch-csv -o", "T.json"),
        ("profile measure model.py:make -o", "model.py"),
        ("profile measure model:make -o", "model.py"),
    ],
)
def test_no_result_takes_the_place_of_what_is_read(tmp_path, monkeypatch, line, read, link):
    monkeypatch.chdir(tmp_path)
    put_profile(tmp_path, name="PROFILE")
    for name in ("T.json", "MORE.json"):
        put_timetable(tmp_path, name=name)
    (tmp_path / "model.py").write_text("def make(): pass\n")
    before = (tmp_path / read).read_bytes()
    output = read
    if link == "roundabout":
        output = f"../{tmp_path.name}/{read}"
    elif link:
        output = "another_name.json"
        (os.symlink if link == "symbolic" else os.link)(read, output)
    assert f"-o would overwrite {output}, which is read here" in error_of(call(*line.split(), output, code=2))
    assert (tmp_path / read).read_bytes() == before


def test_the_file_beside_a_result_does_not_take_the_place_of_what_is_read(tmp_path):
    path = put_timetable(tmp_path, name="x.csv.json")
    line = ("emit", path, "--to", "torch-csv", "-o", path.removesuffix(".json"))
    assert f"-o would overwrite {path}, which is read here" in error_of(call(*line, code=2))
    assert [file.name for file in tmp_path.iterdir()] == ["x.csv.json"]


FULL_DISK = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
from zbsolve.cli import main
main(sys.argv[1:], prog_name="zbsolve")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of processes")
def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path):
    timetable, output = put_timetable(tmp_path), tmp_path / "out.json"
    output.write_text("old")
    ended = process("simulate", timetable, "-q", "-o", str(output), code=FULL_DISK)
    assert ended.returncode == 2
    assert ended.stderr.startswith("zbsolve: error: ")
    assert len(ended.stderr.splitlines()) == 1
    assert output.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "t.json"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs pipes of POSIX")
@pytest.mark.parametrize(
    "line",
    ["--help", "schema timetable", "baseline --list", "draw TIMETABLE -q", "emit TIMETABLE --to torch-csv -q"],
)
def test_a_reader_that_goes_away_is_no_error(tmp_path, line):
    words = [put_timetable(tmp_path) if word == "TIMETABLE" else word for word in line.split()]
    child = subprocess.Popen(
        [sys.executable, "-m", "zbsolve", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    child.stdout.close()
    talk = child.stderr.read()
    child.stderr.close()
    assert talk == ""
    assert child.wait(timeout=60) in (1, 141)  # 1 is click's own answer


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell of POSIX")
@pytest.mark.parametrize("line", ["check TIMETABLE", "check TIMETABLE -q --json", "--version", "draw TIMETABLE"])
def test_an_answer_that_nobody_can_hear_is_no_success(tmp_path, line):
    words = " ".join(put_timetable(tmp_path) if word == "TIMETABLE" else word for word in line.split())
    for closed, code in ((">&-", 2), (">&- 2>&-", 2), (">/dev/full", 2), ("2>&-", 0)):
        ended = subprocess.run(
            ["/bin/sh", "-c", f"{sys.executable} -m zbsolve {words} {closed}"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert ended.returncode == code, (closed, ended.stderr)
        if closed == ">&-":
            assert "standard output is closed" in ended.stderr
            assert len(ended.stderr.splitlines()) == 1


def test_a_terminal_that_knows_few_characters(tmp_path):
    path = put_profile(tmp_path, small_profile(name="模型 model"))
    ended = process("profile", "show", path, env={"PYTHONIOENCODING": "latin-1"})
    assert ended.returncode == 0, ended.stderr
    assert "\\u6a21\\u578b model" in ended.stdout
    assert ended.stdout.isascii()  # the lines of the table too


def test_numbers_that_json_cannot_hold_become_null(capsys):
    from zbsolve.cli._output import Output

    Output(as_json=True).data({"gap": float("inf"), "rows": [float("nan"), 1.5]})
    assert json.loads(capsys.readouterr().out) == {"gap": None, "rows": [None, 1.5]}


LOUD = """
import ctypes, os, subprocess, sys
def say(where):
    print("python", where)
    print("kept python", where, file=sys.__stdout__)
    ctypes.CDLL(None).printf(b"c %s\\n", where.encode())
    os.system("echo shell " + where)
    subprocess.run(["echo", "child", where])
    os.write(1, b"descriptor " + where.encode() + b"\\n")
say("import")
import torch
class Stage(torch.nn.Linear):
    def forward(self, x):
        say("forward")
        return super().forward(x)
def make():
    say("call")
    return [Stage(2, 2)], (torch.ones(1, 2), torch.ones(1, 2)), torch.nn.functional.mse_loss
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs the C library of POSIX")
def test_nothing_a_model_prints_gets_into_the_result(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "loud_model.py").write_text(LOUD)
    ended = process(
        *("profile", "measure", "loud_model.py:make", "--json", "--repeats", "1", "--warmup", "0"),
        cwd=tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    assert len(json.loads(ended.stdout)["stages"]) == 1
    for voice in ("python", "kept python", "c", "shell", "child", "descriptor"):
        for where in ("import", "call", "forward"):
            assert f"{voice} {where}\n" in ended.stderr
