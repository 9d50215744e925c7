"""All ranks of a process as threads, watched by the thread that called.

::

    caller    start   watch ..................... watch   join
    rank 0        step 0, step 1, ...
    rank 1        step 0, step 1, ...

The threads stay from call to call. The caller looks several times a second whether an operation runs
longer than it may. The first failure wakes all ranks that wait and ends the threads; one that is stuck
inside an operation is left behind, for threads cannot be ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import torch

from zbsolve.errors import RunError
from zbsolve.executor.hands import Hands, Task
from zbsolve.executor.patience import Patience
from zbsolve.executor.rank import Rank, RankFailure
from zbsolve.executor.story import blamed, told
from zbsolve.executor.transports.in_process import InProcess
from zbsolve.executor.transports.protocol import Stopped
from zbsolve.executor.updating import settle_together

__all__ = ["GRACE_S", "LOOK_S", "Crew"]

LOOK_S = 0.2
GRACE_S = 2.0


class Crew:
    """Runs ranks side by side in threads.

    Parameters
    ----------
    ranks
        All of them.
    transport
        Theirs.
    patience
        How long an operation may take.
    tag
        What the pipeline keeps on the transport from step to step.
    """

    def __init__(self, ranks: Sequence[Rank], transport: InProcess, patience: Patience, tag: int | None = None) -> None:
        self.ranks = ranks
        self._tag = tag
        self.torn = False
        self._transport = transport
        self._patience = patience
        self._hands = Hands()
        self._stuck: list[Task] = []

    def close(self) -> None:
        """No call will follow."""
        self._hands.close()

    @contextmanager
    def call(self, kind: str, **same: str) -> Iterator[None]:
        """Around each call that needs all ranks; here one call is made for all of them."""
        del kind, same
        yield

    def restored(self) -> None:
        """Everything has been put back to one state."""
        self.torn = False

    def run(self, work: Callable[[Rank], Any]) -> list[Any]:
        """Run ``work(rank)`` for every rank, each in a thread of its own, and return what they return.

        Raises
        ------
        RunError
            If a rank fails or stalls, with what every other rank was at; all that can stop have stopped.
        """
        self._refuse_stuck()
        self._refuse_torn()
        mode = _CallersMode()
        done: SimpleQueue[int] = SimpleQueue()
        results: list[Any] = [None] * len(self.ranks)
        errors: dict[int, BaseException] = {}

        def thread(rank: Rank) -> None:
            try:
                with mode.entered(rank.device):
                    results[rank.number] = work(rank)
            except BaseException as error:
                errors[rank.number] = error
                if not isinstance(error, Stopped):
                    rank.endpoint.failed(_text(error))
            finally:
                done.put(rank.number)

        threads = {
            rank.number: self._hands.start(f"zbsolve rank {rank.number}", partial(thread, rank)) for rank in self.ranks
        }
        try:
            self._watch(set(threads), done)
        except BaseException:
            self._transport.note_failure(-1, "interrupted")
            self._transport.abort()
            self._join(threads)
            self._recover(threads)
            raise
        cause = self._transport.cause
        if cause is None:
            for rank in self.ranks:
                rank.all_done()
            return results
        doing = {rank.number: rank.doing() for rank in self.ranks if rank.number != cause[0]}
        self._join(threads)
        error = self._error(cause, doing)
        root = errors.get(cause[0])
        self._recover(threads)
        raise error from (root.__cause__ if isinstance(root, RankFailure) else root)

    def _watch(self, running: set[int], done: SimpleQueue[int]) -> None:
        """Return when all have ended, or some rank has failed or stalls."""
        since: dict[int, tuple[tuple[int, int] | None, float]] = {}
        while running and self._transport.cause is None:
            try:
                running.discard(done.get(timeout=LOOK_S))
                continue
            except Empty:
                pass
            now = time.monotonic()
            for rank in self.ranks:
                at = rank.computing()
                if since.get(rank.number, (None, 0.0))[0] != at:
                    since[rank.number] = at, now
                elif at is not None and now - since[rank.number][1] > self._patience.seconds(first=rank.first_time()):
                    rank.endpoint.failed(self._patience.complaint(rank.doing(), now - since[rank.number][1]))
                    return

    def _join(self, threads: dict[int, Task]) -> None:
        deadline = time.monotonic() + GRACE_S
        for thread in threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))

    def _recover(self, threads: dict[int, Task]) -> None:
        self._stuck = [thread for thread in threads.values() if thread.is_alive()]
        self._hands.close(thread for thread in threads.values() if not thread.is_alive())
        if not self._stuck:
            self._restart()

    def _restart(self) -> None:
        self._transport.reset(self._tag)
        steps = min(rank.steps for rank in self.ranks)
        for rank in self.ranks:
            rank.recover(steps)
        optimizers = [rank.optimizer for rank in self.ranks if rank.optimizer is not None]
        self.torn = self.torn or not settle_together(optimizers)
        for rank in self.ranks:
            if rank.optimizer is not None:
                rank.training.desk.scale = rank.optimizer.loss_scale

    def _refuse_torn(self) -> None:
        if self.torn:
            raise RunError(
                "an earlier failure came between the updates of two ranks, so their weights are of different steps: "
                "call load_state_dict with a state from before, or build a new Pipeline"
            )

    def _refuse_stuck(self) -> None:
        self._stuck = [thread for thread in self._stuck if thread.is_alive()]
        if self._stuck:
            names = ", ".join(thread.name for thread in self._stuck)
            raise RunError(f"{names} is still stuck in an operation of an earlier step; build a new Pipeline")
        if self._transport.cause is not None:
            self._restart()

    def _error(self, cause: tuple[int, str], doing: dict[int, str]) -> RunError:
        rank, text = cause
        others = [blamed(what, rank, text) for _, what in sorted(doing.items())]
        shown = others[:16] + ([f"... and {len(others) - 16} more ranks"] if len(others) > 16 else [])
        return RunError("\n  ".join([f"rank {rank} failed: {text}", *shown]))


class _CallersMode:
    """What torch keeps for each thread and the caller has set: autocast, and how many threads an operation uses."""

    def __init__(self) -> None:
        self._threads = torch.get_num_threads()
        self._autocast = [
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_cache_enabled())
            for kind in ("cpu", "cuda")
            if torch.is_autocast_enabled(kind)
        ]

    def entered(self, device: torch.device) -> ExitStack:
        stack = ExitStack()
        # a new thread starts with as many as there are cores, and kernels are chosen by it
        torch.set_num_threads(self._threads)
        for kind, dtype, cache in self._autocast:
            stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=cache))
        if device.type == "cuda":
            stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream(device))
            stack.enter_context(torch.cuda.device(device))
            stack.enter_context(torch.cuda.stream(stream))
            stack.callback(stream.synchronize)
        return stack


def _text(error: BaseException) -> str:
    return str(error) if isinstance(error, RunError) else told(error)
