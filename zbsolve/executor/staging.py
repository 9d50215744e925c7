"""Whose stages are where: the modules of every rank, their device, and how the ranks are connected."""

from __future__ import annotations

import copy
import os
from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist

from zbsolve.errors import InvalidInput
from zbsolve.executor.desk import StageWork
from zbsolve.executor.launch import launched
from zbsolve.executor.split import SplitStage
from zbsolve.executor.transports import Distributed, InProcess
from zbsolve.executor.transports.protocol import Transport

__all__ = ["Stages", "default_transport", "device_of", "refuse_sharing", "stages_of_ranks"]

Stage = torch.nn.Module | StageWork
Stages = Sequence[Stage] | Mapping[int, Stage]


def default_transport(ranks: int, variables: Mapping[str, str] | None = None) -> Transport:
    """Threads, unless this process was started as one of several (`zbsolve.executor.launch`).

    Raises
    ------
    InvalidInput
        If it is one of several but cannot find the others, or if they are not as many as the ranks.
    """
    if not dist.is_available():
        return InProcess(ranks)
    source = "torch.distributed"
    if not dist.is_initialized():
        launch = launched(os.environ if variables is None else variables)
        if launch is None:
            return InProcess(ranks)
        source = launch.source
        _refuse_other_count(ranks, launch.world, source)
        dist.init_process_group(init_method="env://", rank=launch.rank, world_size=launch.world)
    if dist.get_world_size() == 1:
        return InProcess(ranks)
    _refuse_other_count(ranks, dist.get_world_size(), source)
    return Distributed()


def _refuse_other_count(ranks: int, processes: int, source: str) -> None:
    if processes != ranks:
        raise InvalidInput(
            f"the timetable is for {ranks} ranks, but there are {processes} processes ({source}): start {ranks}, give "
            "transport=Distributed(group) with those that take part, a mesh where there are replicas, or "
            "transport=InProcess(ranks) for threads"
        )


def stages_of_ranks(
    stages: Stages, holders: Sequence[Collection[int]], wanted: Sequence[Sequence[int]], *, threads: bool
) -> list[dict[int, StageWork]]:
    """The stages of each rank of this process; a module that several hold is copied for all but the first.

    Parameters
    ----------
    stages
        All of them in order, or some by number.
    holders
        The ranks that each stage of the timetable lies on.
    wanted
        The numbers of the stages of each rank of this process.
    threads
        This process runs all ranks; told where stages are missing.
    """
    count = len(holders)
    given = dict(stages) if isinstance(stages, Mapping) else dict(enumerate(stages))
    if not isinstance(stages, Mapping) and len(given) != count:
        raise InvalidInput(f"the timetable has {count} stages, but {len(given)} modules were given")
    foreign = [number for number in given if not isinstance(number, int) or not 0 <= number < count]
    if foreign:
        raise InvalidInput(f"modules were given for stages {foreign}, but the timetable has stages 0 to {count - 1}")
    hint = (
        ": all ranks run as threads of this process, as nothing says that it is one of several. For a process a rank "
        "start it with torchrun, set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or call "
        "torch.distributed.init_process_group first"
        if threads
        else ""
    )
    taken: set[int] = set()
    held = []
    for numbers in wanted:
        mine: dict[int, StageWork] = {}
        for number in numbers:
            if number not in given:
                raise InvalidInput(
                    f"the module of stage {number} is missing; this process was given {sorted(given)}{hint}"
                )
            stage = given[number]
            if isinstance(stage, torch.nn.Module):
                module = copy.deepcopy(stage) if number in taken else stage
                mine[number] = SplitStage(module, name=f"stage {number}")
            elif not hasattr(stage, "backward_input"):
                raise InvalidInput(f"stage {number} is a {type(stage).__name__}; give a torch.nn.Module")
            elif number in taken:
                raise InvalidInput(f"stage {number} lies on several ranks, which need copies; give its module")
            else:
                mine[number] = stage
            taken.add(number)
        held.append(mine)
    refuse_sharing({n: s for n, s in given.items() if isinstance(getattr(s, "module", s), torch.nn.Module)}, holders)
    return held


def refuse_sharing(stages: Mapping[int, StageWork | torch.nn.Module], holders: Sequence[Collection[int]]) -> None:
    """Within a rank stages may share parameters and statistics; between ranks nothing would bring them together.

    Parameters
    ----------
    stages
        All that are known here, by number, whether this process runs them or not.
    holders
        The ranks that each stage lies on.

    Raises
    ------
    InvalidInput
        If two that lie on no common rank share a parameter, or a buffer that a state dict holds. What it does not
        hold counts as a table of constants.
    """
    owner: dict[int, list[tuple[int, str]]] = {}
    for number, stage in sorted(stages.items()):
        module = stage if isinstance(stage, torch.nn.Module) else stage.module
        shareable: list[tuple[str, str, torch.Tensor]] = [("parameter", n, p) for n, p in module.named_parameters()]
        shareable += [("buffer", n, b) for n, b in _persistent_buffers(module)]
        for what, name, tensor in shareable:
            known = owner.setdefault(id(tensor), [])
            for other, there in known:
                if not set(holders[other]) & set(holders[number]):
                    raise InvalidInput(
                        f"stage {other} ({there}) and stage {number} ({name}) share a {what} but lie on different "
                        "ranks; put them on one rank or give each its own"
                    )
            known.append((number, name))


def _persistent_buffers(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for path, inner in module.named_modules():
        for name, buffer in inner._buffers.items():
            if buffer is not None and name not in inner._non_persistent_buffers_set:
                yield f"{path}.{name}" if path else name, buffer


def device_of(works: Mapping[int, StageWork], rank: int) -> torch.device:
    """The one device that a rank's stages lie on."""
    devices = {t.device for w in works.values() for t in (*w.module.parameters(), *w.module.buffers())}
    if len(devices) > 1:
        shown = ", ".join(sorted(str(d) for d in devices))
        raise InvalidInput(f"the stages of rank {rank} lie on several devices ({shown}); a rank is one device")
    return devices.pop() if devices else torch.device("cpu")
