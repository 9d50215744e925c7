"""Versions, and completion in a real bash."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata

import pytest

from tests.cli.helpers import ROOT, call, error_of
from zbsolve import __version__


def test_versions_are_told_without_importing_anything(monkeypatch):
    told = dict(line.split(" ", 1) for line in call("--version").stdout.splitlines())
    assert told["zbsolve"] == __version__
    assert told["ortools"] == metadata.version("ortools")
    assert re.match(r"\d", told["python"])

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert "torch is not installed" in call("--version").stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(shell):
    script = call("--completion", shell).stdout
    assert f"_ZBSOLVE_COMPLETE={shell}_complete" in script


def test_another_shell_is_refused():
    assert "csh" in error_of(call("--completion", "csh", code=2))


def completed(tmp_path, *words: str) -> list[str]:
    """What bash offers for the last word, with our script loaded as a user would."""
    command = tmp_path / "bin" / "zbsolve"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m zbsolve "$@"\n')
    command.chmod(0o755)
    quoted = " ".join(f"'{word}'" for word in ("zbsolve", *words))
    script = f"""
        eval "$(zbsolve --completion bash)"
        complete -p zbsolve
        COMP_WORDS=({quoted}); COMP_CWORD={len(words)}
        _zbsolve_completion zbsolve
        printf 'OFFER %s\\n' "${{COMPREPLY[@]}}"
    """
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        ["bash", "--norc", "-c", script],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    # compopt complains outside of a real completion, which is where files are offered
    assert "complete -o nosort -F _zbsolve_completion zbsolve" in ran.stdout, ran.stdout + ran.stderr
    return [line.removeprefix("OFFER ") for line in ran.stdout.splitlines() if line.startswith("OFFER ")]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_verbs_options_schedules_and_placements(tmp_path):
    assert {"solve", "sweep", "simulate", "schema"} <= set(completed(tmp_path, "s"))
    assert completed(tmp_path, "solve", "--rob") == ["--robust"]
    assert {"zb-h1", "zb-h2"} <= set(completed(tmp_path, "baseline", "zb-"))
    assert completed(tmp_path, "solve", "--placement", "bi") == ["bidirectional"]


def test_files_are_completed_by_the_shell():
    from click.shell_completion import ShellComplete

    from zbsolve.cli import main

    for line in (["solve"], ["simulate"], ["simulate", "t.json", "--profile"], ["sweep", "p.json", "--draw"], ["draw"]):
        offered = ShellComplete(main, {}, "zbsolve", "_ZBSOLVE_COMPLETE").get_completions(line, "")
        assert [item.type for item in offered] == ["file"], line
