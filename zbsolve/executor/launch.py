"""How this process was started: alone, or as one of several, and which.

The first line that fits decides; a `transport` or a `mesh` that is given comes before all of them.

====================================================  ===============================================
what is there                                         what it means
====================================================  ===============================================
`torch.distributed` is initialized                    its processes; threads if it is only this one
WORLD_SIZE above 1                                    RANK of them, as ``torchrun`` sets both
WORLD_SIZE of 1                                       threads
a launcher's own variables, with more than one task   its rank of its tasks; needs MASTER_ADDR
nothing of the kind                                   threads
====================================================  ===============================================

A launcher is believed only with MASTER_ADDR and MASTER_PORT beside it: a batch script that runs one
process has the same variables as the first of several tasks, and would wait for the others for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zbsolve.errors import InvalidInput

__all__ = ["Launch", "launched"]

_LAUNCHERS = (
    ("SLURM", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("SLURM", "SLURM_PROCID", "SLURM_NTASKS"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPI", "PMI_RANK", "PMI_SIZE"),
    ("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PALS", "PALS_RANKID", "PALS_NRANKS"),
)
_THREADS = "or give transport=InProcess(ranks) to run all ranks as threads of this process"


@dataclass(frozen=True, slots=True)
class Launch:
    """One of several processes.

    Parameters
    ----------
    rank, world
        Which, and of how many.
    source
        Who says so, in words.
    """

    rank: int
    world: int
    source: str


def launched(variables: Mapping[str, str]) -> Launch | None:
    """What the environment says; None for a process that is alone.

    Raises
    ------
    InvalidInput
        If it is one of several and lacks what is needed to find the others, with what to set.
    """
    found = _by_torch(variables) if "WORLD_SIZE" in variables or "RANK" in variables else _by_launcher(variables)
    if found is None:
        return None
    if not 0 <= found.rank < found.world:
        raise InvalidInput(f"{found.source}, but ranks are numbered from 0 to {found.world - 1}: correct one of them")
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not variables.get(name)]
    if missing:
        what = " and ".join(missing) + (" is" if len(missing) == 1 else " are")
        raise InvalidInput(
            f"this is one of {found.world} processes ({found.source}), but {what} not "
            "set: give all of them the host name of the first process as MASTER_ADDR and a free port as "
            f"MASTER_PORT, or call torch.distributed.init_process_group, {_THREADS}"
        )
    return found


def _by_torch(variables: Mapping[str, str]) -> Launch | None:
    for name, other in (("WORLD_SIZE", "RANK"), ("RANK", "WORLD_SIZE")):
        if name not in variables:
            by = _by_launcher(variables)
            if by is not None and name == "RANK" and by.world == _number(variables, other):
                return by
            if other == "WORLD_SIZE" and _number(variables, other) == 1:
                return None
            raise InvalidInput(
                f"{other} is {variables[other]} but {name} is not set: set both, as torchrun does, unset {other}, "
                f"{_THREADS}"
            )
    rank, world = _number(variables, "RANK"), _number(variables, "WORLD_SIZE")
    return None if world == 1 else Launch(rank, world, f"RANK={rank}, WORLD_SIZE={world}")


def _by_launcher(variables: Mapping[str, str]) -> Launch | None:
    for launcher, rank_name, world_name in _LAUNCHERS:
        if rank_name in variables and world_name in variables:
            rank, world = _number(variables, rank_name), _number(variables, world_name)
            if world == 1:
                return None
            return Launch(rank, world, f"{launcher}: {rank_name}={rank}, {world_name}={world}")
    return None


def _number(variables: Mapping[str, str], name: str) -> int:
    try:
        number = int(variables[name])
    except ValueError:
        raise InvalidInput(f"{name} is {variables[name]!r}, not a whole number: correct or unset it") from None
    if name in ("WORLD_SIZE", *(world for _, _, world in _LAUNCHERS)) and number < 1:
        raise InvalidInput(f"{name} is {number}, not at least 1: correct or unset it")
    return number
