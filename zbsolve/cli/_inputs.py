"""Reading files that verbs are given; `-` is standard input."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zbsolve.errors import FileFormatError

if TYPE_CHECKING:
    from zbsolve.files import SolverRecord
    from zbsolve.profile import Profile
    from zbsolve.timetable import Timetable

__all__ = ["read_claimed", "read_profile", "read_timetable", "read_titled", "title", "titles"]

STDIN = "-"


@contextmanager
def _as_file(path: str) -> Iterator[str]:
    """A path that can be opened, also for standard input; errors speak of standard input then."""
    if path != STDIN:
        yield path
        return
    data = click.get_binary_stream("stdin").read()
    suffix = ".json" if data.lstrip()[:1] in (b"{", b"[", b"") else ".toml"
    with tempfile.TemporaryDirectory(prefix="zbsolve-") as directory:
        file = os.path.join(directory, "stdin" + suffix)
        Path(file).write_bytes(data)
        try:
            yield file
        except FileFormatError as error:
            error.args = (str(error).replace(file, "standard input"),)
            raise


def read_profile(path: str) -> Profile:
    """Read a profile."""
    from zbsolve import files

    with _as_file(path) as file:
        return files.read_profile(file)


def read_timetable(path: str) -> Timetable:
    """Read a timetable."""
    from zbsolve import files

    with _as_file(path) as file:
        return files.read_timetable(file)


def read_claimed(path: str) -> tuple[Timetable, SolverRecord | None]:
    """Read a timetable with what its solver claims of it."""
    from zbsolve import files

    with _as_file(path) as file:
        return files.read_timetable(file), files.read_solution_record(file)


def titles(paths: tuple[str, ...]) -> tuple[str, ...]:
    """What to call each file: its name without suffix, or the whole path where names repeat."""
    if paths.count(STDIN) > 1:
        raise click.UsageError("only one file can be standard input.")
    stems = ["stdin" if path == STDIN else title(path) for path in paths]
    return tuple(stem if stems.count(stem) == 1 else path for stem, path in zip(stems, paths, strict=True))


def title(path: str) -> str:
    """The name of a file without its suffixes."""
    return Path(path).name.removesuffix(".json").removesuffix(".timetable") or path
