"""A group of verbs that are imported when called, and whose every ending is an exit code."""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from zbsolve.cli import _errors

__all__ = ["VerbGroup"]

NO_STDOUT = "standard output is closed, so no answer could be told; send it to /dev/null where it is not wanted."


class VerbGroup(click.Group):
    """Verbs by name.

    Parameters
    ----------
    package
        The package that has a module for each verb, with a command of the same name in it.
    verbs
        Each verb with its line of help.
    """

    def __init__(self, *args: Any, package: str, verbs: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._package = package
        self._verbs = dict(verbs)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs, in the order of the work."""
        return list(self._verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one verb."""
        if cmd_name not in self._verbs:
            return None
        command = getattr(importlib.import_module(f"{self._package}.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of verbs without importing any of them."""
        with formatter.section("Verbs"):
            formatter.write_dl(list(self._verbs.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb, and notice here whether anyone still reads what it printed."""
        with _errors.endings_of_a_verb():
            return super().invoke(ctx)

    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        *,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line and end the process with its exit code, as `click.Group.main` does."""
        if not standalone_mode:
            return super().main(args, prog_name, standalone_mode=False, **extra)
        if sys.stdout is None:  # as `>&-` leaves it: an answer that nobody can hear must not look like "fine"
            sys.exit(_errors.report(click.UsageError(NO_STDOUT)))
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show a character still gets the rest
                stream.reconfigure(errors="backslashreplace")
        try:
            result = super().main(args, prog_name, standalone_mode=False, **extra)
        except BaseException as error:
            sys.exit(_errors.report(error))
        sys.exit(result if isinstance(result, int) else 0)
