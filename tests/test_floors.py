"""The package's architecture, as its contracts in pyproject.toml state it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = ("torch", "ortools", "matplotlib", "networkx")


def test_every_import_keeps_to_its_floor():
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports; raise SystemExit(lint_imports())"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    "action",
    [
        "import zbsolve",
        "import zbsolve.files, zbsolve.interop.torch, zbsolve.catalog, zbsolve.solver",
        "import zbsolve.cli",
    ],
)
def test_heavy_libraries_wait_until_they_are_needed(action):
    code = f"{action}\nimport sys\nprint([m for m in {HEAVY!r} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_the_public_names_are_there_and_listed():
    import zbsolve

    assert sorted(zbsolve.__all__) == sorted(set(zbsolve.__all__))
    for name in zbsolve.__all__:
        assert getattr(zbsolve, name) is not None


def test_functions_win_over_the_modules_of_the_same_name():
    import zbsolve

    for name in ("check", "simulate", "metrics", "solve", "baseline", "lower_bound"):
        assert callable(getattr(zbsolve, name)), name
