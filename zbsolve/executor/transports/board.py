"""What the processes of a run tell each other, on the store that `torch.distributed` was started with.

::

    beat/P      changes twice a second while process P lives, whatever its main thread does: a count, and
                where its calls stand (`calls.Standing`)
    failed      the first failure of all: process and what happened
    done/P      process P wants to leave
    said/N/P    what process P of this pipeline says in exchange N

All but the last are shared by pipelines side by side.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch.distributed as dist

from zbsolve.executor.transports.calls import Standing
from zbsolve.executor.transports.quiet import QuietStore

__all__ = ["Board"]

_made: Counter[tuple[int, ...]] = Counter()


class Board:
    """The entries of one pipeline, and those that it shares.

    Parameters
    ----------
    process
        This one, by its number in `torch.distributed`.
    members
        The processes of this pipeline.
    everyone
        Those of all that share a board.
    store
        None for that of `torch.distributed`.

    Attributes
    ----------
    store
        For the entries of this pipeline alone.
    """

    def __init__(self, process: int, members: Sequence[int], everyone: Sequence[int], store: Any = None) -> None:
        self._process = process
        self._everyone = tuple(everyone)
        if store is None:
            # all processes make their pipelines in the same order, so these counts agree
            _made[self._everyone] += 1
            store = dist.distributed_c10d._get_default_store()
        own = store
        # a client of its own: the main thread holds the other while it waits for a connection
        with contextlib.suppress(RuntimeError, NotImplementedError, AttributeError):
            own = store.clone()
        prefix = dist.distributed_c10d.PrefixStore
        name = f"zbsolve/{_named(self._everyone)}/{_made[self._everyone]}"
        self._common: Any = QuietStore(prefix(name, own))
        self.store: Any = prefix(f"{name}/pipeline/{_named(members)}", store)
        self._asked: Any = QuietStore(self.store)
        self._members = tuple(members)
        self._beats = 0
        self._exchanges = 0
        self._all_began = False

    def beat(self, standing: Standing) -> None:
        """Show that this process lives, and where its calls stand."""
        self._beats += 1
        self._common.set(f"beat/{self._process}", f"{self._beats} {standing.pack()}")

    def beats(self, others: Sequence[int]) -> Iterator[tuple[int, int, Standing]]:
        """Process, count and standing of those of the others that have begun.

        One question for all once all have begun: the store answers one client after the other.
        """
        keys = [f"beat/{process}" for process in others]
        if not self._all_began:
            self._all_began = not keys or bool(self._common.check(keys))
        if self._all_began and self._common.has_extended_api():
            found = list(zip(others, self._common.multi_get(keys), strict=True))
        else:
            there = [(process, key) for process, key in zip(others, keys, strict=True) if self._common.check([key])]
            found = [(process, self._common.get(key)) for process, key in there]
        for process, text in found:
            count, _, standing = text.decode().partition(" ")
            yield process, int(count), Standing.unpack(standing)

    def fail(self, process: int, message: str) -> tuple[int, str]:
        """Publish a failure; the first to be published, which is the cause for all."""
        process, message = json.loads(self._common.compare_set("failed", "", json.dumps((process, message))))
        return process, message

    def failure(self) -> tuple[int, str] | None:
        """The first that was published."""
        if not self._common.check(["failed"]):
            return None
        process, message = json.loads(self._common.get("failed"))
        return process, message

    def say(self, text: str) -> list[str]:
        """Say something to the other members; the entries that `said` takes."""
        self._exchanges += 1
        keys = [f"said/{self._exchanges}/{process}" for process in self._members]
        self._asked.set(keys[self._members.index(self._process)], text)
        return keys

    def said(self, keys: Sequence[str]) -> list[str] | None:
        """What all members have said, by rank; None until all have."""
        if not self._asked.check(keys):
            return None
        return [self._asked.get(key).decode() for key in keys]

    def leave(self) -> None:
        """Say that this process wants to leave."""
        self._common.set(f"done/{self._process}", "1")

    @property
    def all_leave(self) -> bool:
        """True once everyone wants to."""
        return bool(self._common.check([f"done/{process}" for process in self._everyone]))


def _named(processes: Sequence[int]) -> str:
    return "-".join(map(str, processes))
