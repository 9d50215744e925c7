"""The way between a rank and its host memory."""

from __future__ import annotations

from dataclasses import dataclass

from zbsolve.errors import ProfileError
from zbsolve.profile.amounts import check_bandwidth
from zbsolve.units import whole_amount

_COPY_RATES = ("to_host_bytes_per_second", "from_host_bytes_per_second")


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
            check_bandwidth(getattr(self, field), f"host link override: {field}")


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
            check_bandwidth(getattr(self, field), f"host link: {field}")
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
