"""What is asked: a profile on a placement, with microbatches, limits and an objective."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Literal

from zbsolve.errors import ProblemError
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.profile import Profile, StageCost
from zbsolve.units import MAX_AMOUNT, counted, parse_bytes, whole_amount

__all__ = ["Limit", "Objective", "Problem"]

Objective = Literal["period", "makespan"]
Limit = int | str | None
"""A memory limit: bytes, text such as ``"72GiB"`` or ``"1.5x"``, None for unlimited."""

MAX_OPERATIONS = 4_000_000

_TIMES = re.compile(r"\s*(\d{1,12}(?:\.\d{1,12})?)\s*x\s*", re.ASCII)
_CHOICES = frozenset({"split", "fused"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A question to the solver.

    Parameters
    ----------
    profile
        What was measured.
    placement
        Where the stages lie.
    microbatches
        How many of them an iteration has.
    memory_limit
        None for unlimited, bytes, ``"72GiB"``, ``"1.5x"``, or a tuple with one of these a rank.
        ``Kx`` is, on each rank, static bytes + K x ranks x (the activation bytes that one
        microbatch holds there once all its forwards have run, averaged over microbatches).
    objective
        ``"period"`` (iterations repeat with no barrier) or ``"makespan"``.
    allow
        What an order may choose: ``"split"`` (B and W apart), ``"fused"`` (B and W as one).
    route_of
        The route of each microbatch; default in turn.

    Attributes
    ----------
    limit_bytes
        The limit of each rank in bytes, None where there is none.

    Raises
    ------
    ProblemError
        If the parts do not fit together.
    """

    profile: Profile
    placement: Placement
    microbatches: int
    memory_limit: Limit | tuple[Limit, ...] = None
    objective: Objective = "period"
    allow: frozenset[str] = _CHOICES
    route_of: tuple[int, ...] | None = None
    limit_bytes: tuple[int | None, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        stages, ranks, routes = len(self.profile.stages), self.placement.ranks, len(self.placement.routes)
        if self.placement.stages != stages:
            raise ProblemError(
                f"the placement is for {counted(self.placement.stages, 'stage')}, the profile has {stages}; "
                "check ranks, chunks and placement"
            )
        if whole_amount(self.microbatches, "the number of microbatches", error=ProblemError) < 1:
            raise ProblemError("an iteration needs at least one microbatch")
        if 3 * stages * self.microbatches > MAX_OPERATIONS:
            raise ProblemError(
                f"{stages} stages x {self.microbatches} microbatches is too large: over {MAX_OPERATIONS} operations"
            )
        if self.objective not in ("period", "makespan"):
            raise ProblemError(f"the objective is 'period' or 'makespan', got {self.objective!r}")
        object.__setattr__(self, "allow", frozenset(self.allow))
        if not self.allow or not self.allow <= _CHOICES:
            raise ProblemError(
                f"allow is a set of {', '.join(sorted(_CHOICES))} with at least one, got {sorted(self.allow)}"
            )
        route_of = self.route_of
        if route_of is None:
            route_of = tuple(j % routes for j in range(self.microbatches))
        object.__setattr__(self, "route_of", tuple(route_of))
        if len(route_of) != self.microbatches or any(not 0 <= r < routes for r in route_of):
            raise ProblemError(
                f"route_of needs one route below {routes} for each of the {self.microbatches} microbatches"
            )
        for override in self.profile.link.overrides:
            if max(override.sender, override.receiver) >= ranks:
                raise ProblemError(
                    f"the profile has a link from rank {override.sender} to rank {override.receiver}, "
                    f"but the placement has only {counted(ranks, 'rank')}"
                )
        limit = self.memory_limit
        if isinstance(limit, Sequence) and not isinstance(limit, str):
            object.__setattr__(self, "memory_limit", limit := tuple(limit))
        if isinstance(limit, tuple) and len(limit) != ranks:
            raise ProblemError(f"give one memory limit, or one a rank, {ranks} in all; got {len(limit)}")
        given = limit if isinstance(limit, tuple) else (limit,) * ranks
        object.__setattr__(self, "limit_bytes", self._resolve_limits(given))

    def _resolve_limits(self, given: tuple[Limit, ...]) -> tuple[int | None, ...]:
        ranks = self.placement.ranks
        held, static = self._activation_bytes_by_rank(), [0] * ranks
        for stage, cost in enumerate(self.profile.stages):
            for rank in self.placement.holders(stage):
                static[rank] += cost.static_bytes
        resolved: list[int | None] = []
        for rank, limit in enumerate(given):
            times = _TIMES.fullmatch(limit) if isinstance(limit, str) else None
            if limit is None:
                resolved.append(None)
            elif times is None:
                resolved.append(parse_bytes(limit, f"the memory limit of rank {rank}"))
            else:
                dynamic = Fraction(times.group(1)) * ranks * held[rank] / self.microbatches
                resolved.append(min(static[rank] + int(dynamic), MAX_AMOUNT))
        return tuple(resolved)

    def _activation_bytes_by_rank(self) -> list[int]:
        """Bytes that the forwards of all microbatches hold on each rank, summed."""
        assert self.route_of is not None
        held = [0] * self.placement.ranks
        for microbatch, route in enumerate(self.route_of):
            for stage, rank in enumerate(self.placement.routes[route]):
                held[rank] += self.cost(stage, microbatch).activation_bytes
        return held

    def static_bytes(self, rank: int) -> int:
        """What a rank holds all the time: the static bytes of every stage on it."""
        return sum(self.profile.stages[stage].static_bytes for stage in self.placement.stages_of(rank))

    def cost(self, stage: int, microbatch: int) -> StageCost:
        """What a microbatch costs on a stage; the only way to a cost."""
        return self.profile.stages[stage]

    def rank_of(self, op: Op) -> int:
        """The rank that runs an operation."""
        assert self.route_of is not None
        assert op.microbatch is not None
        return self.placement.routes[self.route_of[op.microbatch]][op.stage]

    def operations(self) -> tuple[tuple[Op, ...], ...]:
        """The default set: for each rank its operations, split where that is allowed."""
        backward = (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT) if "split" in self.allow else (Kind.BACKWARD,)
        rows: list[list[Op]] = [[] for _ in range(self.placement.ranks)]
        for kind in (Kind.FORWARD, *backward):
            for stage in range(self.placement.stages):
                for microbatch in range(self.microbatches):
                    op = Op(kind, stage, microbatch)
                    rows[self.rank_of(op)].append(op)
        return tuple(tuple(row) for row in rows)

    @property
    def digest(self) -> str:
        """A short fingerprint of all that decides the answer (names and sources do not)."""
        stages = [{k: v for k, v in asdict(stage).items() if k != "name"} for stage in self.profile.stages]
        content = [
            stages,
            asdict(self.profile.link),
            self.placement.routes,
            self.microbatches,
            self.limit_bytes,
            self.objective,
            sorted(self.allow),
            self.route_of,
        ]
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]
