"""Ranks that do not make the same calls, or that fail outside of them; for `tests/dist/test_conduct.py`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.executor import pipes
from zbsolve.errors import RunError
from zbsolve.executor.runtime import Pipeline
from zbsolve.executor.transports import Distributed
from zbsolve.placement import Placement

RANKS = 3


def pipeline(rank: int, **options: Any) -> Pipeline:
    stages = pipes.model(RANKS)
    options = {"optimizer": lambda p: torch.optim.SGD(p, lr=0.1), "max_grad_norm": 1.0, **options}
    return Pipeline(pipes.timetable(Placement.linear(RANKS), 4, seed=1), {rank: stages[rank]}, pipes.square_loss, **options)


def mark(directory: Path) -> None:
    (directory / "trouble").touch()


def fewer_steps_then_close(rank: int, directory: Path, *, odd: int) -> None:
    """One rank makes a step less and closes."""
    with pipeline(rank) as pipe:
        for _ in range(2):
            pipe.step(*pipes.batch(4))
        if rank == odd:
            mark(directory)
        else:
            pipe.step(*pipes.batch(4))


def fewer_steps_then_end(rank: int, directory: Path, *, odd: int) -> None:
    """One rank makes a step less and its process ends, with nothing closed."""
    pipe = pipeline(rank)
    for _ in range(2):
        pipe.step(*pipes.batch(4))
    if rank == odd:
        mark(directory)
    else:
        pipe.step(*pipes.batch(4))


def fewer_batches(rank: int, directory: Path, *, odd: int) -> None:
    """`steps` is given fewer batches on one rank, which then evaluates."""
    with pipeline(rank) as pipe:
        pipe.steps([pipes.batch(4)] * (2 if rank == odd else 3))
        mark(directory)
        pipe.eval(pipes.batch(4)[0])


def other_kind(rank: int, directory: Path, *, odd: int) -> None:
    """One rank evaluates where the others step."""
    with pipeline(rank) as pipe:
        pipe.step(*pipes.batch(4))
        mark(directory)
        if rank == odd:
            pipe.eval(pipes.batch(4)[0])
        else:
            pipe.step(*pipes.batch(4))
        time.sleep(60)


def stays_away(rank: int, directory: Path, *, odd: int) -> None:
    """One rank stays in its own code."""
    with pipeline(rank, away_s=1.0) as pipe:
        pipe.step(*pipes.batch(4))
        if rank == odd:
            mark(directory)
            time.sleep(4)
        pipe.step(*pipes.batch(4))


def late_but_comes(rank: int, directory: Path) -> None:
    """A rank takes its time between calls and in its first step; nobody is stopped for it."""
    with pipeline(rank, away_s=30.0) as pipe:
        if rank == 1:
            time.sleep(1.2)
        pipe.step(*pipes.batch(4))
        if rank == 0:
            time.sleep(1.2)
        pipe.eval(pipes.batch(4)[0])
        if rank == 2:
            time.sleep(1.2)


def raises_between(rank: int, directory: Path, *, odd: int, guarded: bool) -> None:
    """One rank fails in its own code between two steps."""
    if guarded:
        with pipeline(rank) as pipe:
            _raise_between(pipe, rank, directory, odd)
    else:
        _raise_between(pipeline(rank), rank, directory, odd)


def _raise_between(pipe: Pipeline, rank: int, directory: Path, odd: int) -> None:
    pipe.step(*pipes.batch(4))
    if rank == odd:
        mark(directory)
        raise LookupError("no such file")
    pipe.step(*pipes.batch(4))


def other_timetable(rank: int, directory: Path, *, odd: int) -> None:
    """One rank has another timetable, whose messages come in another order."""
    stages = pipes.model(RANKS)
    table = pipes.timetable(Placement.linear(RANKS), 4, seed=2 if rank == odd else 1)
    mark(directory)
    with Pipeline(table, {rank: stages[rank]}, pipes.square_loss) as pipe:
        pipe.step(*pipes.batch(4))


def no_pipeline(rank: int, directory: Path, *, odd: int) -> None:
    """One rank cannot make its pipeline."""
    stages = pipes.model(RANKS)
    mark(directory)
    mine = {} if rank == odd else {rank: stages[rank]}
    with Pipeline(pipes.timetable(Placement.linear(RANKS), 4, seed=1), mine, pipes.square_loss) as pipe:
        pipe.step(*pipes.batch(4))


def tied(rank: int, directory: Path, *, odd: int) -> None:
    """All ranks are given all stages, and the first and the last share a weight; the one between could not know."""
    stages = pipes.model(RANKS)
    stages[2][0].weight = stages[0][0].weight
    mark(directory)
    with Pipeline(pipes.timetable(Placement.linear(RANKS), 4, seed=1), stages, pipes.square_loss) as pipe:
        pipe.step(*pipes.batch(4))


def steps_once_closed(rank: int, directory: Path) -> None:
    """All ranks close, and ask for more."""
    with pipeline(rank) as pipe:
        pipe.step(*pipes.batch(4))
        pipe.flush()
    for call in (lambda: pipe.step(*pipes.batch(4)), lambda: pipe.eval(pipes.batch(4)[0]), pipe.trace):
        try:
            call()
        except RunError as error:
            assert "closed" in str(error), error
        else:
            raise AssertionError(call)


def drops_it(rank: int, directory: Path, *, odd: int) -> None:
    """One rank lets go of its pipeline and lives on."""
    pipe = pipeline(rank)
    pipe.step(*pipes.batch(4))
    if rank == odd:
        del pipe
        mark(directory)
        time.sleep(4)
    else:
        pipe.step(*pipes.batch(4))


def flushes_alone(rank: int, directory: Path, *, odd: int) -> None:
    """One rank alone asks for the state, which has to be validated first."""
    with pipeline(rank) as pipe:
        pipe.step(*pipes.batch(4))
        mark(directory)
        if rank == odd:
            pipe.state_dict()
        pipe.step(*pipes.batch(4))


def dies_between(rank: int, directory: Path, *, odd: int) -> None:
    """One rank is gone at once, between two steps."""
    with pipeline(rank) as pipe:
        pipe.step(*pipes.batch(4))
        if rank == odd:
            mark(directory)
            os._exit(9)
        pipe.step(*pipes.batch(4))


def state_without_messages(rank: int, directory: Path) -> None:
    """Where nothing waits for its validation a rank may save alone."""
    with pipeline(rank, max_grad_norm=None) as pipe:
        pipe.step(*pipes.batch(4))
        if rank == 1:
            pipe.state_dict()
        pipe.step(*pipes.batch(4))
    with pipeline(rank, synchronous=True) as pipe:
        pipe.step(*pipes.batch(4))
        if rank == 1:
            pipe.state_dict()
        pipe.step(*pipes.batch(4))


def optimizer_raises(rank: int, directory: Path, *, odd: int) -> None:
    """The optimizer of one rank fails."""

    class Bad(torch.optim.SGD):
        def step(self, closure=None):
            mark(directory)
            raise ArithmeticError("no step")

    kind = Bad if rank == odd else torch.optim.SGD
    with pipeline(rank, optimizer=lambda p: kind(p, lr=0.1)) as pipe:
        for _ in range(3):
            pipe.step(*pipes.batch(4))


def nan_loss(rank: int, directory: Path) -> None:
    """The loss is no number in one step: told, and everything goes on."""
    inputs, target = pipes.batch(4)
    spoilt = target.clone()
    spoilt[3, 0] = float("nan")
    with pipeline(rank, check_overflow=True) as pipe:
        pipe.steps([(inputs, target), (inputs, spoilt), (inputs, target)])
        pipe.flush()
        assert [v.overflow for v in pipe.validations] == [False, True, False]
        found = [(one.step, one.microbatch, one.stage) for one in pipe.nonfinite]
        assert found == ([(1, 1, 2)] if rank == 2 else []), found


def nan_raises(rank: int, directory: Path) -> None:
    """The loss is no number, and that is to stop everyone."""
    inputs, target = pipes.batch(4)
    inputs[3, 0] = float("nan")
    mark(directory)
    with pipeline(rank, nonfinite="raise") as pipe:
        pipe.step(inputs, target)


def taking_turns(rank: int, directory: Path) -> None:
    """Two pipelines on one transport, step by step in turns, and each alone: the same weights."""

    def weights(seeds: Sequence[int], transport: Distributed) -> list[torch.Tensor]:
        pipes_made = [pipeline(rank, transport=transport, max_grad_norm=limit) for limit in seeds]
        for step in range(3):
            for pipe in pipes_made:
                pipe.step(*pipes.batch(4, seed=step))
        return [p.clone() for pipe in reversed(pipes_made) for p in pipe.state_dict()["stages"][rank][rank].values()]

    transport = Distributed()
    both = weights([0.01, 0.02], transport)
    alone = weights([0.02], transport) + weights([0.01], transport)
    assert all(torch.equal(a, b) for a, b in zip(both, alone, strict=True))
    assert sum(thread.name.startswith("zbsolve") for thread in threading.enumerate()) == 2
    transport.close()


def replica_makes_fewer(rank: int, directory: Path, *, closes: bool) -> None:
    """Of two replicas of two ranks one makes a step less; `closes`, or goes on with something else."""
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    stages = pipes.model(2)
    table = pipes.timetable(Placement.linear(2), 4, seed=1)
    with Pipeline(table, {rank % 2: stages[rank % 2]}, pipes.square_loss, mesh=mesh) as pipe:
        for _ in range(2):
            pipe.step(*pipes.batch(4))
        mark(directory)
        if rank >= 2:
            if not closes:
                pipe.eval(pipes.batch(4)[0])
            return
        pipe.step(*pipes.batch(4))
