"""Whose stages are where: the modules of every rank, their device, and how the ranks are connected."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from zbsolve.errors import InvalidInput
from zbsolve.executor.program import StageWork
from zbsolve.executor.split import SplitStage
from zbsolve.executor.transports import Distributed, InProcess
from zbsolve.executor.transports.protocol import Transport

__all__ = ["Stages", "default_transport", "device_of", "stages_of_ranks"]

Stage = torch.nn.Module | StageWork
Stages = Sequence[Stage] | Mapping[int, Stage]


def default_transport(ranks: int) -> Transport:
    """Threads, unless this process was started as one of several."""
    if not dist.is_available():
        return InProcess(ranks)
    if not dist.is_initialized() and "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ["WORLD_SIZE"]) > 1:
        dist.init_process_group()
    if dist.is_initialized() and dist.get_world_size() > 1:
        return Distributed()
    return InProcess(ranks)


def stages_of_ranks(stages: Stages, count: int, wanted: Sequence[Sequence[int]]) -> list[dict[int, StageWork]]:
    """The stages of each rank of this process; a module that several hold is copied for all but the first."""
    given = dict(stages) if isinstance(stages, Mapping) else dict(enumerate(stages))
    if not isinstance(stages, Mapping) and len(given) != count:
        raise InvalidInput(f"the timetable has {count} stages, but {len(given)} modules were given")
    taken: set[int] = set()
    held = []
    for numbers in wanted:
        mine: dict[int, StageWork] = {}
        for number in numbers:
            if number not in given:
                raise InvalidInput(f"the module of stage {number} is missing; this process was given {sorted(given)}")
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
    _refuse_sharing(held)
    return held


def _refuse_sharing(held: Sequence[Mapping[int, StageWork]]) -> None:
    """Within a rank stages may share parameters; between ranks nothing would sum the gradients."""
    owner: dict[int, tuple[int, int, str]] = {}
    for rank, works in enumerate(held):
        for stage, work in works.items():
            for name, parameter in work.module.named_parameters():
                first, other, there = owner.setdefault(id(parameter), (rank, stage, name))
                if first != rank:
                    raise InvalidInput(
                        f"stage {other} ({there}) and stage {stage} ({name}) share a parameter but lie on different "
                        "ranks; put them on one rank or give each its own"
                    )


def device_of(works: Mapping[int, StageWork], rank: int) -> torch.device:
    """The one device that a rank's stages lie on."""
    devices = {t.device for w in works.values() for t in (*w.module.parameters(), *w.module.buffers())}
    if len(devices) > 1:
        shown = ", ".join(sorted(str(d) for d in devices))
        raise InvalidInput(f"the stages of rank {rank} lie on several devices ({shown}); a rank is one device")
    return devices.pop() if devices else torch.device("cpu")
