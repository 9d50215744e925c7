"""The options that say what is asked, and how long to search for it."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

import click

from zbsolve.cli._output import Verb
from zbsolve.errors import UnitError
from zbsolve.units import counted, parse_factor

if TYPE_CHECKING:
    from zbsolve.placement import Placement
    from zbsolve.problem import Limit, Objective, Problem
    from zbsolve.profile import Profile

__all__ = [
    "Asked",
    "Search",
    "check_placement",
    "complete_placement",
    "complete_schedule",
    "memory_option",
    "problem_options",
    "search_options",
    "seconds_option",
    "with_memory",
]

UNLIMITED = "unlimited"

MEMORY_FORMS = "bytes (6200), a size (72GiB), times what 1F1B needs (1.5x), unlimited, or one of these a rank by commas"

_RANK_LIST = re.compile(r"\d{1,6}(,\d{1,6})*", re.ASCII)
_NAMES = ("linear", "looped", "v", "wave", "bidirectional")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the options say about the problem; None where they are silent."""

    microbatches: int
    ranks: int | None
    placement: str | None
    chunks: int | None
    memory: str | None
    objective: Objective
    rank_factors: str | None = None
    microbatch_factors: str | None = None
    forward_only: bool = False
    recompute: bool = False
    offload: bool = False
    paired: bool = False
    slices: int = 1

    def problem(self, profile: Profile, *, placement: str = "linear", memory: str | None = None) -> Problem:
        """Build the problem; `placement` and `memory` stand in where the options are silent."""
        from zbsolve.problem import Problem

        where = _placement(self.placement or placement, len(profile.stages), self.ranks, self.chunks)
        problem = Problem(
            profile=profile,
            placement=where,
            microbatches=self.microbatches,
            objective=self.objective,
            rank_factors=_factors(self.rank_factors, "--rank-factors", where.ranks, "rank"),
            microbatch_factors=_factors(
                self.microbatch_factors, "--microbatch-factors", self.microbatches, "microbatch"
            ),
            forward_only=self.forward_only,
            slices=self.slices,
            allow=frozenset(
                {"split", "fused"}
                | ({"recompute"} if self.recompute else set())
                | ({"offload"} if self.offload else set())
                | ({"paired"} if self.paired else set())
            ),
        )
        return with_memory(problem, self.memory if self.memory is not None else memory)

    def of_no_use(self, profile: Profile) -> tuple[str, ...]:
        """What is allowed and can change nothing on this profile, with what that would need; one line each."""
        named = {"recompute": self.recompute, "offload": self.offload, "paired": self.paired}
        if self.forward_only:
            return tuple(
                f"--{name} changes nothing: forwards alone wait for no backward" for name in named if named[name]
            )
        lines = []
        if self.recompute and all(cost.checkpoint >= cost.activation_bytes for cost in profile.stages):
            lines.append(
                "--recompute saves nothing: no stage of the profile has checkpoint_bytes below activation_bytes"
            )
        if self.offload and not any(cost.offloadable for cost in profile.stages):
            lines.append(
                "--offload saves nothing: every stage of the profile has 0 offload_bytes or 0 activation_bytes"
            )
        if self.paired and not profile.overlaps:
            lines.append(
                "--paired saves nothing: the profile has no overlaps, which say what two operations take together"
            )
        return tuple(lines)


@dataclass(frozen=True, kw_only=True)
class Search:
    """How to search: limits, seed, workers, and the file of a timetable to start from."""

    time_limit_s: float
    work_limit: int | None
    gap: float
    seed: int
    workers: int | None
    start: str | None
    require_optimal: bool


def with_memory(problem: Problem, text: str | None) -> Problem:
    """The problem with the limits that `--memory` gives: one for all ranks, or one a rank by commas; None is silent.

    Raises
    ------
    UsageError
        If a limit cannot be read, or there is not one for each rank.
    """
    if text is None:
        return problem
    parts = tuple(None if part.strip() == UNLIMITED else part.strip() for part in text.split(","))
    ranks = problem.placement.ranks
    if len(parts) not in (1, ranks):
        raise click.UsageError(
            f"--memory {text}: {len(parts)} limits by commas for {counted(ranks, 'rank')}; give {MEMORY_FORMS}."
        )
    limit = parts[0] if len(parts) == 1 else parts
    try:
        return replace(problem, memory_limit=limit)
    except UnitError:
        raise click.UsageError(f"--memory {text}: {_unreadable(problem, parts)}; give {MEMORY_FORMS}.") from None


def _factors(text: str | None, option: str, count: int, one: str) -> tuple[Decimal, ...] | None:
    """One factor each, by commas; None is silent."""
    if text is None:
        return None
    parts = text.split(",")
    if len(parts) != count:
        raise click.UsageError(
            f"{option}: {counted(len(parts), 'factor')} for {counted(count, one)}; give one each, by commas."
        )
    try:
        return tuple(parse_factor(part, f"{option}: the factor of {one} {i}") for i, part in enumerate(parts))
    except UnitError as error:
        raise click.UsageError(f"{error}.") from None


def _unreadable(problem: Problem, parts: tuple[Limit, ...]) -> str:
    """Which of the limits it is."""
    for rank, part in enumerate(parts):
        try:
            replace(problem, memory_limit=part)
        except UnitError:
            return f"cannot read {part!r}" + (f", the limit of rank {rank}" if len(parts) > 1 else "")
    raise AssertionError("all limits can be read")


def _placement(text: str, stages: int, ranks: int | None, chunks: int | None) -> Placement:
    from zbsolve.placement import Placement

    if _RANK_LIST.fullmatch(text):
        given = Placement.custom(int(rank) for rank in text.split(","))
        if ranks is not None and ranks != given.ranks:
            raise click.UsageError(
                f"--ranks {ranks} does not fit --placement, which names {counted(given.ranks, 'rank')}."
            )
        if chunks is not None and chunks * given.ranks != given.stages:
            raise click.UsageError(
                f"--chunks {chunks} does not fit --placement: {counted(given.stages, 'stage')}, "
                f"{counted(given.ranks, 'rank')}."
            )
        return given
    fixed = {"linear": 1, "v": 2, "bidirectional": 1}.get(text)
    if fixed is not None and chunks not in (None, fixed):
        other = ", v, wave" if text == "linear" else ", wave"
        raise click.UsageError(
            f"--placement {text} has {counted(fixed, 'chunk')} a rank, not {chunks}; try looped{other}."
        )
    chunks = fixed or chunks
    if chunks is None and ranks is None:
        raise click.UsageError(f"--placement {text} needs --ranks or --chunks.")
    if chunks is None:
        assert ranks is not None
        chunks = _divided(stages, ranks, "rank")
    if ranks is None:
        ranks = _divided(stages, chunks, "chunk")
    if text == "bidirectional" and ranks != stages:
        raise click.UsageError(
            f"--placement bidirectional has as many stages as ranks, each stage on two of them: the profile has "
            f"{counted(stages, 'stage')}, --ranks says {ranks}; leave --ranks out, or give a profile of {ranks} stages."
        )
    if ranks * chunks != stages:
        raise click.UsageError(
            f"the profile has {counted(stages, 'stage')}, but {counted(ranks, 'rank')} with "
            f"{counted(chunks, 'chunk')} each need {ranks * chunks}; check --ranks, --chunks and --placement."
        )
    match text:
        case "linear":
            return Placement.linear(ranks)
        case "looped":
            return Placement.looped(ranks, chunks)
        case "v":
            return Placement.v(ranks)
        case "wave":
            return Placement.wave(ranks, chunks)
        case _:
            return Placement.bidirectional(ranks)


def _divided(stages: int, by: int, what: str) -> int:
    if stages % by:
        raise click.UsageError(
            f"the profile has {counted(stages, 'stage')}, which cannot be dealt evenly to {counted(by, what)}."
        )
    return stages // by


def complete_placement(ctx: click.Context, option: click.Parameter, begun: str) -> list[str]:
    """The placements that a shell may complete to."""
    return [name for name in _NAMES if name.startswith(begun)]


def complete_schedule(ctx: click.Context, option: click.Parameter, begun: str) -> list[str]:
    """The published schedules that a shell may complete to."""
    from zbsolve.catalog import schedules

    return [schedule.name for schedule in schedules() if schedule.name.startswith(begun)]


def check_placement(text: str) -> None:
    """Refuse what is no placement: a name, or the rank of every stage."""
    if text not in _NAMES and not _RANK_LIST.fullmatch(text):
        raise click.BadParameter(
            f"{text!r} is none of {', '.join(_NAMES)} and no list of ranks such as 0,1,1,0.", param_hint="'--placement'"
        )


def _check_placement(ctx: click.Context, option: click.Parameter, text: str | None) -> str | None:
    if text is not None:
        check_placement(text)
    return text


def _seconds(ctx: click.Context, option: click.Parameter, value: float) -> float:
    if not math.isfinite(value) or value <= 0:
        raise click.BadParameter("must be a positive, finite number of seconds.")
    return value


def _ratio(ctx: click.Context, option: click.Parameter, value: float) -> float:
    if not math.isfinite(value) or value < 0:
        raise click.BadParameter("must be a finite number, 0 or more.")
    return value


def seconds_option(name: str, *, default: float, what: str) -> Callable[[Verb], Verb]:
    """Give a verb a time limit in seconds."""
    return click.option(
        name, type=float, default=default, show_default=True, callback=_seconds, metavar="SECONDS", help=what
    )


def memory_option(default: str) -> Callable[[Verb], Verb]:
    """Give a verb `--memory`; `default` says what holds without it."""
    return click.option("--memory", metavar="LIMIT", help=f"Limit per rank: {MEMORY_FORMS}. Default: {default}.")


def problem_options(*, required: bool = True, memory_default: str = UNLIMITED) -> Callable[[Verb], Verb]:
    """Give a verb the options of a problem; it receives them as `asked`, an `Asked`."""

    def decorate(verb: Verb) -> Verb:
        @click.option(
            "-m",
            "--microbatches",
            metavar="M",
            type=click.IntRange(min=1),
            required=required,
            help="Microbatches an iteration.",
        )
        @click.option(
            "--ranks", metavar="N", type=click.IntRange(min=1), help="Pipeline ranks; default stages / chunks."
        )
        @click.option(
            "--placement",
            metavar="NAME|LIST",
            callback=_check_placement,
            shell_complete=complete_placement,
            help=f"{', '.join(_NAMES)}, or the rank of every stage such as 0,1,1,0.",
        )
        @click.option(
            "--chunks", metavar="K", type=click.IntRange(min=1), help="Stages a rank; default stages / ranks."
        )
        @memory_option(memory_default)
        @click.option(
            "--objective",
            type=click.Choice(["period", "makespan"]),
            default="period",
            show_default=True,
            help="Time from iteration to iteration, or of one alone.",
        )
        @click.option(
            "--rank-factors",
            metavar="LIST",
            help="How many times as long as PROFILE says operations take on each rank, such as 1,1,1.25,1.",
        )
        @click.option(
            "--microbatch-factors",
            metavar="LIST",
            help="How many times as large as PROFILE says each microbatch is, in time and in bytes.",
        )
        @click.option("--forward-only", is_flag=True, help="Forwards alone, for evaluation and serving.")
        @click.option("--recompute", is_flag=True, help="Forwards may keep a checkpoint alone, and be computed again.")
        @click.option("--offload", is_flag=True, help="Activations may be moved to host memory, and back.")
        @click.option("--paired", is_flag=True, help="A forward and a backward may run together (overlaps).")
        @click.option(
            "--slices",
            metavar="K",
            type=click.IntRange(min=1),
            default=1,
            help="Every K microbatches are slices of one sequence; -m counts slices.",
        )
        @functools.wraps(verb)
        def wrapped(
            *args: Any,
            microbatches: int | None,
            ranks: int | None,
            placement: str | None,
            chunks: int | None,
            memory: str | None,
            objective: str,
            rank_factors: str | None,
            microbatch_factors: str | None,
            forward_only: bool,
            recompute: bool,
            offload: bool,
            paired: bool,
            slices: int,
            **kwargs: Any,
        ) -> Any:
            asked = Asked(
                microbatches=microbatches or 0,
                ranks=ranks,
                placement=placement,
                chunks=chunks,
                memory=memory,
                objective=cast("Objective", objective),
                rank_factors=rank_factors,
                microbatch_factors=microbatch_factors,
                forward_only=forward_only,
                recompute=recompute,
                offload=offload,
                paired=paired,
                slices=slices,
            )
            return verb(*args, asked=asked, **kwargs)

        return wrapped

    return decorate


def search_options(verb: Verb) -> Verb:
    """Give a verb the options of a search; it receives them as `search`, a `Search`."""

    @seconds_option("--time-limit", default=60.0, what="Stop then.")
    @click.option("--work-limit", type=click.IntRange(min=1), metavar="STEPS", help="Stop after so many search steps.")
    @click.option(
        "--gap",
        metavar="GAP",
        type=float,
        default=0.0,
        show_default=True,
        callback=_ratio,
        help="Stop at value / bound - 1 = GAP.",
    )
    @click.option("--require-optimal", is_flag=True, help="Exit with 5 unless the timetable is proven optimal.")
    @click.option("--start", metavar="T.json", type=click.Path(path_type=str), help="Start from this timetable.")
    @click.option(
        "--seed",
        metavar="N",
        type=click.IntRange(0, 2**31 - 1),
        default=0,
        show_default=True,
        help="Of random choices.",
    )
    @click.option(
        "--workers", metavar="N", type=click.IntRange(1, 1024), help="Parallel workers; default what there is."
    )
    @functools.wraps(verb)
    def wrapped(
        *args: Any,
        time_limit: float,
        work_limit: int | None,
        gap: float,
        require_optimal: bool,
        start: str | None,
        seed: int,
        workers: int | None,
        **kwargs: Any,
    ) -> Any:
        search = Search(
            time_limit_s=time_limit,
            work_limit=work_limit,
            gap=gap,
            seed=seed,
            workers=workers,
            start=start,
            require_optimal=require_optimal,
        )
        return verb(*args, search=search, **kwargs)

    return wrapped
