"""One rank in this process's main thread; the others are processes of their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from zbsolve.errors import InvalidInput, RunError
from zbsolve.executor.patience import Patience
from zbsolve.executor.rank import Rank, RankFailure
from zbsolve.executor.story import blamed, failed
from zbsolve.executor.transports.distributed import Distributed
from zbsolve.executor.transports.protocol import Stopped, Transport

__all__ = ["Solo"]


class Solo:
    """Runs the rank of this process, and tells the others when it fails.

    Parameters
    ----------
    rank
        The one.
    transport
        Its connections.
    patience
        How long an operation may take.
    """

    def __init__(self, rank: Rank, transport: Transport, patience: Patience) -> None:
        self._rank = rank
        self._transport = transport
        self._patience = patience
        self._seen: tuple[tuple[int, int] | None, float] = None, 0.0
        self._health = transport.health if isinstance(transport, Distributed) else None
        if self._health is not None:
            self._health.attend(rank.doing, self._complaint)

    def run(self, work: Callable[[Rank], Any]) -> list[Any]:
        """Run ``work(rank)`` here.

        Raises
        ------
        RunError
            If this rank or another one fails; the connections are closed then.
        """
        cause = self._rank.endpoint.cause()
        if cause is not None:
            raise RunError(f"{failed(*cause)}; the pipeline cannot go on")
        if self._health is None:
            return [self._guarded(work)]
        with self._health.working():
            return [self._guarded(work)]

    def _guarded(self, work: Callable[[Rank], Any]) -> Any:
        rank = self._rank
        try:
            return work(rank)
        except RankFailure as error:
            cause = self._elsewhere(error)
            if cause is not None:
                self._transport.abort()
                raise RunError(blamed(rank.doing(), *cause)) from error
            rank.endpoint.failed(str(error))
            self._transport.abort()
            raise RunError(f"rank {rank.number} failed: {error}") from error.__cause__
        except Stopped:
            cause = rank.endpoint.cause() or (rank.number, "unknown")
            doing = rank.doing()
            self._transport.abort()
            raise RunError(blamed(doing, *cause)) from None
        except InvalidInput as error:
            rank.endpoint.failed(str(error))
            self._transport.abort()
            raise
        except BaseException as error:
            rank.endpoint.failed(f"{type(error).__name__}: {error}")
            self._transport.abort()
            raise

    def _elsewhere(self, error: RankFailure) -> tuple[int, str] | None:
        """Who broke a collective that the stage's own modules were in, if that is why they raised."""
        inner = error.__cause__
        # torch raises plain RuntimeErrors for connections that broke
        broken = isinstance(inner, RuntimeError) and ("gloo" in str(inner) or "NCCL" in str(inner))
        if self._health is None or not broken:
            return None
        return self._health.cause() if isinstance(self._health.stopped(None, error), Stopped) else None

    def _complaint(self) -> str | None:
        """Asked by the watch: whether the operation that runs now runs for too long."""
        at, now = self._rank.computing(), time.monotonic()
        if self._seen[0] != at:
            self._seen = at, now
        seconds = now - self._seen[1]
        if at is not None and seconds > self._patience.seconds(first=self._rank.steps == 0):
            return self._patience.complaint(self._rank.doing(), seconds)
        return None
