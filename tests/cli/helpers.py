"""Calling the command line from tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from zbsolve.cli import main
from zbsolve.files import profile_bytes, timetable_bytes
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Profile
from zbsolve.simulate import simulate
from zbsolve.timetable import Timetable

ROOT = Path(__file__).parents[2]


def small_profile(stages: int = 2, **changes: Any) -> Profile:
    costs = {"forward_ns": 1000, "backward_input_ns": 1000, "backward_weight_ns": 1000}
    sizes = {"activation_bytes": 2, "backward_weight_bytes": 1}
    return Profile.uniform(stages, **{**costs, **sizes, "name": "small", **changes})


def small_timetable(
    stages: int = 2, microbatches: int = 3, profile: Profile | None = None, **changes: Any
) -> Timetable:
    from zbsolve.catalog import baseline

    costs = profile or small_profile(stages)
    problem = Problem(profile=costs, placement=Placement.linear(stages), microbatches=microbatches, **changes)
    return simulate(problem, baseline("zb-h1", problem))


def put_profile(folder: Path, profile: Profile | None = None, name: str = "p.json") -> str:
    path = folder / name
    path.write_bytes(profile_bytes(profile or small_profile()))
    return str(path)


def put_timetable(folder: Path, timetable: Timetable | None = None, name: str = "t.json") -> str:
    path = folder / name
    path.write_bytes(timetable_bytes(timetable or small_timetable()))
    return str(path)


def call(*args: str, given: bytes | str | None = None, code: int | None = 0) -> Result:
    """Run a command line in this process; `code` is the exit code it must end with."""
    result = CliRunner().invoke(main, [str(arg) for arg in args], input=given, prog_name="zbsolve")
    assert "Traceback" not in result.output
    assert "this is a bug" not in result.output
    if code is not None:
        assert result.exit_code == code, result.output
    return result


def call_json(*args: str, code: int = 0, given: bytes | str | None = None) -> Any:
    """Run with --json; numbers that are no JSON are refused."""
    result = call(*args, "--json", code=code, given=given)

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is no JSON")

    return json.loads(result.stdout, parse_constant=refuse)


def error_of(result: Result) -> str:
    """The one line of a message."""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("zbsolve: error: "), result.stderr
    return lines[0].removeprefix("zbsolve: error: ")


def process(*args: str, code: str | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `python -m zbsolve`, or a piece of Python, in a process of its own."""
    command = [sys.executable, *(["-m", "zbsolve"] if code is None else ["-c", code]), *args]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env, **options)
