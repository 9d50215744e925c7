"""Where results and talk go: tables or JSON on stdout, talk on stderr, files whole or not at all."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from zbsolve.cli._text import inert

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["FILE", "Output", "Verb", "colour_wanted", "columns", "output_option", "stdout_to_stderr", "talk_options"]

Verb = Callable[..., Any]

FILE = click.Path(path_type=str)
"""The type of a file's name: a shell completes it; whoever reads or writes the file says what is wrong with it."""

STDOUT = "-"

STDOUT_FILENO, STDERR_FILENO = 1, 2


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
        """Talk, on stderr; all but the ends of lines is made inert."""
        if not self.quiet:
            click.echo("\n".join(map(inert, text.split("\n"))), err=True)

    def tell(self, text: str) -> None:
        """Tell a piece of a result, on stdout, as soon as it is known."""
        click.echo("\n".join(map(inert, text.split("\n"))))
        sys.stdout.flush()

    def show(self, *parts: RenderableType) -> None:
        """Show tables and lines on stdout, in colour where that is a terminal."""
        if self.results_to_stderr and self.quiet:
            return
        stream = sys.stderr if self.results_to_stderr else sys.stdout
        for part in parts:
            click.echo(_rendered(part, colour=colour_wanted(stream)), err=self.results_to_stderr, nl=False)

    def text(self, text: str) -> None:
        """Print prepared text on stdout: what is inert already, or made by us with colours; as JSON in a field."""
        if self.as_json:
            self.data({"text": text})
        else:
            click.echo(text, nl=False)

    def data(self, value: object) -> None:
        """Print one JSON value; numbers that JSON cannot hold become null."""
        click.echo(json.dumps(_plain(value), allow_nan=False, indent=2))

    def for_file(self, path: str | None, *inputs: str | None, beside: str = "") -> Output:
        """Prepare to write a file: refuse early, before any long work, what could not or should not be written late.

        Parameters
        ----------
        path
            The file, `-` for stdout, or None if nothing is to be written.
        inputs
            The files that are read: a result never takes the place of one.
        beside
            Suffix of a second file that is written beside the first.
        """
        if path is None:
            return self
        if not path.strip():
            raise click.UsageError(f"the name of a file after -o is empty ({path!r}); give a path, or - for stdout.")
        for written in (path, path + beside):
            if path != STDOUT and any(given and _same_file(written, given) for given in inputs):
                raise click.UsageError(f"-o would overwrite {written}, which is read here; give another file.")
        if path == STDOUT:
            if self.as_json:
                raise click.UsageError("--json and -o - both want stdout; give a file to one of them.")
            return Output(as_json=False, quiet=self.quiet, results_to_stderr=True)
        from zbsolve.files import ensure_writable

        ensure_writable(path)
        return self

    def write(self, path: str, data: bytes) -> None:
        """Write a file atomically, or to stdout where `path` is `-`."""
        from zbsolve.files import write_atomic

        if path == STDOUT:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            return
        write_atomic(path, data)
        self.say(f"wrote {path}")


def _same_file(path: str, other: str) -> bool:
    """Whether two paths lead to one file, whatever they are called."""
    if other == STDOUT:
        return False
    try:
        return os.path.samefile(path, other)
    except (OSError, ValueError):  # one of them does not exist, or cannot be a path
        return False


def colour_wanted(stream: Any = None) -> bool:
    """Whether colour helps on a stream (stdout): a terminal, and NO_COLOR is not set."""
    stream = stream or sys.stdout
    return stream is not None and bool(stream.isatty()) and not os.environ.get("NO_COLOR")


def columns() -> int:
    """Columns to draw in: those of the terminal, else 100."""
    return max(40, shutil.get_terminal_size(fallback=(100, 24)).columns)


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Turn whatever this process and its children print meanwhile into talk: Python, C++ and `os.system` alike."""
    _flush_all()
    try:
        kept = os.dup(STDOUT_FILENO)
        try:
            os.dup2(STDERR_FILENO, STDOUT_FILENO)
        except OSError:  # there is no stderr either
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), STDOUT_FILENO)
    except OSError:  # there is no stdout to keep clean
        kept = None
    try:
        with contextlib.redirect_stdout(sys.stderr):  # a stand-in for stdout may have no descriptor
            yield
    finally:
        _flush_all()
        if kept is not None:
            os.dup2(kept, STDOUT_FILENO)
            os.close(kept)


def _flush_all() -> None:
    """Send on what Python and C hold back, or it would come out later, elsewhere."""
    for stream in (sys.stdout, sys.__stdout__):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    with contextlib.suppress(ImportError, OSError, AttributeError, TypeError):
        import ctypes

        ctypes.CDLL(None).fflush(None)


class _Page(io.StringIO):
    """Text that will go to stdout: rich draws no lines that stdout could not show."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(sys.stdout, "encoding", None) or "utf-8"


def _rendered(part: RenderableType, *, colour: bool) -> str:
    from rich.console import Console

    page = _Page()
    console = Console(
        file=page,
        width=columns() if sys.stdout is not None and sys.stdout.isatty() else 160,
        force_terminal=colour,
        color_system="standard" if colour else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    console.print(part, soft_wrap=isinstance(part, str))
    return "".join(line.rstrip(" ") + "\n" for line in page.getvalue().strip("\n").split("\n"))


def _plain(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


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
