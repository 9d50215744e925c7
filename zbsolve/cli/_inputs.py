"""Reading the files that verbs are given; `-` is standard input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from zbsolve.files import SolverRecord
    from zbsolve.profile import Profile
    from zbsolve.timetable import Timetable

__all__ = ["read_claimed", "read_profile", "read_timetable", "titles"]

STDIN, STDIN_NAME = "-", "standard input"


def _content(path: str) -> tuple[bytes, str]:
    """The bytes of a file and what messages call it."""
    from zbsolve.files import read_regular

    if path == STDIN:
        if sys.stdin is None:  # closed by whoever started us
            raise click.UsageError("there is no standard input to read from.")
        return sys.stdin.buffer.read(), STDIN_NAME
    return read_regular(path), path


def read_profile(path: str) -> Profile:
    """Read a profile."""
    from zbsolve.files import read_profile_bytes

    return read_profile_bytes(*_content(path))


def read_timetable(path: str) -> Timetable:
    """Read a timetable."""
    from zbsolve.files import read_timetable_bytes

    return read_timetable_bytes(*_content(path))


def read_claimed(path: str) -> tuple[Timetable, SolverRecord | None]:
    """Read a timetable with what its solver claims of it."""
    from zbsolve.files import read_record_bytes, read_timetable_bytes

    data, name = _content(path)
    return read_timetable_bytes(data, name), read_record_bytes(data, name)


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
