"""Where the stages lie: the rank of every stage, for each route through the pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from zbsolve.errors import PlacementError
from zbsolve.units import whole_amount

__all__ = ["Placement"]

MAX_RANKS = 4096


def _count(value: object, what: str) -> int:
    count = whole_amount(value, what, error=PlacementError)
    if not 1 <= count <= MAX_RANKS:
        raise PlacementError(f"{what} must be in 1..{MAX_RANKS}, got {count}")
    return count


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The routes of a pipeline.

    Parameters
    ----------
    routes
        Each a tuple with the rank of every stage, from input to loss. Ordinary placements have
        one; a stage held by several ranks over the routes is a replica on each.

    Raises
    ------
    PlacementError
        If a route is empty, lengths differ, or some rank of ``0..max`` holds no stage.

    Examples
    --------
    >>> Placement.v(3).routes
    ((0, 1, 2, 2, 1, 0),)
    """

    routes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        routes = tuple(tuple(route) for route in self.routes)
        object.__setattr__(self, "routes", routes)
        if not routes or not routes[0]:
            raise PlacementError("a placement needs a route, and a route needs a stage")
        for route in routes:
            if len(route) != len(routes[0]):
                raise PlacementError(f"routes must cover the same stages, got {len(routes[0])} and {len(route)}")
            for rank in route:
                if whole_amount(rank, "a rank", error=PlacementError) >= MAX_RANKS:
                    raise PlacementError(f"a rank must be below {MAX_RANKS}, got {rank}")
        held = {rank for route in routes for rank in route}
        idle = [rank for rank in range(max(held)) if rank not in held]
        if idle:
            raise PlacementError(f"rank {idle[0]} holds no stage; number the ranks 0..R-1 without gaps")

    @classmethod
    def linear(cls, ranks: int) -> Placement:
        """One stage a rank, in order."""
        return cls(routes=(tuple(range(_count(ranks, "the number of ranks"))),))

    @classmethod
    def looped(cls, ranks: int, chunks: int) -> Placement:
        """Stage s on rank s mod ranks: Megatron-LM's interleaving."""
        return cls(
            routes=(tuple(range(_count(ranks, "the number of ranks"))) * _count(chunks, "the number of chunks"),)
        )

    @classmethod
    def v(cls, ranks: int) -> Placement:
        """Down the ranks and back: stage s on rank s, then on rank 2 ranks - 1 - s."""
        return cls.wave(ranks, 2)

    @classmethod
    def wave(cls, ranks: int, chunks: int) -> Placement:
        """Down and up the ranks, `chunks` (even) times in all: Hanayo's waves."""
        down = tuple(range(_count(ranks, "the number of ranks")))
        if _count(chunks, "the number of chunks") % 2:
            raise PlacementError(f"a wave runs down and up, so its chunks must be even, got {chunks}")
        return cls(routes=((down + down[::-1]) * (chunks // 2),))

    @classmethod
    def bidirectional(cls, ranks: int) -> Placement:
        """Two routes in opposite directions, each rank holds one stage of each: Chimera, DualPipe."""
        down = tuple(range(_count(ranks, "the number of ranks")))
        return cls(routes=(down, down[::-1]))

    @classmethod
    def custom(cls, *routes: Iterable[int]) -> Placement:
        """Any explicit list: the rank of every stage, once for each route."""
        return cls(routes=tuple(tuple(route) for route in routes))

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return 1 + max(rank for route in self.routes for rank in route)

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(self.routes[0])

    @property
    def name(self) -> str:
        """The constructor that gives these routes, or ``"custom"``."""
        ranks, chunks = self.ranks, self.stages // self.ranks
        if self == Placement.linear(ranks):
            return "linear"
        if chunks >= 1 and self == Placement.looped(ranks, chunks):
            return "looped"
        if self == Placement.v(ranks):
            return "v"
        if chunks >= 2 and chunks % 2 == 0 and self == Placement.wave(ranks, chunks):
            return "wave"
        if self == Placement.bidirectional(ranks):
            return "bidirectional"
        return "custom"

    def holders(self, stage: int) -> tuple[int, ...]:
        """The ranks that hold a stage, each once, in the order of the routes."""
        return tuple(dict.fromkeys(route[stage] for route in self.routes))

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages one rank holds (its chunks), ascending."""
        return tuple(s for s in range(self.stages) if any(route[s] == rank for route in self.routes))
