"""The options of jitter, and how what came of it is told."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from zbsolve.cli._figures import grid, table
from zbsolve.cli._output import Output, Verb
from zbsolve.cli._text import inert
from zbsolve.errors import UnitError
from zbsolve.units import counted, format_ns, parse_share

if TYPE_CHECKING:
    from rich.console import RenderableType

    from zbsolve.analysis.jitter import Blame, Jittered
    from zbsolve.analysis.robust import RobustSolution

__all__ = [
    "Jitter",
    "jitter_fields",
    "jitter_options",
    "jitter_tables",
    "now_and_then",
    "robust_fields",
    "robust_tables",
    "share_option",
]

MEASURED = "measured"

EVERY_S = 2.0
"""Least time between two words on how far it is."""


@dataclass(frozen=True, kw_only=True)
class Jitter:
    """How much jitter, how often.

    Parameters
    ----------
    relative
        Sigma; None for the measured spread.
    trials, iterations
        How often, and how many iterations a trial has.
    """

    relative: float | None
    trials: int
    iterations: int


def _share(ctx: click.Context, option: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = parse_share(text)
    except UnitError as error:
        raise click.BadParameter(f"{error}.") from None
    if value > 1:
        raise click.BadParameter(f"{text} is more than 100%.")
    return value


def _jitter(ctx: click.Context, option: click.Parameter, text: str | None) -> float | str | None:
    return MEASURED if text == MEASURED else _share(ctx, option, text)


def share_option(name: str, *, default: str, what: str) -> Callable[[Verb], Verb]:
    """Give a verb an option that takes a share such as 5%."""
    return click.option(name, metavar="SHARE", default=default, show_default=True, callback=_share, help=what)


def jitter_options(default: str | None, *, what: str) -> Callable[[Verb], Verb]:
    """Give a verb `--jitter`, `--trials` and `--iterations`; it receives them as `jitter`, a `Jitter` or None."""

    def decorate(verb: Verb) -> Verb:
        @click.option(
            "--jitter", metavar=f"SHARE|{MEASURED}", default=default, show_default=True, callback=_jitter, help=what
        )
        @click.option(
            "--trials",
            metavar="N",
            type=click.IntRange(1, 100_000),
            default=500,
            show_default=True,
            help="How often to time it under jitter.",
        )
        @click.option(
            "--iterations",
            metavar="N",
            type=click.IntRange(1, 1000),
            default=10,
            show_default=True,
            help="Iterations of one such trial, with no barrier between them.",
        )
        @functools.wraps(verb)
        def wrapped(*args: Any, jitter: float | str | None, trials: int, iterations: int, **kwargs: Any) -> Any:
            given = None
            if jitter is not None:
                relative = None if isinstance(jitter, str) else jitter
                given = Jitter(relative=relative, trials=trials, iterations=iterations)
            return verb(*args, jitter=given, **kwargs)

        return wrapped

    return decorate


def now_and_then(out: Output, what: str, clock: Callable[[], float] = time.monotonic) -> Callable[[int, int], None]:
    """A listener that tells how many of how many are done, every few seconds; what is done at once is not told."""
    told_at = clock()

    def listen(done: int, of: int) -> None:
        nonlocal told_at
        if done < of and clock() - told_at >= EVERY_S:
            told_at = clock()
            out.say(f"{done} of {counted(of, what)} timed")

    return listen


def jitter_fields(found: Jittered, most: int | None = None) -> dict[str, object]:
    """All of it, for JSON; `most` cuts the list of operations."""
    return {
        "relative": found.relative,
        "measured": found.relative is None,
        "trials": len(found.values_ns),
        "iterations": found.iterations,
        "seed": found.seed,
        "objective": found.objective,
        "planned_ns": found.planned_ns,
        "p50_ns": found.p50_ns,
        "p95_ns": found.p95_ns,
        "least_ns": found.values_ns[0],
        "greatest_ns": found.values_ns[-1],
        "operations": [_blame(one) for one in found.operations[:most]],
        "stages": [_blame(one) for one in found.stages],
    }


def _blame(one: Blame) -> dict[str, object]:
    return {
        "rank": one.rank,
        **one.op.fields,
        "critical": one.critical,
        "late_ns": one.late_ns,
    }


def jitter_tables(found: Jittered, most: int) -> Iterator[RenderableType]:
    """What people read: the quantiles, and the stages and operations most to blame."""
    how = "the measured spread" if found.relative is None else f"jitter of {found.relative:.4g}"
    runs = "one iteration each" if found.iterations == 1 else f"{found.iterations} iterations each"
    beyond = [
        f"{format_ns(ns)} ({ns / found.planned_ns - 1:+.2%})" if found.planned_ns else format_ns(ns)
        for ns in (found.p50_ns, found.p95_ns, found.values_ns[-1])
    ]
    yield ""
    yield grid(
        [
            ("under", f"{how}: {len(found.values_ns)} trials of {runs}, seed {found.seed}"),
            (f"{found.objective}, p50", beyond[0]),
            (f"{found.objective}, p95", beyond[1]),
            (f"{found.objective}, worst", beyond[2]),
        ]
    )
    yield ""
    yield _table("most to blame, by kind and stage", found.stages[:most], each=False)
    yield _table("most to blame, one by one", found.operations[:most], each=True)
    yield "late = what it took beyond its plan while it was critical, mean over iterations"


def robust_fields(found: RobustSolution) -> dict[str, object]:
    """The choice, for JSON."""
    return {
        "robust": {
            "candidates": found.candidates,
            "chosen": jitter_fields(found.jittered, 20),
            "fastest": {"value_ns": found.fastest.value_ns, **jitter_fields(found.fastest_jittered, 0)},
        }
    }


def robust_tables(found: RobustSolution) -> Iterator[RenderableType]:
    """The choice, for people."""
    how = "the measured spread" if found.jittered.relative is None else f"jitter of {found.jittered.relative:.4g}"
    yield ""
    made = table("of what the search met", "planned", "p50", "p95", title=f"under {how}")
    for name, one in (("fastest", found.fastest_jittered), ("chosen", found.jittered)):
        made.add_row(name, *(format_ns(ns) for ns in (one.planned_ns, one.p50_ns, one.p95_ns)))
    yield made
    same = "; the fastest is the most robust too" if found.solution is found.fastest else ""
    yield f"chosen among {found.candidates}{same}"


def _table(title: str, found: tuple[Blame, ...], *, each: bool) -> RenderableType:
    made = table("operation", "rank", "critical" if each else "critical an iteration", "late an iteration", title=title)
    for one in found:
        name = (
            str(one.op)
            if each
            else "all " + " with ".join(f"{half.kind.letter} of stage {half.stage}" for half in one.op.halves)
        )
        share = f"{one.critical:.0%}" if each else f"{one.critical:.2f}"
        made.add_row(inert(name), str(one.rank), share, format_ns(one.late_ns))
    return made
