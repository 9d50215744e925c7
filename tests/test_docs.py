"""Every command and every piece of Python in README and docs does what it is shown to do, in little time."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from glob import glob

import pytest
from click.testing import CliRunner

import zbsolve
from tests.documents import DOCUMENTS, ROOT, commands, fences, name
from zbsolve.cli import VERBS, main
from zbsolve.files import read_profile_bytes

LIMITS = {
    "solve": "--work-limit 300 --workers 1",
    "compare": "--work-limit 300 --workers 1",
    "sweep": "--work-limit 300 --jobs 1",
    "explain": "--work-limit 30 --workers 1",
    "profile measure": "--repeats 1 --warmup 0",
}
"""What a verb is told besides, so that it is done soon."""

BEFORE = {"README.md": ["zbsolve baseline 1f1b examples/profiled-8stage.profile.json -m 12 -o 1F1B.json"]}
"""What a document takes for granted."""

NOT_RUN = {
    "eval": "completion is tested in a bash of its own",
    "torchrun": "several processes; the example has a test of its own",
    ".venv/bin/python": "sets up or tests all",
}
"""Other commands that documents show, and why they are not run here."""

TYPED = [path for path in DOCUMENTS if any(commands(path))]

PYTHON = [path for path in DOCUMENTS if any(fence.run for fence in fences(path, "python"))]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder that looks like a checkout to a reader's commands."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for rank in (0, 1):  # a reader's own traces
        trace = ROOT / "tests" / "interop" / "fixtures" / f"pipelining.rank{rank}.json.gz"
        (tmp_path / f"trace.rank{rank}.json.gz").symlink_to(trace)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path


def limited(words: list[str]) -> list[str]:
    for verb, more in LIMITS.items():
        if words[1 : 1 + len(verb.split())] == verb.split():
            robust = ["--trials", "50"] if "--robust" in words else []
            return [*words, *shlex.split(more), *robust]
    return words


@pytest.mark.parametrize("path", TYPED, ids=name)
def test_commands_run(path, checkout):
    if any("profile measure" in line for line in commands(path)):
        pytest.importorskip("torch", reason="the extra torch is not installed")
    for line in [*BEFORE.get(name(path), []), *commands(path)]:
        words = [name for word in shlex.split(line, comments=True) for name in (sorted(glob(word)) or [word])]
        if words[0] != "zbsolve":
            assert words[0] in NOT_RUN, f"{line}: run it here, or say why not"
            continue
        if "|" in words:
            piped(line, checkout)
            continue
        result = CliRunner().invoke(main, limited(words)[1:], prog_name="zbsolve")
        assert result.exit_code == 0, f"{line}\n{result.output}"


def piped(line: str, folder) -> None:
    """Run a line in a shell."""
    command = folder / "zbsolve"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m zbsolve "$@"\n')
    command.chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        ["sh", "-ec", line], cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, f"{line}\n{ran.stdout}{ran.stderr}"


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_python_runs(path, checkout):
    blocks = [fence for fence in fences(path, "python") if fence.run]
    if any("import torch" in fence.text for fence in blocks):
        pytest.importorskip("torch", reason="the extra torch is not installed")
    if any("to_dataframe" in fence.text for fence in blocks):
        pytest.importorskip("pandas", reason="the extra notebook is not installed")
    names: dict[str, object] = {"__name__": "__main__"}
    for fence in blocks:
        text = re.sub(r"time_limit_s=\d+", "time_limit_s=1, workers=1", fence.text)
        exec(compile("\n" * fence.line + text, name(path), "exec"), names)


def test_profiles_that_are_shown_can_be_read():
    shown = [f for path in DOCUMENTS for f in fences(path, "json") if "zbsolve.profile/1" in f.text]
    assert shown
    for fence in shown:
        read_profile_bytes(fence.text.encode(), "a document")


def test_every_verb_is_in_the_readme():
    table = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = " ".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    assert [verb for verb in VERBS if f"`{verb}" not in rows] == []


def test_every_public_name_is_in_the_reference():
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reference").glob("*.md"))
    listed = set(re.findall(r"^::: zbsolve\.(\w+)$", pages, re.MULTILINE))
    assert listed == set(zbsolve.__all__) - {"__version__"}


def test_every_page_is_in_the_menu():
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for path in (ROOT / "docs").rglob("*.md"):
        assert str(path.relative_to(ROOT / "docs")) in menu, path


def test_links_between_documents_lead_somewhere():
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (path.parent / target).exists(), f"{name(path)}: {target}"
