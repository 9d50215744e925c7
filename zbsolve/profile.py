"""What was measured: the cost of every stage and the links between ranks."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

from zbsolve.errors import ProfileError
from zbsolve.units import whole_amount

__all__ = [
    "HostLink",
    "HostLinkOverride",
    "Link",
    "LinkOverride",
    "Overlap",
    "Profile",
    "ProfileSource",
    "StageCost",
    "StageSpread",
]

MAX_STAGES = 4096

_OPTIONAL = ("recompute_ns", "checkpoint_bytes", "offload_bytes")
_COPY_RATES = ("to_host_bytes_per_second", "from_host_bytes_per_second")


def _check_name(name: object, what: str) -> None:
    if not isinstance(name, str) or len(name) > 200:
        raise ProfileError(f"{what} must be text of at most 200 characters")


def _check_bandwidth(value: object, what: str) -> None:
    if value is not None and whole_amount(value, what, error=ProfileError) == 0:
        raise ProfileError(f"{what} must be positive; leave it out for an unlimited link")


Queueing = Literal["link", "sender"]
"""What transfers queue for: their ordered pair of ranks, or whatever leaves their sender."""


def _check_queueing(value: object, bytes_per_second: int | None, what: str) -> None:
    if value is None:
        return
    if value not in ("link", "sender"):
        raise ProfileError(f"{what}: queueing is 'link' or 'sender', or left out where nothing queues; got {value!r}")
    if bytes_per_second is None:
        raise ProfileError(
            f"{what}: transfers can queue only for a bandwidth; give bytes_per_second, or leave queueing out"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """What one microbatch costs on one stage; times in ns, memory in bytes.

    Parameters
    ----------
    forward_ns, backward_input_ns, backward_weight_ns
        Durations of F, B (input gradient) and W (weight gradient).
    backward_ns
        Duration of B and W done as one operation; default their sum.
    activation_bytes
        Held from the start of the forward.
    recompute_ns
        Duration of computing the forward again, ahead of a backward whose forward has kept a checkpoint
        alone; None is what the forward takes.
    checkpoint_bytes
        Held from the start of such a forward in place of `activation_bytes`, which are there once it is
        computed again; None is all of them, so that nothing is saved.
    offload_bytes
        What of `activation_bytes` can be away in host memory between the forward and its backward; None is all.
    backward_weight_bytes
        What the end of B leaves until the end of W; may exceed `activation_bytes`.
    workspace_bytes
        Extra while any operation of the stage runs.
    static_bytes
        Parameters, gradients and optimizer state, always there.
    output_bytes
        Sent to the next stage, and as a gradient back.
    optimizer_ns, grad_reduce_ns
        Optimizer step and gradient reduction of the stage, once an iteration.
    name
        For people.

    Raises
    ------
    ProfileError
        If a number is not a whole one in ``0..2**62``, or a checkpoint, or what can be moved away, is larger than the
        activations.
    """

    forward_ns: int
    backward_input_ns: int
    backward_weight_ns: int
    backward_ns: int = -1
    activation_bytes: int = 0
    backward_weight_bytes: int = 0
    workspace_bytes: int = 0
    static_bytes: int = 0
    output_bytes: int = 0
    optimizer_ns: int = 0
    grad_reduce_ns: int = 0
    name: str = ""
    recompute_ns: int | None = None
    checkpoint_bytes: int | None = None
    offload_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.backward_ns == -1 and not isinstance(self.backward_ns, bool):
            for field in ("backward_input_ns", "backward_weight_ns"):
                whole_amount(getattr(self, field), field, error=ProfileError)
            object.__setattr__(self, "backward_ns", self.backward_input_ns + self.backward_weight_ns)
        for column in fields(self):
            optional = column.name in _OPTIONAL and getattr(self, column.name) is None
            if column.name != "name" and not optional:
                whole_amount(getattr(self, column.name), column.name, error=ProfileError)
        if self.checkpoint > self.activation_bytes:
            raise ProfileError(
                f"checkpoint_bytes are {self.checkpoint}, more than the {self.activation_bytes} activation_bytes "
                "of which they are a part"
            )
        if self.offloadable > self.activation_bytes:
            raise ProfileError(
                f"offload_bytes are {self.offloadable}, more than the {self.activation_bytes} activation_bytes "
                "of which they are a part"
            )
        _check_name(self.name, "the name of a stage")

    @property
    def recomputing_ns(self) -> int:
        """What computing the forward again takes."""
        return self.forward_ns if self.recompute_ns is None else self.recompute_ns

    @property
    def checkpoint(self) -> int:
        """Bytes held until the forward is computed again."""
        return self.activation_bytes if self.checkpoint_bytes is None else self.checkpoint_bytes

    @property
    def offloadable(self) -> int:
        """Bytes that can be away in host memory between the forward and its backward."""
        return self.activation_bytes if self.offload_bytes is None else self.offload_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOverride:
    """The link of one ordered pair of ranks, in the place of the default: nothing of that is left for it."""

    sender: int
    receiver: int
    latency_ns: int = 0
    bytes_per_second: int | None = None
    queueing: Queueing | None = None

    def __post_init__(self) -> None:
        for field in ("sender", "receiver", "latency_ns"):
            whole_amount(getattr(self, field), f"link override: {field}", error=ProfileError)
        if self.sender == self.receiver:
            raise ProfileError(f"a link joins two ranks, but an override has rank {self.sender} at both ends")
        _check_bandwidth(self.bytes_per_second, "link override: bytes_per_second")
        _check_queueing(self.queueing, self.bytes_per_second, "link override")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What a transfer between ranks costs: latency_ns + bytes / bytes_per_second, rounded up.

    Transfers occupy neither rank's compute; on one rank they cost nothing.

    Parameters
    ----------
    latency_ns
        Per transfer.
    bytes_per_second
        None for unlimited.
    overrides
        Ordered rank pairs that differ.
    queueing
        None: transfers do not disturb each other. ``"link"``: a transfer occupies its ordered pair of ranks for
        bytes / bytes_per_second, rounded up, one after the other in the order of the sender's row; it arrives
        latency_ns after that. ``"sender"``: the same, but all that leaves a rank over such links shares one way out.

    Raises
    ------
    ProfileError
        If a number makes no sense, a pair is given twice, or transfers are to queue where bandwidth is unlimited.
    """

    latency_ns: int = 0
    bytes_per_second: int | None = None
    overrides: tuple[LinkOverride, ...] = ()
    queueing: Queueing | None = None

    def __post_init__(self) -> None:
        whole_amount(self.latency_ns, "link: latency_ns", error=ProfileError)
        _check_bandwidth(self.bytes_per_second, "link: bytes_per_second")
        _check_queueing(self.queueing, self.bytes_per_second, "link")
        object.__setattr__(self, "overrides", tuple(self.overrides))
        seen: set[tuple[int, int]] = set()
        for override in self.overrides:
            pair = (override.sender, override.receiver)
            if pair in seen:
                raise ProfileError(f"the link from rank {pair[0]} to rank {pair[1]} is given twice")
            seen.add(pair)

    def between(self, sender: int, receiver: int) -> tuple[int, int | None]:
        """Latency in ns and bytes per second (None: unlimited) of an ordered pair of ranks."""
        for override in self.overrides:
            if override.sender == sender and override.receiver == receiver:
                return override.latency_ns, override.bytes_per_second
        return self.latency_ns, self.bytes_per_second

    def queueing_between(self, sender: int, receiver: int) -> Queueing | None:
        """What transfers of an ordered pair of ranks queue for."""
        for override in self.overrides:
            if override.sender == sender and override.receiver == receiver:
                return override.queueing
        return self.queueing

    @property
    def queues(self) -> bool:
        """Whether transfers queue anywhere."""
        return self.queueing is not None or any(override.queueing is not None for override in self.overrides)

    def without_queueing(self) -> Link:
        """The link whose transfers take as long as they must, and never wait for each other."""
        overrides = tuple(replace(override, queueing=None) for override in self.overrides)
        return replace(self, overrides=overrides, queueing=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """What a forward of one stage and a backward of another microbatch take, run together on one rank; in ns.

    Parameters
    ----------
    forward_stage, backward_stage
        Their stages, which may be the same.
    forward_backward_overlap_ns
        With a whole backward. Less than the longer of the two, or more than both one after the other, is for the
        measurement to say.
    forward_backward_input_overlap_ns
        With the input gradient alone; None where that was not measured: then they take what one after the other
        takes.

    Raises
    ------
    ProfileError
        If a number is not a whole one in ``0..2**62``, or a duration is 0.
    """

    forward_stage: int
    backward_stage: int
    forward_backward_overlap_ns: int
    forward_backward_input_overlap_ns: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.name == "forward_backward_input_overlap_ns":
                continue
            if whole_amount(value, f"overlap: {field.name}", error=ProfileError) == 0 and field.name.endswith("_ns"):
                raise ProfileError(
                    f"overlap: {field.name} must be positive; two operations that take no time need none"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLinkOverride:
    """The way to host memory of one rank, where it differs from the default."""

    rank: int
    latency_ns: int = 0
    to_host_bytes_per_second: int | None = None
    from_host_bytes_per_second: int | None = None

    def __post_init__(self) -> None:
        for field in ("rank", "latency_ns"):
            whole_amount(getattr(self, field), f"host link override: {field}", error=ProfileError)
        for field in _COPY_RATES:
            _check_bandwidth(getattr(self, field), f"host link override: {field}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLink:
    """What a copy between a rank and its host memory costs: latency_ns + bytes / bytes per second, rounded up.

    Each rank has an engine for either way; a copy occupies one of them, and no compute. Host memory is as
    large as need be.

    Parameters
    ----------
    latency_ns
        Per copy.
    to_host_bytes_per_second, from_host_bytes_per_second
        Of the two ways; None for unlimited.
    overrides
        Ranks that differ.
    """

    latency_ns: int = 0
    to_host_bytes_per_second: int | None = None
    from_host_bytes_per_second: int | None = None
    overrides: tuple[HostLinkOverride, ...] = ()

    def __post_init__(self) -> None:
        whole_amount(self.latency_ns, "host link: latency_ns", error=ProfileError)
        for field in _COPY_RATES:
            _check_bandwidth(getattr(self, field), f"host link: {field}")
        object.__setattr__(self, "overrides", tuple(self.overrides))
        ranks = [override.rank for override in self.overrides]
        for rank in ranks:
            if ranks.count(rank) > 1:
                raise ProfileError(f"the host link of rank {rank} is given twice")

    def of(self, rank: int) -> tuple[int, int | None, int | None]:
        """Latency in ns, and bytes per second to host and from it (None: unlimited), of a rank."""
        for one in self.overrides:
            if one.rank == rank:
                return one.latency_ns, one.to_host_bytes_per_second, one.from_host_bytes_per_second
        return self.latency_ns, self.to_host_bytes_per_second, self.from_host_bytes_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpread:
    """Interquartile ranges of a stage's measured durations, in ns."""

    forward_ns: int = 0
    backward_input_ns: int = 0
    backward_weight_ns: int = 0
    backward_ns: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            whole_amount(getattr(self, field.name), f"spread: {field.name}", error=ProfileError)

    @classmethod
    def of(cls, laps: Mapping[str, Sequence[int]]) -> StageSpread:
        """The spread of measured durations, by the names of the fields above; 0 where fewer than two were measured."""
        return cls(**{field: _interquartile(values) for field, values in laps.items()})


def _interquartile(values: Sequence[int]) -> int:
    if len(values) < 2:
        return 0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return round(high - low)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSource:
    """Where a profile comes from.

    Parameters
    ----------
    host, device
        Names of the machine and of the device measured on.
    split
        Whose split backward was measured, such as ``"torch"``.
    versions
        Pairs of a library and its version.
    samples
        Measured repetitions behind each median; 0 if unknown.
    spread
        One entry a stage, or none.
    note
        Anything a reader should know.
    """

    host: str = ""
    device: str = ""
    split: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    samples: int = 0
    spread: tuple[StageSpread, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        whole_amount(self.samples, "source: samples", error=ProfileError)
        object.__setattr__(self, "versions", tuple((str(k), str(v)) for k, v in self.versions))
        object.__setattr__(self, "spread", tuple(self.spread))


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Measured costs of a pipeline.

    Parameters
    ----------
    stages
        One cost per stage, from input to loss.
    link
        Between ranks.
    name
        For people.
    source
        Where the numbers come from.
    overlaps
        What forwards and backwards take that run together, each pair of stages once; any other pair takes what one
        after the other takes.
    host_link
        Between each rank and its host memory; None if it is not known, so that nothing can be moved there.

    Raises
    ------
    ProfileError
        If there is no stage, more than 4096, or none that takes any time; or if an overlap is of a stage that
        there is not, or given twice.
    """

    stages: tuple[StageCost, ...]
    link: Link = Link()
    name: str = ""
    source: ProfileSource = ProfileSource()
    overlaps: tuple[Overlap, ...] = ()
    host_link: HostLink | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))
        object.__setattr__(self, "overlaps", tuple(self.overlaps))
        if not self.stages:
            raise ProfileError("a profile needs at least one stage")
        if len(self.stages) > MAX_STAGES:
            raise ProfileError(f"a profile holds at most {MAX_STAGES} stages, got {len(self.stages)}")
        for stage in self.stages:
            if not isinstance(stage, StageCost):
                raise ProfileError(f"stages must be StageCost, got {type(stage).__name__}")
        if not any(s.forward_ns + s.backward_input_ns + s.backward_weight_ns for s in self.stages):
            raise ProfileError("the stages take no time at all: every forward and backward is 0 ns")
        _check_name(self.name, "the name of a profile")
        self._check_overlaps()
        if self.source.spread and len(self.source.spread) != len(self.stages):
            raise ProfileError(
                f"the source gives the spread of {len(self.source.spread)} stages, the profile has {len(self.stages)}"
            )

    def _check_overlaps(self) -> None:
        seen: set[tuple[int, int]] = set()
        for overlap in self.overlaps:
            if not isinstance(overlap, Overlap):
                raise ProfileError(f"overlaps must be Overlap, got {type(overlap).__name__}")
            pair = overlap.forward_stage, overlap.backward_stage
            if max(pair) >= len(self.stages):
                raise ProfileError(
                    f"an overlap is of stage {max(pair)}, but the profile has {len(self.stages)}, numbered from 0"
                )
            if pair in seen:
                raise ProfileError(
                    f"the overlap of a forward of stage {pair[0]} and a backward of stage {pair[1]} "
                    "is given twice; keep one"
                )
            seen.add(pair)

    @classmethod
    def uniform(
        cls,
        stages: int,
        *,
        forward_ns: int,
        backward_input_ns: int,
        backward_weight_ns: int,
        backward_ns: int = -1,
        activation_bytes: int = 0,
        backward_weight_bytes: int = 0,
        workspace_bytes: int = 0,
        static_bytes: int = 0,
        output_bytes: int = 0,
        recompute_ns: int | None = None,
        checkpoint_bytes: int | None = None,
        offload_bytes: int | None = None,
        host_link: HostLink | None = None,
        latency_ns: int = 0,
        bytes_per_second: int | None = None,
        overlap_ns: int | None = None,
        name: str = "",
    ) -> Profile:
        """A profile of `stages` equal stages; the arguments are those of `StageCost` and `Link`.

        `overlap_ns` is what a forward and a whole backward of any two stages take together; None: not measured.
        """
        if whole_amount(stages, "the number of stages", error=ProfileError) > MAX_STAGES:
            raise ProfileError(f"a profile holds at most {MAX_STAGES} stages, got {stages}")
        cost = StageCost(
            forward_ns=forward_ns,
            backward_input_ns=backward_input_ns,
            backward_weight_ns=backward_weight_ns,
            backward_ns=backward_ns,
            activation_bytes=activation_bytes,
            backward_weight_bytes=backward_weight_bytes,
            workspace_bytes=workspace_bytes,
            static_bytes=static_bytes,
            output_bytes=output_bytes,
            recompute_ns=recompute_ns,
            checkpoint_bytes=checkpoint_bytes,
            offload_bytes=offload_bytes,
        )
        link = Link(latency_ns=latency_ns, bytes_per_second=bytes_per_second)
        pairs = () if overlap_ns is None else itertools.product(range(stages), repeat=2)
        overlaps = tuple(
            Overlap(forward_stage=f, backward_stage=b, forward_backward_overlap_ns=overlap_ns)  # type: ignore[arg-type]
            for f, b in pairs
        )
        return cls(stages=(cost,) * stages, link=link, name=name, overlaps=overlaps, host_link=host_link)
