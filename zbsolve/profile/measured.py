"""The profile itself: stages, links, and where they were measured."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from zbsolve.errors import ProfileError
from zbsolve.profile.amounts import check_name
from zbsolve.profile.host import HostLink
from zbsolve.profile.link import Link
from zbsolve.profile.overlap import Overlap
from zbsolve.profile.source import ProfileSource
from zbsolve.profile.stage import StageCost
from zbsolve.units import whole_amount

MAX_STAGES = 4096

_NO_LATENCY = Link()
_UNKNOWN = ProfileSource()


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
    link: Link = _NO_LATENCY
    name: str = ""
    source: ProfileSource = _UNKNOWN
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
        check_name(self.name, "the name of a profile")
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
