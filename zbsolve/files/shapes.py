"""The shapes of our files, field by field: what readers accept and what the JSON schemas are made from.

A shape holds what stands in the file. `profile.py` and `timetable.py` turn shapes into the
library's own types, which then check what the numbers mean.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from zbsolve.profile import MAX_STAGES
from zbsolve.units import MAX_AMOUNT

__all__ = [
    "PROFILE",
    "TIMETABLE",
    "HostLinkShape",
    "HostOverrideShape",
    "LinkShape",
    "OpShape",
    "OverlapShape",
    "OverrideShape",
    "PlacementShape",
    "ProblemShape",
    "ProfileFile",
    "ProfileShape",
    "SolverShape",
    "SourceShape",
    "SpreadShape",
    "StageShape",
    "TimetableFile",
]

PROFILE = "zbsolve.profile/1"
TIMETABLE = "zbsolve.timetable/1"

# lists end somewhere, so that a hostile file cannot keep a reader busy: here all pairs of 512 ranks
_MOST_OVERRIDES = 2**18

# limits given as extra schema are checked in zbsolve.units, whose messages say what to write instead
_WHOLE = {"minimum": 0, "maximum": MAX_AMOUNT}
_NS_TEXT = {"pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*(ns|us|µs|μs|ms|s)?\s*$", "examples": ["18.5ms"]}
_BYTES_TEXT = {"pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*(B|[kKMGTP]B|[KMGTP]iB)?\s*$", "examples": ["1240MiB"]}

Whole = Annotated[int, Meta(extra_json_schema=_WHOLE)]
Ns = Whole | Annotated[str, Meta(extra_json_schema=_NS_TEXT)]
Bytes = Whole | Annotated[str, Meta(extra_json_schema=_BYTES_TEXT)]
Limit = Whole | Annotated[str, Meta(extra_json_schema={"examples": ["72GiB", "1.5x"]})] | None
Factor = (
    int
    | float
    | Annotated[str, Meta(extra_json_schema={"pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*$", "examples": ["1.25"]})]
)
Name = Annotated[str, Meta(max_length=200)]
Count = Annotated[int, Meta(ge=0, le=MAX_AMOUNT)]


class _Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Unknown fields are refused everywhere."""


class StageShape(_Shape, frozen=True, kw_only=True):
    """What one microbatch costs on one stage."""

    forward_ns: Ns
    backward_input_ns: Ns
    backward_weight_ns: Ns
    backward_ns: Ns | None = None
    activation_bytes: Bytes = 0
    backward_weight_bytes: Bytes = 0
    workspace_bytes: Bytes = 0
    static_bytes: Bytes = 0
    output_bytes: Bytes = 0
    optimizer_ns: Ns = 0
    grad_reduce_ns: Ns = 0
    recompute_ns: Ns | None = None
    checkpoint_bytes: Bytes | None = None
    offload_bytes: Bytes | None = None
    name: Name = ""


class OverrideShape(_Shape, frozen=True, kw_only=True):
    """The link of one ordered pair of ranks."""

    sender: Whole
    receiver: Whole
    latency_ns: Ns = 0
    bytes_per_second: Bytes | None = None
    queueing: Literal["link", "sender"] | None = None


class LinkShape(_Shape, frozen=True, kw_only=True):
    """What a transfer between ranks costs; no bytes_per_second means unlimited, no queueing that none waits."""

    latency_ns: Ns = 0
    bytes_per_second: Bytes | None = None
    queueing: Literal["link", "sender"] | None = None
    overrides: Annotated[list[OverrideShape], Meta(max_length=_MOST_OVERRIDES)] = []


class OverlapShape(_Shape, frozen=True, kw_only=True):
    """What a forward and a backward of two microbatches take together on one rank."""

    forward_stage: Whole
    backward_stage: Whole
    forward_backward_overlap_ns: Ns
    forward_backward_input_overlap_ns: Ns | None = None


class HostOverrideShape(_Shape, frozen=True, kw_only=True):
    """The way to host memory of one rank."""

    rank: Whole
    latency_ns: Ns = 0
    to_host_bytes_per_second: Bytes | None = None
    from_host_bytes_per_second: Bytes | None = None


class HostLinkShape(_Shape, frozen=True, kw_only=True):
    """What a copy to host memory costs, and back; no bytes per second means unlimited."""

    latency_ns: Ns = 0
    to_host_bytes_per_second: Bytes | None = None
    from_host_bytes_per_second: Bytes | None = None
    overrides: Annotated[list[HostOverrideShape], Meta(max_length=MAX_STAGES)] = []


class SpreadShape(_Shape, frozen=True, kw_only=True):
    """Interquartile ranges of a stage's measured durations."""

    forward_ns: Ns = 0
    backward_input_ns: Ns = 0
    backward_weight_ns: Ns = 0
    backward_ns: Ns = 0


class SourceShape(_Shape, frozen=True, kw_only=True):
    """Where the numbers come from."""

    host: str = ""
    device: str = ""
    split: str = ""
    versions: dict[str, str] = {}
    samples: Whole = 0
    spread: Annotated[list[SpreadShape], Meta(max_length=MAX_STAGES)] = []
    note: str = ""


class ProfileShape(_Shape, frozen=True, kw_only=True):
    """Measured costs of a pipeline, as a timetable embeds them."""

    name: Name = ""
    stages: Annotated[list[StageShape], Meta(min_length=1, max_length=MAX_STAGES)]
    link: LinkShape = LinkShape()
    source: SourceShape = SourceShape()
    overlaps: Annotated[list[OverlapShape], Meta(max_length=_MOST_OVERRIDES)] = []
    host_link: HostLinkShape | None = None


class ProfileFile(ProfileShape, frozen=True, kw_only=True):
    """A profile file."""

    format: Literal["zbsolve.profile/1"]


class PlacementShape(_Shape, frozen=True, kw_only=True):
    """The rank of every stage, once for each route; the name is for people and must fit."""

    name: Literal["linear", "looped", "v", "wave", "bidirectional", "custom"] | None = None
    routes: Annotated[list[Annotated[list[Whole], Meta(max_length=MAX_STAGES)]], Meta(max_length=MAX_STAGES)]


class ProblemShape(_Shape, frozen=True, kw_only=True):
    """What was asked."""

    profile: ProfileShape
    placement: PlacementShape
    microbatches: Whole
    memory_limit: Limit | list[Limit] = None
    objective: Literal["period", "makespan"] = "period"
    allow: tuple[Literal["fused", "offload", "paired", "recompute", "split"], ...] = ("fused", "split")
    route_of: list[Whole] | None = None
    rank_factors: list[Factor] | None = None
    microbatch_factors: list[Factor] | None = None
    forward_only: bool = False
    slices: Whole = 1
    ends: bool | None = None


class SolverShape(_Shape, frozen=True, kw_only=True):
    """What the solver claims; the gap is null where the bound is 0. Wall time stands last.

    `lost` tells of pieces of the search whose worker ended or that raised, and is written where there are any.
    """

    status: Literal["optimal", "feasible"]
    objective: Literal["period", "makespan"]
    value_ns: Count
    period_ns: Count
    makespan_ns: Count
    lower_bound_ns: Count
    bound: Name
    gap: float | None
    bubble: float
    peak_bytes: list[Count]
    method: Name
    seed: int
    digest: Name
    lost: list[Name] | None = None
    seconds: float


KindName = Literal[
    "forward",
    "backward_input",
    "backward_weight",
    "backward",
    "recompute",
    "offload",
    "release",
    "reload",
    "reduce_gradient",
    "optimizer",
]


class OpShape(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A list: kind, stage, microbatch, start and end in ns, and, where two run together, what the second one is."""

    kind: KindName
    stage: Count
    microbatch: Count | None
    start_ns: Count
    end_ns: Count
    beside: tuple[Literal["backward", "backward_input"], Count, Count] | None = None


class TimetableFile(_Shape, frozen=True, kw_only=True):
    """A timetable file: ["forward", stage, microbatch, start_ns, end_ns] for each operation of each rank.

    The microbatch is null for what is done once an iteration. A forward with which a backward runs together has
    that as a sixth element, ["backward", stage, microbatch].
    """

    format: Literal["zbsolve.timetable/1"]
    problem: ProblemShape
    solver: SolverShape | None = None
    ranks: list[list[OpShape]]
