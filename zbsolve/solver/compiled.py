"""The kernels in two forms: plain Python over lists, and compiled by numba over arrays.

Both run the same source and give the same results to the last digit; only speed differs. numba is
imported here alone, when compiled kernels are first asked for, which happens in worker processes. What
it compiles it keeps in a folder named after the source, so that one process compiles and all others,
and all later solves, load.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from zbsolve.solver import borders, listing, moves, network, queueing, state, timing, walks
from zbsolve.solver.network import Table
from zbsolve.solver.state import new_state

__all__ = ["Kernels", "cache_folder", "compiled", "environment", "holds_all", "plain", "ready_to_move"]

_MODULES = (state, queueing, timing, moves, walks, listing, borders)
"""Where the kernels are."""

_SOURCES = (network, *_MODULES)
"""What they are compiled from: the numbers of a network's rows are compiled in, too."""

_ENTRIES = (
    listing.list_schedule,
    timing.load,
    timing.critical,
    walks.anneal_moves,
    walks.tabu_moves,
    borders.tails,
)
_ROOM = 2**20
"""Bytes that must fit on the disk for the cache to be used."""

_NOT_COMPILED = frozenset({"new_state", "new_rule"})


class Kernels(NamedTuple):
    """The functions that are called from outside, and whether they take lists or arrays."""

    lists: bool
    list_schedule: Callable[..., Any]
    load: Callable[..., Any]
    critical: Callable[..., Any]
    anneal_moves: Callable[..., Any]
    tabu_moves: Callable[..., Any]
    tails: Callable[..., Any]


@cache
def plain() -> Kernels:
    """The functions as they stand in their modules."""
    return Kernels(True, *_ENTRIES)


@cache
def compiled() -> Kernels:
    """The same compiled; the first call of each takes seconds unless the cache has it."""
    import numba
    from numba.extending import register_jitable

    for module in _MODULES:
        for function in _functions(module):
            register_jitable(function)
    made = [numba.njit(cache=True)(function) for function in _ENTRIES]
    return Kernels(False, *made)


def ready_to_move(
    kernels: Kernels, net: Table, sequence: Sequence[int], fused: Sequence[int], seed: int, periodic: int
) -> Table | None:
    """A state with a critical chain, in the form that the kernels take; None if it exceeds the memory.

    Parameters
    ----------
    kernels
        Plain or compiled.
    net
        In that form.
    sequence, fused
        The order to begin with.
    seed
        Of the moves.
    periodic
        1 for the period, 0 for the makespan.
    """
    state = new_state(net, sequence, fused, seed)
    if kernels.load(net, state, periodic) < 0:
        return None
    kernels.critical(net, state, periodic)
    return state


def _functions(module: ModuleType) -> list[FunctionType]:
    return [
        f
        for name, f in vars(module).items()
        if isinstance(f, FunctionType) and f.__module__ == module.__name__ and name not in _NOT_COMPILED
    ]


def cache_folder() -> Path | None:
    """A folder of the user's own that compiled kernels may be kept in; None if there is none that can be written.

    It is named after the source of all kernels: numba itself looks at one file alone.
    """
    given = os.environ.get("XDG_CACHE_HOME")
    try:
        root = Path(given) if given else Path.home() / ".cache"
        # where the source lies counts, too: numba keeps what it compiled apart by that
        source = __file__ + "".join(inspect.getsource(module) for module in _SOURCES)
        folder = root / "zbsolve" / hashlib.sha256(source.encode()).hexdigest()[:16]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as trial:
            trial.write(bytes(_ROOM))
            trial.flush()
            return folder
    except (OSError, RuntimeError):
        return None


def holds_all(folder: Path) -> bool:
    """True if a folder has every kernel, compiled; a process that was ended at it leaves some."""
    return sum(1 for _ in folder.rglob("*.nbi")) >= len(_ENTRIES)


def environment(folder: Path) -> dict[str, str]:
    """What a process that compiles needs in its environment: less optimising compiles and runs faster here."""
    wanted = {
        "NUMBA_CACHE_DIR": str(folder),
        "NUMBA_OPT": "1",
        "NUMBA_LOOP_VECTORIZE": "0",
        "NUMBA_SLP_VECTORIZE": "0",
    }
    return {**os.environ, **wanted}
