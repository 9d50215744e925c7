"""From durations that another tool has measured to a profile: medians, spread, and what has to be assumed."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction

from zbsolve.errors import FileFormatError, InvalidInput
from zbsolve.ops import Kind
from zbsolve.profile import MAX_STAGES, Link, Profile, ProfileSource, StageCost, StageSpread
from zbsolve.units import counted

__all__ = ["BYTE_FIELDS", "Given", "Samples", "merged_samples", "profile_of"]

BYTE_FIELDS = ("activation_bytes", "backward_weight_bytes", "workspace_bytes", "static_bytes", "output_bytes")
"""Fields of a stage that durations say nothing about."""

_FIELDS = {
    Kind.FORWARD: "forward_ns",
    Kind.BACKWARD_INPUT: "backward_input_ns",
    Kind.BACKWARD_WEIGHT: "backward_weight_ns",
    Kind.BACKWARD: "backward_ns",
}


@dataclass(frozen=True, kw_only=True)
class Samples:
    """What a file of measurements says.

    Parameters
    ----------
    durations
        For each stage and kind of operation all durations, in ns.
    known
        Other fields of `StageCost`, by stage.
    latency_ns
        Of a transfer, if it was measured.
    tool
        What has measured.
    notes
        What a reader should know.
    rank, ranks
        Which process of how many has measured, if that is told.
    microbatches
        How many were seen, if that is told.
    """

    durations: Mapping[tuple[int, Kind], Sequence[int]]
    known: Mapping[int, Mapping[str, int | str]] = field(default_factory=dict)
    latency_ns: int | None = None
    tool: str
    notes: tuple[str, ...] = ()
    rank: int | None = None
    ranks: int | None = None
    microbatches: int | None = None


@dataclass(frozen=True, kw_only=True)
class Given:
    """What was given beside the measurements.

    Parameters
    ----------
    bytes_of_stage
        Fields of `BYTE_FIELDS`, each one value for all stages or one a stage.
    like
        A profile whose bytes, links and times once an iteration hold where nothing else says.
    latency_ns, bytes_per_second
        Of a transfer.
    weight_share
        The part of a backward done in one piece that its weight gradients take, where no split was measured.
    name
        Of the profile.
    """

    bytes_of_stage: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    like: Profile | None = None
    latency_ns: int | None = None
    bytes_per_second: int | None = None
    weight_share: Fraction = Fraction(1, 2)
    name: str = ""


def merged_samples(parts: Sequence[Samples]) -> Samples:
    """Measurements of several files, such as one a rank, as one."""
    durations: dict[tuple[int, Kind], list[int]] = defaultdict(list)
    known: dict[int, dict[str, int | str]] = {}
    for part in parts:
        for key, values in part.durations.items():
            durations[key] += values
        for stage, more in part.known.items():
            known.setdefault(stage, {}).update(more)
    latencies = [part.latency_ns for part in parts if part.latency_ns is not None]
    return Samples(
        durations=durations,
        known=known,
        latency_ns=round(statistics.median(latencies)) if latencies else None,
        tool=parts[0].tool,
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def profile_of(samples: Samples, given: Given, name: object) -> tuple[Profile, tuple[str, ...]]:
    """The profile, and what had to be assumed or should be known.

    Parameters
    ----------
    samples
        What was measured.
    given
        What was given beside it.
    name
        What messages call the files.

    Raises
    ------
    FileFormatError
        If a stage has no forward or no backward.
    InvalidInput
        If what was given is for another number of stages.
    """
    stages = 1 + max((stage for stage, _ in samples.durations), default=-1)
    if not stages:
        raise FileFormatError(name, f"has no operation of a stage that {samples.tool} measured")
    if stages > MAX_STAGES:
        raise FileFormatError(name, f"names stage {stages - 1}; a profile holds at most {MAX_STAGES} stages")
    _refuse_other_sizes(given, stages)
    notes = list(samples.notes)
    assumed: dict[str, list[int]] = defaultdict(list)
    costs, spread = [], []
    for stage in range(stages):
        laps = {kind: samples.durations.get((stage, kind), ()) for kind in _FIELDS}
        costs.append(_cost(stage, laps, samples, given, assumed, name))
        spread.append(StageSpread.of({_FIELDS[kind]: values for kind, values in laps.items()}))
    notes += [f"{_listed(where)}: {what}" for what, where in assumed.items()]
    like = given.like
    notes += _silent(costs, like)
    link = like.link if like is not None else Link(latency_ns=samples.latency_ns or 0)
    if like is None and samples.latency_ns is None and given.latency_ns is None and given.bytes_per_second is None:
        notes.append("transfers take no time: give --latency and --bandwidth, or --like PROFILE")
    if given.latency_ns is not None:
        link = replace(link, latency_ns=given.latency_ns)
    if given.bytes_per_second is not None:
        link = replace(link, bytes_per_second=given.bytes_per_second)
    fewest = min((len(values) for values in samples.durations.values() if values), default=0)
    source = ProfileSource(
        device="" if like is None else like.source.device,
        split=samples.tool if any(k is Kind.BACKWARD_INPUT for _, k in samples.durations) else "",
        samples=fewest,
        spread=tuple(spread),
        note="; ".join([f"imported from {samples.tool}", *notes])[:2000],
    )
    title = given.name or ("" if like is None else like.name)
    return Profile(stages=tuple(costs), link=link, name=title, source=source), tuple(notes)


def _cost(
    stage: int,
    laps: Mapping[Kind, Sequence[int]],
    samples: Samples,
    given: Given,
    assumed: dict[str, list[int]],
    name: object,
) -> StageCost:
    median = {kind: round(statistics.median(values)) for kind, values in laps.items() if values}
    if Kind.FORWARD not in median:
        raise FileFormatError(name, f"has no forward of stage {stage}; give the files of all ranks")
    into, weight, both = (median.get(k) for k in (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT, Kind.BACKWARD))
    if both is None and (into is None or weight is None):
        raise FileFormatError(name, f"has no whole backward of stage {stage}; give the files of all ranks")
    if into is None or weight is None:
        assert both is not None
        weight = int(both * given.weight_share)
        into = both - weight
        assumed[f"backward in one piece only; {float(given.weight_share):g} of it is taken to be W"].append(stage)
    if both is None:
        both = into + weight
        assumed["backward in two pieces only; in one it is taken to be their sum"].append(stage)
    values: dict[str, int | str] = {} if given.like is None else _others(given.like.stages[stage])
    values |= samples.known.get(stage, {})
    for column, sizes in given.bytes_of_stage.items():
        values[column] = sizes[0] if len(sizes) == 1 else sizes[stage]
    return StageCost(
        forward_ns=median[Kind.FORWARD],
        backward_input_ns=into,
        backward_weight_ns=weight,
        backward_ns=both,
        **values,  # type: ignore[arg-type]
    )


def _others(cost: StageCost) -> dict[str, int | str]:
    """All fields but the durations of the operations."""
    return {f.name: getattr(cost, f.name) for f in fields(cost) if f.name not in _FIELDS.values()}


def _refuse_other_sizes(given: Given, stages: int) -> None:
    if given.like is not None and len(given.like.stages) != stages:
        raise InvalidInput(
            f"{counted(stages, 'stage')} were measured, but the profile given by --like has {len(given.like.stages)}"
        )
    for column, sizes in given.bytes_of_stage.items():
        if len(sizes) not in (1, stages):
            option = "--" + column.replace("_", "-")
            raise InvalidInput(
                f"{option} gives {len(sizes)} values for {counted(stages, 'stage')}; give one, or one each"
            )


def _silent(costs: Iterable[StageCost], like: Profile | None) -> list[str]:
    """Which bytes are nowhere said."""
    if like is not None:
        return []
    kept = list(costs)
    missing = [column for column in BYTE_FIELDS if not any(getattr(cost, column) for cost in kept)]
    needed = [column for column in missing if column in ("activation_bytes", "backward_weight_bytes", "static_bytes")]
    if not needed:
        return []
    options = ", ".join("--" + column.replace("_", "-") for column in needed)
    return [
        f"these durations say nothing about memory, which is 0 where nothing is given: {options}, or --like PROFILE"
    ]


def _listed(stages: Sequence[int]) -> str:
    """Stages in words, runs of neighbours as one."""
    runs: list[list[int]] = []
    for stage in stages:
        if runs and stage == runs[-1][1] + 1:
            runs[-1][1] = stage
        else:
            runs.append([stage, stage])
    told = ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in runs)
    return f"stage{'s' * (len(stages) > 1)} {told}"
