"""Lists and ranges of memory limits and microbatches, as a sweep is asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import TypeVar

import click

from zbsolve.errors import UnitError
from zbsolve.units import parse_bytes

__all__ = ["limits", "numbers"]

MOST = 1000
"""Values of one option."""

_V = TypeVar("_V")

_TIMES = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)x", re.ASCII)
_WHOLE = re.compile(r"\d{1,7}", re.ASCII)


def limits(text: str) -> tuple[str, ...]:
    """Memory limits such as ``0.3x:2x:0.1x``, ``40GiB:80GiB:8GiB``, ``0.5x,1x,unlimited``; the end is included.

    Raises
    ------
    UsageError
        If they cannot be read.
    """
    found: list[str] = []
    for part in text.split(","):
        ends = [end.strip() for end in part.split(":")]
        if len(ends) == 1:
            found.append(ends[0])
        elif all(_TIMES.fullmatch(end) for end in ends):
            found += [f"{v.normalize():f}x" for v in _range("--memory", part, [Decimal(end[:-1]) for end in ends])]
        else:
            try:
                sizes = [Decimal(parse_bytes(int(end) if end.isdecimal() else end)) for end in ends]
            except UnitError:
                raise click.UsageError(
                    f"--memory {part}: give START:STOP:STEP, all times what 1F1B needs (0.3x:2x:0.1x) or all sizes."
                ) from None
            found += [str(int(v)) for v in _range("--memory", part, sizes)]
    for limit in found:
        if not limit:
            raise click.UsageError(f"--memory {text}: a limit is empty.")
    return _few("--memory", tuple(dict.fromkeys(found)))


def numbers(option: str, text: str) -> tuple[int, ...]:
    """Whole numbers from 1 such as ``8,16,32`` or ``8:32:8``; the end is included.

    Raises
    ------
    UsageError
        If they cannot be read.
    """
    found: list[int] = []
    for part in text.split(","):
        ends = [end.strip() for end in part.split(":")]
        if not all(_WHOLE.fullmatch(end) for end in ends):
            raise click.UsageError(f"{option} {text}: give whole numbers by commas, or START:STOP:STEP.")
        found += (
            [int(v) for v in _range(option, part, [Decimal(end) for end in ends])] if len(ends) > 1 else [int(part)]
        )
    if 0 in found:
        raise click.UsageError(f"{option} {text}: numbers begin at 1.")
    return _few(option, tuple(dict.fromkeys(found)))


def _range(option: str, text: str, ends: list[Decimal]) -> Iterator[Decimal]:
    if len(ends) != 3 or ends[2] <= 0 or ends[1] < ends[0]:
        raise click.UsageError(f"{option} {text}: give START:STOP:STEP with STOP no less than START and STEP above 0.")
    start, stop, step = ends
    if (stop - start) / step >= MOST:
        raise click.UsageError(f"{option} {text}: more than {MOST} values.")
    while start <= stop:
        yield start
        start += step


def _few(option: str, values: tuple[_V, ...]) -> tuple[_V, ...]:
    if len(values) > MOST:
        raise click.UsageError(f"{option}: more than {MOST} values.")
    return values
