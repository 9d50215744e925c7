"""Where results and talk go: tables or JSON on stdout, talk on stderr, files whole or not at all."""

from __future__ import annotations

import functools
import io
import json
import math
import os
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zbsolve.cli._text import inert
from zbsolve.errors import InvalidInput

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Output", "Verb", "output_option", "talk_options"]

Verb = Callable[..., Any]

STDOUT = "-"


@dataclass(frozen=True)
class Output:
    """How a verb speaks.

    Parameters
    ----------
    as_json
        One JSON object on stdout instead of tables.
    quiet
        No talk on stderr; errors are still told.
    results_to_stderr
        The file itself goes to stdout, so what is told about it must not.
    """

    as_json: bool = False
    quiet: bool = False
    results_to_stderr: bool = False

    def say(self, text: str) -> None:
        """Talk, on stderr; `text` is made inert."""
        if not self.quiet:
            click.echo(inert(text), err=True)

    def show(self, *parts: RenderableType) -> None:
        """Show tables and lines on stdout, in colour where that is a terminal."""
        if self.results_to_stderr and self.quiet:
            return
        stream = sys.stderr if self.results_to_stderr else sys.stdout
        for part in parts:
            click.echo(_rendered(part, colour=wants_colour(stream)), err=self.results_to_stderr, nl=False)

    def data(self, value: object) -> None:
        """Print one JSON value; numbers that JSON cannot hold become null."""
        click.echo(json.dumps(_plain(value), allow_nan=False, indent=2))

    def for_file(self, path: str | None) -> Output:
        """Prepare to write a file: refuse early, before any long work, what could not be written late."""
        if path is None:
            return self
        if path == STDOUT:
            if self.as_json:
                raise click.UsageError("--json and -o - both want stdout; give a file to one of them.")
            return Output(as_json=False, quiet=self.quiet, results_to_stderr=True)
        _refuse_unwritable(Path(path))
        return self

    def write(self, path: str, data: bytes) -> None:
        """Write a file atomically, or to stdout where `path` is `-`."""
        from zbsolve.files import write_atomic

        if path == STDOUT:
            stream = click.get_binary_stream("stdout")
            stream.write(data)
            stream.flush()
            return
        if _is_special(Path(path)):  # a device or a pipe is written to, never replaced
            Path(path).write_bytes(data)
        else:
            write_atomic(path, data)
        self.say(f"wrote {path}")


def wants_colour(stream: Any) -> bool:
    """Whether colour helps: a terminal, and NO_COLOR is not set."""
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR")


def width() -> int:
    """Columns to draw in: those of the terminal, else 100."""
    import shutil

    return max(40, shutil.get_terminal_size(fallback=(100, 24)).columns)


def _rendered(part: RenderableType, *, colour: bool) -> str:
    from rich.console import Console

    columns = width() if sys.stdout.isatty() else 160
    console = Console(
        file=io.StringIO(),
        width=columns,
        force_terminal=colour,
        color_system="standard" if colour else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    console.print(part, soft_wrap=isinstance(part, str))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "".join(line.rstrip(" ") + "\n" for line in str(text).splitlines())


def _plain(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def _is_special(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode)


def _refuse_unwritable(path: Path) -> None:
    parent = path.parent
    if path.is_dir():
        raise InvalidInput(f"{path}: is a directory; give the name of a file to write")
    if not parent.is_dir():
        raise InvalidInput(f"{path}: cannot be written, {parent} is not a directory")
    if not _is_special(path) and not os.access(parent, os.W_OK):
        raise InvalidInput(f"{path}: cannot be written, no permission to write in {parent}")


def talk_options(verb: Verb) -> Verb:
    """Give a verb `--json` and `--quiet`; it receives them as `out`, an `Output`."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
    @click.option("-q", "--quiet", is_flag=True, help="No talk or progress on stderr.")
    @functools.wraps(verb)
    def wrapped(*args: Any, as_json: bool, quiet: bool, **kwargs: Any) -> Any:
        return verb(*args, out=Output(as_json=as_json, quiet=quiet), **kwargs)

    return wrapped


def output_option(what: str) -> Callable[[Verb], Verb]:
    """Give a verb `-o`; `what` says what is written."""
    return click.option("-o", "--output", metavar="FILE", type=click.Path(path_type=str), help=what)
