"""Reading the files that verbs are given; `-` is standard input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zbsolve.errors import InvalidTimetable
from zbsolve.units import counted

if TYPE_CHECKING:
    from zbsolve.files import SolverRecord
    from zbsolve.profile import Profile
    from zbsolve.solution import Bound
    from zbsolve.timetable import Timetable, Violation

__all__ = [
    "BrokenFile",
    "content",
    "read_claimed",
    "read_profile",
    "read_proven",
    "read_sound",
    "read_timetable",
    "titles",
]

STDIN, STDIN_NAME = "-", "standard input"

MOST_TOLD = 5


class BrokenFile(InvalidTimetable):
    """A timetable file that breaks rules was given where only a sound one has figures worth telling."""

    def __init__(self, path: str, violations: tuple[Violation, ...]) -> None:
        super().__init__(violations)
        self.path = path

    def __str__(self) -> str:
        count = len(self.violations)
        name = STDIN_NAME if self.path == STDIN else self.path
        head = f"{name} is no valid timetable: {counted(count, 'violation')}"
        lines = [f"{head}, the first are:" if count > MOST_TOLD else f"{head}:"]
        lines += [f"  {v.code}: {v.message}" for v in self.violations[:MOST_TOLD]]
        lines.append(f"zbsolve check {self.path} --json lists all")
        return "\n".join(lines)


def content(path: str) -> tuple[bytes, str]:
    """The bytes of a file and what messages call it."""
    from zbsolve.files import read_regular

    if path == STDIN:
        if sys.stdin is None:  # closed by whoever started us
            raise click.UsageError("there is no standard input to read from.")
        return sys.stdin.buffer.read(), STDIN_NAME
    if not path.strip():
        raise click.UsageError(f"the name of a file is empty ({path!r}); give a path, or - for standard input.")
    return read_regular(path), path


def read_profile(path: str) -> Profile:
    """Read a profile."""
    from zbsolve.files import read_profile_bytes

    return read_profile_bytes(*content(path))


def read_timetable(path: str) -> Timetable:
    """Read a timetable."""
    from zbsolve.files import read_timetable_bytes

    return read_timetable_bytes(*content(path))


def read_sound(path: str) -> Timetable:
    """Read a timetable and judge it by its own problem.

    Raises
    ------
    BrokenFile
        If it breaks a rule: then its times are too good to be true, or mean nothing.
    """
    from zbsolve.check import violations

    given = read_timetable(path)
    if found := violations(given.problem, given):
        raise BrokenFile(path, found)
    return given


def read_claimed(path: str) -> tuple[Timetable, SolverRecord | None]:
    """Read a timetable with what its solver claims of it."""
    from zbsolve.files import read_record_bytes, read_timetable_bytes

    data, name = content(path)
    return read_timetable_bytes(data, name), read_record_bytes(data, name)


def read_proven(path: str) -> tuple[Timetable, Bound | None]:
    """Read a sound timetable with the bound that its solver recorded, if it recorded one.

    Raises
    ------
    BrokenFile
        If it breaks a rule, or if what the record claims of it is false.
    """
    from zbsolve.check import violations
    from zbsolve.cli._claims import broken_claims
    from zbsolve.solution import Bound

    given, record = read_claimed(path)
    claimed = None if record is None else record.value_ns
    if found := (*violations(given.problem, given, claimed_ns=claimed), *broken_claims(given, record)):
        raise BrokenFile(path, found)
    return given, None if record is None else Bound(record.lower_bound_ns, record.bound)


def titles(paths: tuple[str, ...]) -> tuple[str, ...]:
    """What to call each file: its name without suffix, or the whole path where names repeat.

    Raises
    ------
    UsageError
        If standard input is asked for twice.
    """
    if paths.count(STDIN) > 1:
        raise click.UsageError("only one file can be standard input.")
    stems = ["stdin" if path == STDIN else _stem(path) for path in paths]
    return tuple(stem if stems.count(stem) == 1 else path for stem, path in zip(stems, paths, strict=True))


def _stem(path: str) -> str:
    return Path(path).name.removesuffix(".json").removesuffix(".timetable") or path
