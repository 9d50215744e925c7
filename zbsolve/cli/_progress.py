"""How a solve is told while it runs: one line kept up to date on a terminal, else one a change."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from zbsolve.cli._output import Output
from zbsolve.cli._text import inert
from zbsolve.units import format_ns

if TYPE_CHECKING:
    from zbsolve.solver import Progress

__all__ = ["progress_on_stderr", "termination_is_interruption"]

ERASE_LINE = "\r\x1b[K"


@contextmanager
def progress_on_stderr(out: Output) -> Iterator[Callable[[Progress], None] | None]:
    """A listener for the solver; None where nothing is to be told."""
    if out.quiet:
        yield None
        return
    live = sys.stderr is not None and sys.stderr.isatty()
    last = ""

    def listen(progress: Progress) -> None:
        nonlocal last
        text = describe(progress)
        with suppress(OSError):  # a search goes on where nobody reads of its progress any more
            if live:
                click.echo(f"{ERASE_LINE}{progress.seconds:6.1f} s  {text}", err=True, nl=False)
            elif text != last:
                click.echo(f"{progress.seconds:.1f} s  {text}", err=True)
        last = text

    try:
        yield listen
    finally:
        if live:
            with suppress(OSError):
                click.echo(ERASE_LINE, err=True, nl=False)


def describe(progress: Progress) -> str:
    """One line: incumbent, bound, gap, and who found them."""
    value = "nothing yet" if progress.value_ns is None else format_ns(progress.value_ns)
    gap = "" if progress.value_ns is None or progress.gap is None else f", gap {progress.gap:.2%}"
    arm = "" if progress.arm in ("", progress.method) else f"; {progress.arm}"
    return inert(
        f"best {value} ({progress.method}), bound {format_ns(progress.lower_bound_ns)} ({progress.bound}){gap}{arm}"
    )


@contextmanager
def termination_is_interruption() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C meanwhile: batch systems end jobs that way, and the best is worth keeping."""

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
