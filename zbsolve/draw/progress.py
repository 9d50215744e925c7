"""How far a search is, as one line of text that renews itself: in a terminal and in a notebook alike."""

from __future__ import annotations

import sys
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from zbsolve.units import format_ns

if TYPE_CHECKING:
    from zbsolve.solver import Progress

__all__ = ["ProgressLine", "describe"]

EVERY_S = 0.1
"""Least time between two states of the line."""


def describe(progress: Progress) -> str:
    """One line: the best so far, the bound, the gap, and who found them."""
    value, bound = format_ns(progress.value_ns), format_ns(progress.lower_bound_ns)
    found = f"best {value} ({progress.method}), bound {bound} ({progress.bound}), gap {progress.gap:.2%}"
    return f"{found}; {progress.arm}" if progress.arm.startswith("compiling") else found


class ProgressLine:
    """Keeps one line up to date while a search runs.

    Parameters
    ----------
    stream
        Where to write; default stderr.

    Examples
    --------
    >>> with ProgressLine() as line:  # doctest: +SKIP
    ...     solution = solve(problem, on_progress=line)
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._told_at = -EVERY_S
        self._width = 0
        self._last: Progress | None = None

    def __call__(self, progress: Progress) -> None:
        """Take in what a search tells."""
        self._last = progress
        if progress.seconds - self._told_at >= EVERY_S:
            self._write()

    def _write(self) -> None:
        if self._last is None:
            return
        self._told_at = self._last.seconds
        text = f"{self._last.seconds:6.1f} s  {describe(self._last)}"
        text = "".join(letter if letter.isprintable() else "?" for letter in text)
        with suppress(OSError, AttributeError):  # a search goes on where nobody reads of it
            stream = self._stream or sys.stderr
            # blanks and not an escape sequence wipe what was longer: notebooks know no others
            stream.write("\r" + text.ljust(self._width))
            stream.flush()
        self._width = len(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write()
        if self._last is not None:
            with suppress(OSError, AttributeError):
                (self._stream or sys.stderr).write("\n")
