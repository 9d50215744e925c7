"""Progress is told where it says something new, and not faster than one reads."""

from __future__ import annotations

import io
import sys

import pytest

from zbsolve.cli._output import Output
from zbsolve.cli._progress import progress_on_stderr
from zbsolve.solver import Progress


def at(seconds: float, value_ns: int, bound_ns: int = 10_000, method: str = "way") -> Progress:
    return Progress(seconds, value_ns, bound_ns, value_ns / bound_ns - 1, method, "load")


def told(capsys, *met: Progress) -> list[str]:
    with progress_on_stderr(Output()) as listen:
        for progress in met:
            listen(progress)
    return capsys.readouterr().err.splitlines()


def test_the_first_comes_at_once_and_the_last_is_not_lost(capsys):
    lines = told(capsys, *(at(i / 100, 30_000 - i) for i in range(0, 100, 10)))
    assert [line.split("  ")[0] for line in lines] == ["0.0 s", "0.5 s", "0.9 s"]
    assert "best 29.91 us" in lines[-1]


def test_many_improvements_a_second_are_few_lines(capsys):
    assert len(told(capsys, *(at(i / 1000, 3_000_000 - 100 * i) for i in range(10_000)))) <= 22


@pytest.mark.parametrize("later", [{"method": "another"}, {"value_ns": 29_999_999}])
def test_what_looks_the_same_is_not_told_again(capsys, later):
    assert len(told(capsys, at(0, 30_000_000), at(9, **{"value_ns": 30_000_000, **later}))) == 1


def test_a_better_bound_is_told(capsys):
    assert len(told(capsys, at(0, 30_000), at(1, 30_000, 20_000))) == 2


def test_a_terminal_keeps_one_line(capsys, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    told(capsys, at(0, 30_000), at(0.01, 29_000), at(0.2, 28_000))
    assert "\n" not in terminal.getvalue()
    assert terminal.getvalue().count("best") == 2
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_quiet_has_no_listener():
    with progress_on_stderr(Output(quiet=True)) as listen:
        assert listen is None
