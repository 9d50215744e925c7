"""What a rank does in the tests with processes."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from tests.executor import attention, pipes
from tests.executor.test_pipeline import Several, adam
from tests.strategies import random_order
from zbsolve.catalog import baseline
from zbsolve.check import check
from zbsolve.executor.gradients import plain_gradients
from zbsolve.executor.runtime import Pipeline
from zbsolve.executor.transports import Distributed
from zbsolve.lowering import lower
from zbsolve.placement import Placement
from zbsolve.profile import HostLink
from zbsolve.simulate import simulate
from zbsolve.solver.away import moved

PLACEMENTS = {
    "linear": Placement.linear(4),
    "looped": Placement.looped(4, 2),
    "v": Placement.v(4),
    "wave": Placement.wave(4, 4),
    "bidirectional": Placement.bidirectional(4),
    "custom": Placement.custom([2, 0, 0, 3, 1, 2]),
}


def equality(rank: int, directory: Path) -> None:
    """Gradients, losses, evaluation and trace on every placement, in float64."""
    for number, (name, placement) in enumerate(PLACEMENTS.items()):
        stages = pipes.model(placement.stages, dtype=torch.float64)
        data = pipes.batch(4, dtype=torch.float64)
        table = pipes.timetable(placement, 4, seed=number, keeps_order=False)
        reference, loss = plain_gradients(pipes.clones(stages), data, pipes.square_loss, 4)
        holds_first, holds_last = rank in placement.holders(0), rank in placement.holders(placement.stages - 1)
        mine = {s: stages[s] for s in placement.stages_of(rank)}
        with Pipeline(table, mine, pipes.square_loss) as pipe:
            for _ in range(2):
                pipe.zero_grad()
                found = pipe.step(data[0] if holds_first else None, data[1] if holds_last else None)
                for key, (gradient,) in pipes.gradients(pipe).items():
                    torch.testing.assert_close(gradient, reference[key], rtol=0, atol=1e-10, msg=f"{name} {key}")
                assert (found is not None) == holds_last, name
                assert found is None or abs(float(found) - loss) < 1e-10, name
            # as many receive slots as are needed at once, whatever the number of microbatches
            buffers, slots = lower(table).buffers[rank], pipe.ranks[0].endpoint._mails[0]._slots
            assert len(slots["forward"]._storages) == buffers.forward_slots, name
            assert len(slots["backward"]._storages) == buffers.backward_slots, name
            expected = data[0]
            with torch.no_grad():
                for stage in stages:
                    expected = stage(expected)
            for rows in (8, 4):
                output = pipe.eval(data[0][:rows] if holds_first else None)
                assert (output is not None) == holds_last, name
                if holds_last:
                    torch.testing.assert_close(output, expected[:rows])
            trace = pipe.trace()
            assert trace.order == table.order
            check(table.problem, trace)
            assert len(trace.steps) == 2
            assert trace.clock_error_ns > 0
        print(name, "done", flush=True)


def offload(rank: int, directory: Path) -> None:
    """Activations away between forward and backward: gradients bitwise those of the same order without, and a trace."""
    for name in ("linear", "v", "bidirectional"):
        placement = PLACEMENTS[name]
        plain = pipes.timetable(placement, 4, seed=3, keeps_order=False)
        profile = replace(plain.problem.profile, host_link=HostLink())
        problem = replace(plain.problem, profile=profile, allow=frozenset({"split", "fused", "offload"}))
        away = simulate(problem, moved(plain.order, range(placement.stages)))
        data, found = pipes.batch(4), []
        for table in (plain, away):
            stages = pipes.model(placement.stages)
            mine = {s: stages[s] for s in placement.stages_of(rank)}
            with Pipeline(table, mine, pipes.square_loss) as pipe:
                for _ in range(2):
                    pipe.zero_grad()
                    pipe.step(*data)
                found.append({key: gradient.clone() for key, (gradient,) in pipes.gradients(pipe).items()})
                trace = pipe.trace()
        assert found[0].keys() == found[1].keys()
        assert all(torch.equal(found[0][key], found[1][key]) for key in found[0]), name
        check(problem, trace)
        assert trace.order == away.order
        print(name, "done", flush=True)


def slices(rank: int, directory: Path) -> None:
    """Sequences in slices: what stages carry stays on its process, and gradients are those of whole sequences."""
    sequences, count = 4, 3
    for placement in (PLACEMENTS["linear"], PLACEMENTS["bidirectional"]):
        asked = attention.problem(placement, sequences, count)
        order = baseline("seq-1f1b", asked) if placement.name == "linear" else random_order(asked, 1)
        stages = attention.model(placement.stages)
        x, target = attention.batch(sequences, 4 * count)
        holds_first, holds_last = rank in placement.holders(0), rank in placement.holders(placement.stages - 1)
        reference = pipes.clones(stages)
        (attention.loss(attention.whole(reference, x), target)).backward()
        mine = {s: stages[s] for s in placement.stages_of(rank)}
        with Pipeline(simulate(asked, order), mine, attention.loss) as pipe:
            for _ in range(2):
                pipe.zero_grad()
                pipe.step(x if holds_first else None, target if holds_last else None)
                for s, stage in mine.items():
                    for own, plain in zip(stage.parameters(), reference[s].parameters(), strict=True):
                        torch.testing.assert_close(own.grad, plain.grad, rtol=0, atol=1e-10)
            output = pipe.eval(x if holds_first else None)
            if holds_last:
                torch.testing.assert_close(output, attention.whole(reference, x).detach(), rtol=0, atol=1e-10)
        print(placement.name, "done", flush=True)


def post_validation(rank: int, directory: Path) -> None:
    """Weights of post-validated steps are bitwise those of synchronous ones, whatever is clipped or skipped."""
    for number, name in enumerate(("linear", "v", "bidirectional")):
        placement = PLACEMENTS[name]
        table = pipes.timetable(placement, 4, seed=number + 2, keeps_order=False)
        batches = []
        for step, factor in enumerate((1.0, 1000.0, 1.0, float("inf"), 1.0)):
            inputs, target = pipes.batch(4, seed=step)
            batches.append((inputs, target * factor))
        found = []
        for synchronous in (True, False):
            stages = pipes.model(placement.stages)
            mine = {s: stages[s] for s in placement.stages_of(rank)}
            options = {"optimizer": adam, "max_grad_norm": 1.0, "check_overflow": True, "synchronous": synchronous}
            with Pipeline(table, mine, pipes.square_loss, **options) as pipe:
                pipe.steps(batches)
                state = pipe.state_dict()["stages"][rank]
            found.append([tensor.clone() for stage in state.values() for tensor in stage.values()])
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True)), name
        print(name, "done", flush=True)


def side_by_side(rank: int, directory: Path) -> None:
    """Two pipelines of two ranks each, as data parallelism has them."""
    pipelines = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    replicas = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine, stage = pipelines[rank % 2], rank // 2
    stages, whole = pipes.model(2), pipes.batch(8)
    reference, _ = plain_gradients(pipes.clones(stages), whole, pipes.square_loss, 8)
    half = [tensor.chunk(2)[rank % 2] for tensor in whole]
    table = pipes.timetable(Placement.linear(2), 4, 1)
    for _ in range(2):
        with Pipeline(table, {stage: stages[stage]}, pipes.square_loss, transport=Distributed(mine)) as pipe:
            pipe.zero_grad()
            pipe.step(*half)
            for key, (gradient,) in pipes.gradients(pipe).items():
                dist.all_reduce(gradient, group=replicas[stage])
                torch.testing.assert_close(gradient / 2, reference[key])


class Passes(nn.Module):
    """Hands on the very tensor it was given, beside a new one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, original: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        original = x if original is None else original
        return self.linear(x) + original, original


class Two(nn.Module):
    """Gives two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, *x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.first(x[0]), self.second(x[-1])


class Chooses(nn.Module):
    """Uses its second input when that is large in the first place, if it may."""

    def __init__(self, *, ever: bool) -> None:
        super().__init__()
        self.last = nn.Linear(4, 4)
        self.ever = ever

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.last(x + y if self.ever and y[0, 0] > 0 else x)


def unused(rank: int, directory: Path) -> None:
    """Outputs that are never used, or by some microbatches only, get no gradient from those that do not."""
    for ever in (False, True):
        torch.manual_seed(0)
        stages = [Two(), Two(), Two(), Chooses(ever=ever)]
        data = pipes.batch(4)
        for seed in range(2):
            table = pipes.timetable(PLACEMENTS["linear"], 4, seed=seed)
            reference, _ = plain_gradients(pipes.clones(stages), data, pipes.square_loss, 4)
            with Pipeline(table, {rank: stages[rank]}, pipes.square_loss) as pipe:
                for _ in range(2):
                    pipe.zero_grad()
                    pipe.step(*data)
                    for key, (gradient,) in pipes.gradients(pipe).items():
                        assert (gradient is None) == (key not in reference), key
                        assert gradient is None or torch.equal(gradient, reference[key]), key
                    boundary = next(iter(pipe.ranks[0]._boundaries.values()))
                    print(ever, seed, boundary.complete, flush=True)


def tensors(rank: int, directory: Path) -> None:
    """Several tensors of several types, changing between evaluations, and tensors that are only passed on."""
    table = pipes.timetable(PLACEMENTS["linear"], 4, seed=1)
    torch.manual_seed(0)
    several = [Several(first=True), Several(), Several(), Several(last=True)]
    passes = [*(Passes() for _ in range(3)), Several(last=True)]
    passes[3] = nn.Sequential(nn.Identity())
    passes[3].forward = lambda x, original: x * original
    for stages in (several, passes):
        data = pipes.batch(4)
        reference, _ = plain_gradients(pipes.clones(stages[:]), data, pipes.square_loss, 4)
        with Pipeline(table, {rank: stages[rank]}, pipes.square_loss) as pipe:
            for _ in range(3):
                pipe.zero_grad()
                pipe.step(*data)
                for key, (gradient,) in pipes.gradients(pipe).items():
                    assert torch.equal(gradient, reference[key]), key
            for rows in (8, 16):
                inputs = pipes.batch(4, rows=rows // 4, seed=3)[0]
                output, expected = pipe.eval(inputs), inputs
                with torch.no_grad():
                    for stage in stages:
                        expected = stage(*expected) if isinstance(expected, tuple) else stage(expected)
                if output is not None:
                    torch.testing.assert_close(output, expected)


class Trouble(nn.Module):
    """A stage that calls for trouble at one of its calls."""

    def __init__(self, inner: nn.Module, at: int, directory: Path, what: str) -> None:
        super().__init__()
        self.inner, self.at, self.directory, self.what, self.calls = inner, at, directory, what, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = self.inner(x)
        if self.calls != self.at:
            return y
        (self.directory / "trouble").touch()
        if self.what == "raise":
            raise ValueError("no such luck")
        if self.what == "shape":
            return torch.cat([y, y])
        time.sleep(60)
        return y


def trouble(rank: int, directory: Path, *, at: int, what: str, stall_s: float | None = None) -> None:
    """One rank gets into trouble in its second step; the error that the others raise is their own."""
    table = pipes.timetable(Placement.linear(3), 4, seed=1)
    stages = pipes.model(3)
    stages[at] = Trouble(stages[at], 6, directory, what)
    with Pipeline(table, {rank: stages[rank]}, pipes.square_loss, stall_s=stall_s) as pipe:
        (directory / f"pid-{rank}").write_text(str(os.getpid()))
        pipe.steps([pipes.batch(4)] * 50)
