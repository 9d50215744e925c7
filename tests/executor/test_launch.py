"""How a process learns that it is one of several, under any launcher, and what it says where it cannot."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from tests.executor import pipes
from zbsolve.errors import InvalidInput
from zbsolve.executor.launch import launched
from zbsolve.executor.runtime import Pipeline
from zbsolve.executor.staging import default_transport
from zbsolve.executor.transports import InProcess
from zbsolve.placement import Placement

MASTER = {"MASTER_ADDR": "host", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"WORLD_SIZE": "1"}, None),
        ({"RANK": "2", "WORLD_SIZE": "4", **MASTER}, (2, 4)),
        ({"RANK": "2", "WORLD_SIZE": "4", **MASTER, "TORCHELASTIC_RUN_ID": "x"}, (2, 4)),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4", **MASTER}, (3, 4)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "2", **MASTER}, (1, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1"}, None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, None),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, None),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", **MASTER}, (1, 2)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", **MASTER}, (1, 2)),
        ({"WORLD_SIZE": "4", "SLURM_PROCID": "3", "SLURM_NTASKS": "4", **MASTER}, (3, 4)),
        ({"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "8", **MASTER}, (1, 2)),
        ({"RANK": "0", "WORLD_SIZE": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),
    ],
)
def test_launchers_are_known_by_what_they_set(variables, found):
    launch = launched(variables)
    assert (None if launch is None else (launch.rank, launch.world)) == found


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, r"\(RANK=0, WORLD_SIZE=2\), but MASTER_ADDR and MASTER_PORT are not"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, r"\(SLURM: SLURM_PROCID=0, SLURM_NTASKS=4\), but MASTER_ADDR"),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4", "MASTER_ADDR": "a"}, "MASTER_PORT is not set"),
        ({"WORLD_SIZE": "4", **MASTER}, "WORLD_SIZE is 4 but RANK is not set: set both, as torchrun does"),
        ({"RANK": "1", **MASTER}, "RANK is 1 but WORLD_SIZE is not set"),
        ({"RANK": "one", "WORLD_SIZE": "4", **MASTER}, "RANK is 'one', not a whole number"),
        ({"RANK": "4", "WORLD_SIZE": "4", **MASTER}, "ranks are numbered from 0 to 3"),
        ({"RANK": "0", "WORLD_SIZE": "0", **MASTER}, "WORLD_SIZE is 0, not at least 1"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named_with_what_to_do(variables, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        launched(variables)
    assert "correct" in str(caught.value) or "transport=InProcess(ranks)" in str(caught.value)


def test_as_many_processes_as_ranks():
    with pytest.raises(
        InvalidInput, match=r"is for 3 ranks, but there are 2 processes \(RANK=0, WORLD_SIZE=2\): start 3"
    ):
        default_transport(3, {"RANK": "0", "WORLD_SIZE": "2", **MASTER})
    assert not dist.is_initialized()


def test_a_transport_that_is_given_comes_before_any_launcher(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    table = pipes.timetable(Placement.linear(2), 2)
    with pytest.raises(InvalidInput, match="MASTER_ADDR and MASTER_PORT are not set"):
        Pipeline(table, {0: pipes.model(2)[0]}, pipes.square_loss)
    pipe = Pipeline(table, pipes.model(2), pipes.square_loss, transport=InProcess(2))
    assert len(pipe.ranks) == 2


def test_a_mapping_of_one_ranks_stages_without_a_launcher_says_what_is_missing(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    table = pipes.timetable(Placement.linear(2), 2)
    with pytest.raises(
        InvalidInput, match=r"this process was given \[0\]: all ranks run as threads .* torchrun, set RANK"
    ):
        Pipeline(table, {0: pipes.model(2)[0]}, pipes.square_loss)
    with pytest.raises(InvalidInput, match=r"given for stages \[2\], but the timetable has stages 0 to 1"):
        Pipeline(table, {0: pipes.model(2)[0], 2: pipes.model(2)[1]}, pipes.square_loss)
