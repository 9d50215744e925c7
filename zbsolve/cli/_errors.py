"""From exceptions to one clear line on stderr and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator

import click

from zbsolve.cli._text import inert, one_line
from zbsolve.errors import Infeasible, InvalidTimetable, ZbsolveError
from zbsolve.units import format_bytes

__all__ = ["endings_of_a_verb", "limits_that_fit", "report"]

FAILED, USAGE, INTERRUPTED, CLOSED_PIPE = 1, 2, 130, 141

TYPES = {"integer range": "a whole number", "integer": "a whole number", "float range": "a number", "float": "a number"}
"""What click calls a type, in plain words."""

MOST_LIMITS_LISTED = 64


@contextlib.contextmanager
def endings_of_a_verb() -> Iterator[None]:
    """End without a word where the reader of our output has gone, as `| head` does, and in one line on Ctrl-C."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # what is still buffered would be flushed, and fail, once more when the interpreter ends
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        raise click.exceptions.Exit(CLOSED_PIPE) from None
    except KeyboardInterrupt as error:
        raise click.exceptions.Exit(report(error)) from None


def report(error: BaseException) -> int:
    """Tell what went wrong and return the exit code; with ZBSOLVE_DEBUG set, show the traceback too."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else FAILED
    if isinstance(error, click.UsageError) and type(error).__name__ == "NoArgsIsHelpError":  # since click 8.2
        error.show()
        return USAGE
    if os.environ.get("ZBSOLVE_DEBUG"):
        traceback.print_exception(error)
    message, code = _told(error)
    with contextlib.suppress(OSError):  # where nobody reads stderr, the exit code remains
        click.echo(f"zbsolve: {message}", err=True)
    return code


def _told(error: BaseException) -> tuple[str, int]:
    match error:
        case InvalidTimetable():  # the only message made of several lines: one a violation
            return "error: " + "\n".join(inert(line) for line in str(error).splitlines()), error.exit_code
        case Infeasible():
            return f"error: {limits_that_fit(error)}", error.exit_code
        case ZbsolveError():
            return f"error: {one_line(error)}", error.exit_code
        case click.UsageError():
            asked = error.ctx.command_path if error.ctx else "zbsolve"
            return f"error: {_clicks_words(error)} See `{asked} --help`.", error.exit_code
        case click.ClickException():
            return f"error: {_clicks_words(error)}", error.exit_code
        case KeyboardInterrupt() | click.Abort():
            return "interrupted", INTERRUPTED
        case MemoryError():
            return "error: not enough memory; try fewer microbatches or stages", FAILED
        case OSError():
            return f"error: {os_message(error)}", USAGE
    kind = type(error).__name__
    return (
        f"error: this is a bug in zbsolve, please report it ({kind}: {one_line(error)}); "
        "with ZBSOLVE_DEBUG=1 it shows the traceback",
        FAILED,
    )


def _clicks_words(error: click.ClickException) -> str:
    """A message of click without its layout and its names of types."""
    text = one_line(" ".join(error.format_message().split()))
    for name, words in TYPES.items():
        text = text.replace(f"is not a valid {name}.", f"is not {words}.")
    return text if text.endswith((".", "?")) else text + "."


def limits_that_fit(error: Infeasible) -> str:
    """Say which `--memory` would do: one for all ranks, and one a rank where their needs differ."""
    least = error.smallest_limit_bytes
    most = max(least, default=0)
    said = (
        f"no timetable fits the memory limit, not even with one {error.at_a_time} at a time; the smallest that fits "
        f"every rank is --memory {most} ({format_bytes(most)})"
    )
    if len(set(least)) < 2:
        return said
    if len(least) > MOST_LIMITS_LISTED:
        return f"{said}; some ranks need less, --json lists the smallest limit of each"
    return f"{said}, the smallest of each rank --memory {','.join(map(str, least))}"


def os_message(error: OSError) -> str:
    """What the system refused, in one line, with the file it concerns."""
    what = one_line(error.strerror or error)
    return f"{one_line(error.filename)}: {what}" if error.filename else what
