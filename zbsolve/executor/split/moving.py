"""The part of a stage that moves what a forward has saved to host memory, and back; how it is done stands in `away`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch
from torch import nn

from zbsolve.errors import RunError
from zbsolve.executor.split.away import Away
from zbsolve.executor.split.held import Watch
from zbsolve.executor.split.install import SplitForwards

__all__ = ["MovesAway"]


def _no_mark() -> None:
    return None


class MovesAway:
    """What `SplitStage` does between a forward that `moves` and its backward: offload, release, reload, arrive."""

    name: str
    module: nn.Module
    _forwards: SplitForwards
    _watch: Watch | None
    _away: dict[Hashable, Away]

    def _parameters(self) -> list[torch.Tensor]:
        raise NotImplementedError

    def _moving(self, given: Iterable[Any]) -> Away:
        """For one microbatch; what it was given stays, as do parameters, buffers and other tensors of the modules."""
        if self._forwards.sharded:
            raise RunError(f"{self.name} is sharded by FSDP and cannot be moved away; solve without offload")
        constants = (value for module in self.module.modules() for value in vars(module).values())
        others = [x for x in (*given, *constants) if isinstance(x, torch.Tensor)]
        return Away(self.name, [*self._parameters(), *self.module.buffers(), *others])

    def offload(self, key: Hashable, mark: Callable[[], Any] = _no_mark) -> tuple[Any, Any]:
        """Start to copy what the forward of a microbatch has saved to host memory.

        Parameters
        ----------
        key
            Of the microbatch, whose forward was told that it `moves`.
        mark
            Called where the copies begin and where they end, on the stream that they run on.

        Returns
        -------
        What `mark` gave.

        Raises
        ------
        RunError
            If the microbatch is not right behind such a forward.
        """
        away = self._moved(key, "offload")
        # what several microbatches have saved was not made by any of them
        others = (other.memories() for name, other in self._away.items() if name != key)
        return away.offload(mark, frozenset[int]().union(*others))

    def release(self, key: Hashable) -> None:
        """Let go of what was copied, as soon as it is; on CUDA the stream waits, not the caller.

        Raises
        ------
        RunError
            If the microbatch is not right behind its offload.
        """
        self._moved(key, "release").release()

    def reload(self, key: Hashable, mark: Callable[[], Any] = _no_mark) -> tuple[Any, Any]:
        """Take memory again and start to copy it back; parameters, returns and errors as of `offload`."""
        away = self._moved(key, "reload")
        marks = away.reload(mark)
        if self._watch is not None:
            for memory in away.reloaded():
                self._watch.made.note(memory)
        return marks

    def arrive(self, key: Hashable) -> None:
        """Wait until what was reloaded is back; the backward does so, too, if nobody has.

        Raises
        ------
        RunError
            If the microbatch is not right behind its reload.
        """
        self._moved(key, "backward").back()
        del self._away[key]

    def _moved(self, key: Hashable, doing: str) -> Away:
        away = self._away.get(key)
        if away is None:
            raise RunError(f"{self.name}: {doing} of {key!r}, whose forward was not told that it moves")
        return away

    def host_bytes(self) -> int:
        """What lies in host memory on account of microbatches in flight."""
        return sum(away.host_bytes() for away in self._away.values())
