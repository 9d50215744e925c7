"""Nothing heavy is loaded where it is not needed."""

from __future__ import annotations

import pytest

from tests.cli.helpers import process, put_profile, put_timetable

HEAVY = ("ortools", "torch", "matplotlib", "networkx", "pandas")

PROBE = """
import sys
from zbsolve.cli import main
try:
    main(sys.argv[1:], prog_name="zbsolve")
except SystemExit as end:
    assert not end.code, end.code
print("HEAVY", [name for name in %r if name in sys.modules], file=sys.stderr)
"""


def test_the_package_loads_nothing_heavy():
    ended = process(code=f"import zbsolve, sys; print([n for n in {HEAVY!r} if n in sys.modules])")
    assert ended.stdout.strip() == "[]", ended.stderr


def test_help_and_version_load_neither_verbs_nor_rich():
    names = (*HEAVY, "rich", "zbsolve.cli.solve")
    for option in ("--help", "--version"):
        ended = process(option, code=PROBE % (names,))
        assert ended.stderr.splitlines()[-1] == "HEAVY []", ended.stderr
        assert "zbsolve" in ended.stdout


@pytest.mark.parametrize(
    "line",
    [
        "solve --help",
        "baseline --list",
        "profile show PROFILE",
        "check TIMETABLE --bound",
        "simulate TIMETABLE --profile PROFILE",
        "baseline 1f1b PROFILE -m 3",
        "explain TIMETABLE --no-what-if",
        "draw TIMETABLE",
        "report TIMETABLE -o REPORT",
        "emit TIMETABLE --to torch-csv",
        "emit TIMETABLE --to perfetto",
        "emit TIMETABLE --to torchtitan",
        "emit TIMETABLE --to primus",
        "read torch-csv CSV --profile PROFILE",
        "profile import TABLE",
        "schema timetable",
    ],
)
def test_verbs_that_only_read_load_nothing_heavy(tmp_path, line):
    files = {"PROFILE": put_profile(tmp_path), "TIMETABLE": put_timetable(tmp_path), "REPORT": str(tmp_path / "r.html")}
    for name, content in (("CSV", "0F0,0B0\n1F0,1B0\n"), ("TABLE", "stage,forward_ms,backward_ms\n0,1,2\n")):
        files[name] = str(tmp_path / name)
        (tmp_path / name).write_text(content)
    ended = process(*(files.get(word, word) for word in line.split()), code=PROBE % (HEAVY,))
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.splitlines()[-1] == "HEAVY []"


def test_the_module_is_the_command():
    ended = process("--version")
    assert (ended.returncode, ended.stdout.split()[0]) == (0, "zbsolve")
