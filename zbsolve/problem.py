"""What is asked: a profile on a placement, with microbatches, limits and an objective."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

from zbsolve.errors import ProblemError, ProfileError
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.profile import Link, Overlap, Profile, StageCost
from zbsolve.units import MAX_AMOUNT, counted, parse_bytes, parse_factor, scaled, whole_amount

__all__ = ["Factor", "Limit", "Objective", "Problem"]

Objective = Literal["period", "makespan"]
Limit = int | str | None
"""A memory limit: bytes, text such as ``"72GiB"`` or ``"1.5x"``, None for unlimited."""

Factor = int | str | float | Decimal
"""A factor: a number, or text such as ``"1.25"``; kept as an exact decimal."""

MAX_OPERATIONS = 4_000_000

_TIMES = re.compile(r"\s*(\d{1,12}(?:\.\d{1,12})?)\s*x\s*", re.ASCII)
_BACKWARDS = frozenset({"split", "fused"})
_CHOICES = _BACKWARDS | {"recompute", "offload", "paired"}

_TIMES_OF_COMPUTE = ("forward_ns", "backward_input_ns", "backward_weight_ns", "backward_ns", "recompute_ns")
_BYTES_OF_A_MICROBATCH = (
    "activation_bytes",
    "backward_weight_bytes",
    "workspace_bytes",
    "output_bytes",
    "checkpoint_bytes",
)


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
        What an order may choose: ``"split"`` (B and W apart), ``"fused"`` (B and W as one), and, besides at least one
        of these, ``"recompute"`` (a forward keeps a checkpoint alone and is computed again before its backward) and
        ``"offload"`` (what a forward made is moved to host memory, and back before its backward) and
        ``"paired"`` (a forward and a backward of another microbatch run together, see `Op.beside`).
    route_of
        The route of each microbatch; default in turn.
    rank_factors
        One a rank: how many times as long as the profile says every operation takes there. The
        default is 1 for all, and so is anything that is 1 for all.
    microbatch_factors
        One a microbatch: how many times as large as the profile says it is, as with sequences of
        different lengths. Its operations take, hold, need and hand over so many times as much.
    forward_only
        Run the forwards alone, for evaluation and serving: what a forward holds is freed at its end.
        `allow` then says nothing.
    slices
        Runs of so many microbatches are slices of one sequence each: on every stage the forward of a slice
        follows that of the slice before it, and its backward that of the slice behind it. 1: whole sequences.
    ends
        Whether an iteration ends with the reductions of gradients and the optimizers for which the
        profile has times, each once on every rank that holds the stage. Where it has none, True.

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
    allow: frozenset[str] = _BACKWARDS
    route_of: tuple[int, ...] | None = None
    rank_factors: tuple[Factor, ...] | None = None
    microbatch_factors: tuple[Factor, ...] | None = None
    forward_only: bool = False
    slices: int = 1
    ends: bool = True
    limit_bytes: tuple[int | None, ...] = field(init=False, repr=False, compare=False)
    _costs: dict[tuple[int, int, Factor], StageCost] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    _overlaps: dict[tuple[int, int], Overlap] = field(init=False, repr=False, compare=False, default_factory=dict)

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
        if not self.allow & _BACKWARDS or not self.allow <= _CHOICES:
            raise ProblemError(
                f"allow is a set of {', '.join(sorted(_CHOICES))} with at least one of fused and split, "
                f"got {sorted(self.allow)}"
            )
        if "offload" in self.allow and self.profile.host_link is None and not self.forward_only:
            raise ProblemError(
                "allow has offload, but the profile does not say what a copy to host memory takes; give it a host_link"
            )
        if whole_amount(self.slices, "the number of slices", error=ProblemError) < 1 or self.microbatches % self.slices:
            raise ProblemError(
                f"a sequence has at least one slice, and {counted(self.microbatches, 'microbatch')} "
                f"cannot be sequences of {self.slices} slices each; the number of microbatches is sequences x slices"
            )
        route_of = self.route_of
        if route_of is None:
            route_of = tuple(j // self.slices % routes for j in range(self.microbatches))
        object.__setattr__(self, "route_of", tuple(route_of))
        if len(route_of) != self.microbatches or any(not 0 <= r < routes for r in route_of):
            raise ProblemError(
                f"route_of needs one route below {routes} for each of the {self.microbatches} microbatches"
            )
        for j, route in enumerate(route_of):
            if route != route_of[j - self.position(j)]:
                raise ProblemError(
                    f"microbatch {j} takes route {route}, but the sequence that it is a slice of began on route "
                    f"{route_of[j - self.position(j)]}; give the slices of a sequence one route: they share its state"
                )
        for name in ("forward_only", "ends"):
            if not isinstance(getattr(self, name), bool):
                raise ProblemError(f"{name} is True or False, got {getattr(self, name)!r}")
        timed = any(cost.optimizer_ns or cost.grad_reduce_ns for cost in self.profile.stages)
        object.__setattr__(self, "ends", self.ends or not timed or self.forward_only)  # one way to say the same
        for name, count, one in (
            ("rank_factors", ranks, "rank"),
            ("microbatch_factors", self.microbatches, "microbatch"),
        ):
            object.__setattr__(self, name, _factors(getattr(self, name), name, count, one))
        for override in self.profile.link.overrides:
            if max(override.sender, override.receiver) >= ranks:
                raise ProblemError(
                    f"the profile has a link from rank {override.sender} to rank {override.receiver}, "
                    f"but the placement has only {counted(ranks, 'rank')}"
                )
        if "paired" in self.allow and self.profile.link.queues:
            raise ProblemError(
                "what runs together hands two tensors on at one moment, and links on which transfers queue "
                "have no turn for that; allow no pairs, or take links without queueing"
            )
        for copies in () if self.profile.host_link is None else self.profile.host_link.overrides:
            if copies.rank >= ranks:
                raise ProblemError(
                    f"the profile has a host link of rank {copies.rank}, but the placement has only "
                    f"{counted(ranks, 'rank')}"
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

    def cost(self, stage: int, microbatch: int | None, *, rank: int | None = None) -> StageCost:
        """What a microbatch costs on a stage, where its route runs it; the only way to a cost.

        Without a microbatch: what the stage costs once an iteration on a rank that holds it, which then
        has to be given. Durations are the profile's times both factors (the optimizer's times that of
        the rank, the reduction's as they are), sizes times the factor of the microbatch, each
        multiplied exactly and rounded to whole units, half up. What is there once for all
        microbatches (static bytes) is not scaled.

        Raises
        ------
        ProblemError
            If a scaled duration or size exceeds 2^62.
        """
        cost = self.profile.stages[stage]
        if self.rank_factors is None and self.microbatch_factors is None:
            return cost
        if microbatch is not None:
            assert self.route_of is not None
            rank = self.placement.routes[self.route_of[microbatch]][stage]
        assert rank is not None
        alone = microbatch is None or self.microbatch_factors is None
        size: Factor = 1 if alone else self.microbatch_factors[microbatch]  # type: ignore[index]
        known = self._costs.get((stage, rank, size))
        if known is None:
            slowness = 1 if self.rank_factors is None else self.rank_factors[rank]
            known = self._costs[stage, rank, size] = _scaled_cost(cost, stage, Fraction(slowness), Fraction(size))
        return known

    def overlap_ns(self, pair: Op) -> int | None:
        """What the two operations of a pair take together; None where the profile does not say.

        The measured duration times the factor of the rank and, where microbatches differ in size, times the share
        that the two at their sizes have of the two at the profile's: so a pair saves the same part of what it would
        take one after the other. Multiplied exactly and rounded to whole ns, half up.
        """
        measured = self._measured_overlap(pair)
        if measured is None:
            return None
        taken = scaled(measured, self._factor(pair))
        if taken > MAX_AMOUNT:
            raise ProblemError(f"{pair}, scaled by its factors, takes more than 2^62 ns")
        return taken

    def _measured_overlap(self, pair: Op) -> int | None:
        assert pair.beside is not None
        if not self._overlaps:
            self._overlaps.update({(o.forward_stage, o.backward_stage): o for o in self.profile.overlaps})
        found = self._overlaps.get((pair.stage, pair.beside.stage))
        if found is None:
            return None
        whole = pair.beside.kind is Kind.BACKWARD
        return found.forward_backward_overlap_ns if whole else found.forward_backward_input_overlap_ns

    def position(self, microbatch: int) -> int:
        """Which slice of its sequence a microbatch is, from 0."""
        return microbatch % self.slices

    @property
    def microbatches_in_words(self) -> str:
        """Their number, and how they make sequences where they are slices."""
        number = counted(self.microbatches, "microbatch")
        if self.slices == 1:
            return number
        return f"{number} ({counted(self.microbatches // self.slices, 'sequence')} of {self.slices} slices)"

    def factor(self, op: Op) -> float:
        """How many times as long as the profile says an operation takes, for reading measured times."""
        return float(self._factor(op))

    def _factor(self, op: Op) -> Fraction:
        assert op.microbatch is not None
        slowness = Fraction(1 if self.rank_factors is None else self.rank_factors[self.rank_of(op)])
        if self.microbatch_factors is None:
            return slowness
        sizes = [Fraction(self.microbatch_factors[half.microbatch or 0]) for half in op.halves]
        if op.beside is None:
            return slowness * sizes[0]
        whole = op.beside.kind is Kind.BACKWARD
        forward, back = self.profile.stages[op.stage].forward_ns, self.profile.stages[op.beside.stage]
        parts = (forward, back.backward_ns if whole else back.backward_input_ns)
        weights = parts if any(parts) else (1, 1)  # two that take no time count alike
        return slowness * (weights[0] * sizes[0] + weights[1] * sizes[1]) / sum(weights)

    def rank_of(self, op: Op) -> int:
        """The rank that runs an operation."""
        assert self.route_of is not None
        assert op.microbatch is not None
        return self.placement.routes[self.route_of[op.microbatch]][op.stage]

    def operations(self) -> tuple[tuple[Op, ...], ...]:
        """The default set: for each rank its operations, split where that is allowed."""
        backward: tuple[Kind, ...] = ()
        last = [Op(kind, stage, None) for kind in Kind for stage in range(self.placement.stages) if kind.of_iteration]
        if not self.forward_only:
            backward = (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT) if "split" in self.allow else (Kind.BACKWARD,)
        rows: list[list[Op]] = [[] for _ in range(self.placement.ranks)]
        for kind in (Kind.FORWARD, *backward):
            for stage in range(self.placement.stages):
                for microbatch in range(self.microbatches):
                    op = Op(kind, stage, microbatch)
                    rows[self.rank_of(op)].append(op)
        for op in last:
            for rank in self.placement.holders(op.stage) if self.has(op.kind, op.stage) else ():
                rows[rank].append(op)
        return tuple(tuple(row) for row in rows)

    @property
    def has_ends(self) -> bool:
        """Whether there is any reduction or optimizer."""
        return any(self.has(Kind.OPTIMIZER, stage) for stage in range(self.placement.stages))

    def has(self, kind: Kind, stage: int) -> bool:
        """Whether the iteration ends with such an operation on every rank that holds the stage.

        The optimizer runs where it or the reduction of the gradients before it takes time by the
        profile; the reduction where it does.
        """
        cost = self.profile.stages[stage]
        if not self.ends or self.forward_only or not kind.of_iteration:
            return False
        return cost.grad_reduce_ns > 0 or (kind is Kind.OPTIMIZER and cost.optimizer_ns > 0)

    @property
    def digest(self) -> str:
        """A short fingerprint of all that decides the answer (names and sources do not)."""
        stages = [
            {k: v for k, v in asdict(stage).items() if k != "name" and v is not None} for stage in self.profile.stages
        ]
        content = [
            stages,
            _link_content(self.profile.link),
            self.placement.routes,
            self.microbatches,
            self.limit_bytes,
            self.objective,
            sorted(self.allow),
            self.route_of,
        ]
        # what is left at its default does not stand in the fingerprint, so that it outlives new parts
        chosen: dict[str, Any] = {
            name: [str(factor) for factor in factors]
            for name, factors in (("rank_factors", self.rank_factors), ("microbatch_factors", self.microbatch_factors))
            if factors is not None
        }
        if self.forward_only:
            chosen["forward_only"] = True
        if self.slices > 1:
            chosen["slices"] = self.slices
        if self.has_ends:
            chosen["ends"] = True
        if "paired" in self.allow and self.profile.overlaps:
            chosen["overlaps"] = sorted(list(astuple(overlap)) for overlap in self.profile.overlaps)
        if "offload" in self.allow and self.profile.host_link is not None:
            chosen["host_link"] = asdict(self.profile.host_link)
        content += [chosen] if chosen else []
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _link_content(link: Link) -> dict[str, Any]:
    """A link as the fingerprint has it: where nothing queues it does not say so."""
    content = asdict(link)
    for part in (content, *content["overrides"]):
        if part["queueing"] is None:
            del part["queueing"]
    return content


def _factors(given: Sequence[Factor] | None, name: str, count: int, one: str) -> tuple[Decimal, ...] | None:
    """Factors as exact decimals; None where all are 1."""
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != count:
        got = f"; got {len(given)}" if isinstance(given, Sequence) and not isinstance(given, str) else ""
        raise ProblemError(f"{name} needs one factor for each {one}, {count} in all{got}")
    factors = tuple(parse_factor(f, f"the factor of {one} {i}", error=ProblemError) for i, f in enumerate(given))
    return None if all(factor == 1 for factor in factors) else factors


def _scaled_cost(cost: StageCost, stage: int, slowness: Fraction, size: Fraction) -> StageCost:
    given = {
        name: value
        for name in (*_TIMES_OF_COMPUTE, *_BYTES_OF_A_MICROBATCH)
        if (value := getattr(cost, name)) is not None
    }
    changed: dict[str, Any] = {
        name: scaled(given[name], slowness * size) for name in _TIMES_OF_COMPUTE if name in given
    }
    changed["optimizer_ns"] = scaled(cost.optimizer_ns, slowness)
    if cost.backward_ns == cost.backward_input_ns + cost.backward_weight_ns:  # the sum stays the sum
        changed["backward_ns"] = changed["backward_input_ns"] + changed["backward_weight_ns"]
    changed |= {name: scaled(given[name], size) for name in _BYTES_OF_A_MICROBATCH if name in given}
    if cost.offload_bytes is not None:  # what stays is what is rounded
        stays = scaled(cost.activation_bytes - cost.offload_bytes, size)
        changed["offload_bytes"] = changed["activation_bytes"] - stays
    try:
        return replace(cost, **changed)
    except ProfileError as error:
        raise ProblemError(f"stage {stage}, scaled by its factors: {error}") from None
