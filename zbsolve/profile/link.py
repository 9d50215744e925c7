"""Links between ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from zbsolve.errors import ProfileError
from zbsolve.profile.amounts import check_bandwidth
from zbsolve.units import whole_amount

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
        check_bandwidth(self.bytes_per_second, "link override: bytes_per_second")
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
        check_bandwidth(self.bytes_per_second, "link: bytes_per_second")
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
