"""What the runtime asks of a transport.

A `Transport` gives every rank of this process an `Endpoint`; an endpoint gives every program (the
actions of one rank, for training or for evaluation) its `Mail`. Mail hands out one ready-made
function an action, so that nothing is looked up while a step runs; where an action means nothing
to a transport (threads post no receives), there is no function and the action falls away.

What each function does, and what it may block on, is stated in `zbsolve.lowering.actions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from zbsolve.executor.boundary import Boundary
from zbsolve.lowering import Lowered

__all__ = ["OWN_TAGS", "Endpoint", "Mail", "Stopped", "Tensors", "Transport"]

OWN_TAGS = (1 << 20) + 16
"""Where the tags begin that a pipeline has for itself; what others tell each other ends with the call it is told in."""

Tensors = tuple[torch.Tensor, ...]


class Stopped(Exception):
    """The rank cannot go on because another one has failed."""


class Mail(Protocol):
    """The messages of one program on one rank."""

    def poster(self, message: int) -> Callable[[], None] | None:
        """Starts receiving."""

    def waiter(self, message: int) -> Callable[[], Tensors]:
        """Blocks until the message is there, and returns its tensors."""

    def sender(self, message: int) -> Callable[[Tensors], None]:
        """Starts sending."""

    def completer(self, message: int) -> Callable[[], None] | None:
        """Blocks until what was sent may be let go of."""

    def keeper(self) -> Callable[[Tensors], Tensors] | None:
        """Copies tensors that lie in a receive slot, for whoever keeps them longer than the slot is theirs."""


class Endpoint(Protocol):
    """One rank's end of a transport."""

    rank: int

    def mail(self, lowered: Lowered, boundaries: Mapping[int, Boundary], device: torch.device) -> Mail:
        """The messages of a program, whose tensors are described by message."""

    def befriend(self, ranks: Sequence[int]) -> None:
        """Get ready to `tell` and `hear` these ranks, which do the same."""

    def tell(self, rank: int, tensors: Sequence[torch.Tensor], tag: int = 0) -> None:
        """Send tensors beside the messages; never blocks. What has one tag stays in order."""

    def hear(self, rank: int, like: Sequence[torch.Tensor], tag: int = 0) -> list[torch.Tensor]:
        """The next tensors that a rank told this one under a tag, shaped as `like`; blocks until they are there."""

    def failed(self, message: str) -> None:
        """Make known that this rank has failed; the first failure of all is the cause."""

    def cause(self) -> tuple[int, str] | None:
        """The rank that failed first and what it said, if any did."""


class Transport(Protocol):
    """All ranks' connections, as far as this process has them."""

    ranks: int

    def endpoints(self) -> Sequence[Endpoint]:
        """Those of the ranks that live in this process."""

    def new_tag(self) -> int:
        """A tag that nothing else on this transport has; the same in every process that asks in the same order."""

    def abort(self) -> None:
        """Wake up every rank of this process that waits; it gets `Stopped`."""

    def close(self, *, quietly: bool = False) -> None:
        """Let go of everything; `quietly` without telling of failures elsewhere."""
