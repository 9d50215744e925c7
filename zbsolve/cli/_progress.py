"""How a solve is told while it runs: one line kept up to date on a terminal, else one a change."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from zbsolve.cli._output import Output
from zbsolve.cli._text import inert
from zbsolve.draw.progress import describe
from zbsolve.units import format_ns

if TYPE_CHECKING:
    from zbsolve.solver import Progress

__all__ = ["progress_on_stderr"]

ERASE_LINE = "\r\x1b[K"


LINE_EVERY_S, REDRAWN_EVERY_S = 0.5, 0.1
"""Least time between two lines, and between two states of the line on a terminal."""


@contextmanager
def progress_on_stderr(out: Output) -> Iterator[Callable[[Progress], None] | None]:
    """A listener for the solver; None where nothing is to be told.

    A line is told only where value or bound changed as shown, the first at once, then one now and
    then; what came too soon after another is told at the end if nothing newer was.
    """
    if out.quiet:
        yield None
        return
    live = sys.stderr is not None and sys.stderr.isatty()
    every = REDRAWN_EVERY_S if live else LINE_EVERY_S
    shown: tuple[str, str, str] | None = None
    told_at = -every
    waiting: Progress | None = None
    lost = 0

    def tell(progress: Progress) -> None:
        nonlocal shown, told_at, waiting
        waiting, told_at, shown = None, progress.seconds, _figures(progress)
        start, end = (f"{ERASE_LINE}{progress.seconds:6.1f} s", "") if live else (f"{progress.seconds:.1f} s", "\n")
        with suppress(OSError):  # a search goes on where nobody reads of its progress any more
            click.echo(f"{start}  {inert(describe(progress))}{end}", err=True, nl=False)

    def tell_lost(progress: Progress) -> None:
        nonlocal lost
        for what in progress.lost[lost:]:
            with suppress(OSError):
                line = f"{progress.seconds:.1f} s  lost: {inert(what)}; the search goes on"
                click.echo(f"{ERASE_LINE if live else ''}{line}", err=True)
        lost = len(progress.lost)

    def listen(progress: Progress) -> None:
        nonlocal waiting
        tell_lost(progress)
        if _figures(progress) == shown:
            waiting = None
        elif progress.seconds - told_at < every:
            waiting = progress
        else:
            tell(progress)

    try:
        yield listen
    finally:
        if live:
            with suppress(OSError):
                click.echo(ERASE_LINE, err=True, nl=False)
        elif waiting is not None:
            tell(waiting)


def _figures(progress: Progress) -> tuple[str, str, str]:
    """Value and bound as they are shown, and what keeps the search waiting."""
    waits = progress.arm if progress.arm.startswith("compiling") else ""
    return format_ns(progress.value_ns), format_ns(progress.lower_bound_ns), waits
