"""Something to do when the interpreter ends, for as long as an object lives."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from multiprocessing.util import Finalize
from typing import TypeVar

__all__ = ["at_exit"]

T = TypeVar("T")


def at_exit(owner: T, work: Callable[[T], None]) -> Callable[[], None]:
    """Call ``work(owner)`` when this process ends by itself; returns what takes that back.

    `atexit` is passed over by children of `multiprocessing`, whose own finalizers both kinds of processes run.
    """
    reference = weakref.ref(owner)

    def ends() -> None:
        alive = reference()
        if alive is not None:
            work(alive)

    return Finalize(None, ends, exitpriority=0).cancel
