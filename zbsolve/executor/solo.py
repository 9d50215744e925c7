"""One rank in this process's main thread; the others are processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from zbsolve.errors import InvalidInput, RunError
from zbsolve.executor.patience import Patience
from zbsolve.executor.rank import Rank, RankFailure
from zbsolve.executor.story import blamed, failed, told
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
        How long an operation may take, and a rank stay between calls.
    """

    def __init__(self, rank: Rank, transport: Transport, patience: Patience) -> None:
        self._rank = rank
        self._transport = transport
        self._patience = patience
        self.away_s = patience.away
        self._kind = ""
        self._seen: tuple[tuple[int, int] | None, float] = None, 0.0
        self._health = transport.health if isinstance(transport, Distributed) else None
        # several pipelines may share the connections, and a call of one is no call of another
        number = 1 if self._health is None else self._health.pipelines
        self._name = f" of pipeline {number}" if number > 1 else ""

    @contextmanager
    def call(self, kind: str, **same: str) -> Iterator[None]:
        """Around each call that needs all ranks; with what must be the same on all that say it.

        Raises
        ------
        RunError
            If some rank has failed before.
        """
        if self._health is None:
            yield
            return
        with self._health.call({"kind": kind + self._name, **same}, self):
            self._kind = kind
            yield

    def close(self) -> None:
        """No call will follow."""

    torn = False

    def restored(self) -> None:
        """Everything has been put back to one state."""

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
            rank.endpoint.failed(told(error))
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

    def doing(self) -> str:
        """What the rank is at, in words."""
        doing, idle = self._rank.doing(), f"rank {self._rank.number} is between steps"
        return f"rank {self._rank.number} is in its call of {self._kind}" if doing == idle else doing

    def busy(self) -> bool:
        """It runs an operation."""
        return self._rank.computing() is not None

    def complaint(self, now: float) -> str | None:
        """Whether the operation that runs now runs for too long."""
        at = self._rank.computing()
        if self._seen[0] != at:
            self._seen = at, now
        seconds = now - self._seen[1]
        if at is not None and seconds > self._patience.seconds(first=self._rank.first_time()):
            return self._patience.complaint(self._rank.doing(), seconds)
        return None
