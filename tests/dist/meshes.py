"""What a process does in the tests of pipelines in a mesh."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tests.dist.scenarios import Trouble
from tests.executor import pipes
from tests.executor.test_pipeline import adam
from zbsolve.errors import InvalidInput, RunError
from zbsolve.executor import parallel
from zbsolve.executor.gradients import plain_gradients
from zbsolve.executor.optimizer import synchronous_step
from zbsolve.executor.optimizer.verdict import State
from zbsolve.executor.runtime import Pipeline
from zbsolve.executor.updating import chain_of, early_forwards
from zbsolve.placement import Placement

DOUBLE = torch.float64
LIMIT = 100.0
# kept, clipped, kept, overflow, kept
FACTORS = (0.1, 1e5, 0.1, float("inf"), 0.1)
CHECKS = {"max_grad_norm": LIMIT, "check_overflow": True}


def mesh_of(**dims: int) -> DeviceMesh:
    return init_device_mesh("cpu", tuple(dims.values()), mesh_dim_names=tuple(dims))


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def here(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def assert_equal_along(group: dist.ProcessGroup, tensors: dict[object, torch.Tensor]) -> None:
    """Bit by bit the same in all processes of a group."""
    for name, tensor in tensors.items():
        own = here(tensor.detach()).contiguous()
        others = [torch.empty_like(own) for _ in range(group.size())]
        dist.all_gather(others, own, group=group)
        assert all(torch.equal(own, other) for other in others), name


def assert_close(found: dict, reference: dict) -> None:
    for key, tensor in found.items():
        torch.testing.assert_close(whole(tensor), reference[key], rtol=0, atol=1e-10, msg=lambda m, k=key: f"{k}: {m}")


def gradients(pipe: Pipeline) -> dict[tuple[int, str], torch.Tensor]:
    return {key: gradient for key, (gradient,) in pipes.gradients(pipe).items()}


def weights(pipe: Pipeline) -> dict[tuple[int, str], torch.Tensor]:
    return {
        (stage, name): parameter
        for rank in pipe.ranks
        for stage, work in rank.stages.items()
        for name, parameter in work.module.named_parameters()
    }


def part(batch: tuple[torch.Tensor, ...], mesh: DeviceMesh) -> list[torch.Tensor]:
    """What this replica trains on."""
    return [tensor.chunk(mesh["dp"].size())[mesh.get_local_rank("dp")] for tensor in batch]


def training_batches(microbatches: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    found = []
    for step, factor in enumerate(FACTORS):
        inputs, target = pipes.batch(microbatches, dtype=DOUBLE, seed=step)
        found.append((inputs, target * factor))
    return found


def reference_weights(stages: list[nn.Module], batches: list, microbatches: int) -> dict[tuple[int, str], torch.Tensor]:
    """One process, all data, one optimizer, the synchronous rule."""
    named = {(s, n): p for s, stage in enumerate(stages) for n, p in stage.named_parameters()}
    optimizer = adam(list(named.values()))
    verdicts = []
    for batch in batches:
        found, _ = plain_gradients(stages, batch, pipes.square_loss, microbatches)
        for key, parameter in named.items():
            parameter.grad = found[key]
        verdicts.append(synchronous_step([optimizer], **CHECKS)[0].value)
    assert verdicts == ["kept", "clipped", "kept", "skipped", "kept"], verdicts
    return {key: parameter.detach() for key, parameter in named.items()}


def with_early_forwards(placement: Placement, microbatches: int):
    """A timetable in which forwards run before the validation of the step before, so that some run again."""
    for seed in range(1000):
        table = pipes.timetable(placement, microbatches, seed)
        if any(early_forwards(table, chain_of(table))):
            return table
    raise AssertionError(placement)


def trained(make, table, mesh: DeviceMesh, batches: list) -> dict[tuple[int, str], torch.Tensor]:
    """Weights after steps that are kept, clipped and skipped: bitwise alike with and without a barrier."""
    found = []
    for synchronous in (True, False):
        options = {"optimizer": adam, "synchronous": synchronous, **CHECKS}
        with Pipeline(table, make(), pipes.square_loss, mesh=mesh, **options) as pipe:
            pipe.steps(batches)
            pipe.flush()
            assert [v.verdict.value for v in pipe.validations] == ["kept", "clipped", "kept", "skipped", "kept"]
            if not synchronous:
                assert any(v.rerun for v in pipe.validations)
            found.append({key: here(p.detach()).clone() for key, p in weights(pipe).items()})
            last = {key: p.detach() for key, p in weights(pipe).items()}
    assert all(torch.equal(found[0][key], found[1][key]) for key in found[0])
    return last


class Normed(nn.Module):
    """Batch statistics, and a weight that only every other call uses."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(pipes.WIDTH, dtype=DOUBLE)
        self.idle = nn.Parameter(torch.ones(3, dtype=DOUBLE))
        self.used = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        return x * self.idle[:1] if self.used else x


def data_parallel(rank: int, directory: Path) -> None:
    """Pp 2 x dp 2: gradients of the whole batch, replicas bitwise equal, sent off while the row goes on."""
    mesh = mesh_of(pp=2, dp=2)
    replicas, column = mesh.get_group("dp"), mesh.get_local_rank("dp")
    placements = Placement.looped(2, 2), Placement.v(2), Placement.linear(2), Placement.bidirectional(2)
    for number, placement in enumerate(placements):
        table = pipes.timetable(placement, 4, seed=number)
        data = pipes.batch(8, dtype=DOUBLE, rows=4)
        stages = pipes.model(placement.stages, dtype=DOUBLE)
        stages[-1] = nn.Sequential(stages[-1], Normed())
        reference, _ = plain_gradients(pipes.clones(stages), data, pipes.square_loss, 8)
        if column:
            for stage in stages:
                for p in stage.parameters():
                    p.data.add_(1.0)  # the first replica's weights are what counts
        sent: list[int] = []
        with Pipeline(table, stages, pipes.square_loss, mesh=mesh) as pipe, pytest.MonkeyPatch.context() as patch:
            plain = dist.all_reduce

            def noted(*arguments, pipe=pipe, sent=sent, plain=plain, **named):
                if named.get("async_op"):
                    sent.append(pipe.ranks[0].at[0])
                return plain(*arguments, **named)

            patch.setattr(dist, "all_reduce", noted)
            for times in (1, 2):
                pipe.step(*part(data, mesh))  # the second time on top of the first
                found = gradients(pipe)
                for key in found.keys() - reference.keys():
                    assert key[1] == "1.idle"
                    # stages on several ranks get zeros for what nobody uses
                    assert found[key] is None or not found[key].any()
                    del found[key]
                assert_close(found, {key: times * gradient for key, gradient in reference.items()})
                assert_equal_along(replicas, found)
                work = pipe.ranks[0].stages[max(pipe.ranks[0].stages)]
                assert_equal_along(replicas, dict(work.module.named_buffers()))
            # one replica alone uses a weight: both get its gradient
            for work in pipe.ranks[0].stages.values():
                for module in work.module.modules():
                    if isinstance(module, Normed):
                        module.used = column == 1
            pipe.zero_grad()
            pipe.step(*part(data, mesh))
            found = gradients(pipe)
            assert None not in found.values()
            assert_equal_along(replicas, found)
            calls = len(pipe.ranks[0].training.calls)
            if len(placement.routes) == 1:
                assert len(sent) == 3 * len(pipe.ranks[0].stages)
                assert all(0 <= at < calls for at in sent)
            if placement.stages > 2:
                computes = [i for i, a in enumerate(pipe.ranks[0].training.actions) if a.do.value == "compute"]
                assert min(sent) < computes[-1], (sent, computes[-1])


class Mixed(nn.Module):
    """Two types, a weight that does not lie in memory row by row, and one that other stages use as well."""

    def __init__(self, shared: nn.Linear) -> None:
        super().__init__()
        self.shared = shared
        self.conv = nn.Conv2d(2, 2, 2, padding=1, dtype=DOUBLE).to(memory_format=torch.channels_last)
        self.small = nn.Parameter(torch.randn(pipes.WIDTH, dtype=torch.float32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x.view(-1, 2, 2, 1)).flatten(1)[:, : pipes.WIDTH]
        return (self.shared(y).tanh() * self.small).to(DOUBLE)


def buckets(rank: int, directory: Path) -> None:
    """Many small buckets; and a weight of two stages sets out with the last of them."""
    mesh = mesh_of(pp=2, dp=2)
    torch.manual_seed(0)
    shared = [nn.Linear(pipes.WIDTH, pipes.WIDTH, dtype=DOUBLE) for _ in range(2)]
    stages = [Mixed(shared[s % 2]) for s in range(4)]
    data = pipes.batch(8, dtype=DOUBLE)
    reference, _ = plain_gradients(pipes.clones(stages), data, pipes.square_loss, 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel, "_BUCKET_BYTES", 100)
        table = pipes.timetable(Placement.looped(2, 2), 4)
        with Pipeline(table, pipes.clones(stages), pipes.square_loss, mesh=mesh) as pipe:
            for times in (1, 2):
                pipe.step(*part(data, mesh))
                found = gradients(pipe)
                assert found[rank // 2, "conv.weight"].is_contiguous(memory_format=torch.channels_last)
                small = {key: found.pop(key) for key in list(found) if key[1] == "small"}
                for key, gradient in small.items():
                    torch.testing.assert_close(gradient, times * reference[key])
                assert_close(found, {key: times * g for key, g in reference.items()})
                assert_equal_along(mesh.get_group("dp"), {key: g.contiguous() for key, g in (found | small).items()})


def accumulation(rank: int, directory: Path) -> None:
    """Two steps make an update: gradients travel once, in the second."""
    mesh = mesh_of(pp=2, dp=2)
    table = pipes.timetable(Placement.linear(2), 4, seed=1)
    stages = pipes.model(2, dtype=DOUBLE)
    data = pipes.batch(16, dtype=DOUBLE)
    reference, _ = plain_gradients(pipes.clones(stages), data, pipes.square_loss, 16)
    with Pipeline(table, stages, pipes.square_loss, mesh=mesh, accumulation_steps=2) as pipe:
        for half in zip(*(tensor.chunk(2) for tensor in data), strict=True):
            pipe.step(*part(half, mesh))
        assert_close(gradients(pipe), reference)
        assert_equal_along(mesh.get_group("dp"), gradients(pipe))


def data_parallel_training(rank: int, directory: Path) -> None:
    """Pp 2 x dp 2 with clipping, skipping, and forwards that run again."""
    mesh = mesh_of(pp=2, dp=2)
    for placement in (Placement.linear(2), Placement.looped(2, 2)):
        table = with_early_forwards(placement, 4)
        stages = pipes.model(placement.stages, dtype=DOUBLE)
        expected = reference_weights(pipes.clones(stages), training_batches(8), 8)
        found = trained(
            lambda stages=stages: pipes.clones(stages),
            table,
            mesh,
            [part(batch, mesh) for batch in training_batches(8)],
        )
        assert_close(found, expected)
        assert_equal_along(mesh.get_group("dp"), found)


def data_parallel_trap(rank: int, directory: Path) -> None:
    """`DistributedDataParallel` in a stage misses what a split backward computes; the pipeline does not."""
    mesh = mesh_of(pp=2, dp=2)
    replicas = mesh.get_group("dp")
    stages, data = pipes.model(2, dtype=DOUBLE), pipes.batch(8, dtype=DOUBLE)
    mine = part(data, mesh)

    plain = DistributedDataParallel(nn.Sequential(*pipes.clones(stages)), process_group=replicas)
    (pipes.square_loss(plain(mine[0]), mine[1])).backward()
    expected = {(int(name[7]), name[9:]): p.grad for name, p in plain.named_parameters()}

    # torch's own split, on its stage 1: what each replica is left with is its own
    inside = DistributedDataParallel(pipes.clones(stages)[1], process_group=replicas)
    leaf = stages[0](mine[0]).detach().requires_grad_()
    loss = pipes.square_loss(inside(leaf), mine[1])
    _, groups = stage_backward_input([loss], None, [leaf], inside.parameters())
    stage_backward_weight(inside.parameters(), groups)
    wrong = {(1, name[7:]): p.grad for name, p in inside.named_parameters()}
    assert max(float((wrong[key] - expected[key]).abs().max()) for key in wrong) > 1e-3

    def row(fused: float):
        asked = pipes.problem(Placement.linear(2), 4)
        return pipes.simulate(asked, pipes.orderly(asked, 3, fused=fused))

    for fused in (0.0, 1.0):
        with Pipeline(row(fused), pipes.clones(stages), pipes.square_loss, mesh=mesh) as pipe:
            pipe.step(*mine)
            assert_close(gradients(pipe), expected)
    with pytest.raises(InvalidInput, match="let the pipeline reduce over replicas"):
        Pipeline(row(0.0), {mesh.get_local_rank("pp"): inside}, pipes.square_loss, mesh=mesh)


class Wide(nn.Module):
    """Two layers that are spread over devices, and a norm that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(pipes.WIDTH, 8)
        self.norm = nn.LayerNorm(pipes.WIDTH)
        self.down = nn.Linear(8, pipes.WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(self.down(self.up(x).tanh()))


def wide_stages(count: int) -> list[nn.Module]:
    torch.manual_seed(3)
    return [Wide().to(DOUBLE) for _ in range(count)]


def spread(stages: list[nn.Module], mesh: DeviceMesh) -> list[nn.Module]:
    return [
        parallelize_module(stage, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()}) for stage in stages
    ]


def tensor_parallel(rank: int, directory: Path) -> None:
    """Pp 2 x tp 2: gradients, and clipping that counts a shard once."""
    mesh = mesh_of(pp=2, tp=2)
    for placement in (Placement.linear(2), Placement.looped(2, 2)):
        table = with_early_forwards(placement, 4)
        stages, data = wide_stages(placement.stages), pipes.batch(4, dtype=DOUBLE)
        reference, loss = plain_gradients(pipes.clones(stages), data, pipes.square_loss, 4)

        def make(stages=stages):
            return spread(pipes.clones(stages), mesh)

        with Pipeline(table, make(), pipes.square_loss, mesh=mesh) as pipe:
            found_loss = pipe.step(*data)
            assert_close(gradients(pipe), reference)
            assert found_loss is None or abs(float(found_loss) - loss) < 1e-10
            plain = {key: g for key, g in gradients(pipe).items() if not isinstance(g, DTensor)}
            assert len(plain) == 2 * len(pipe.ranks[0].stages)
            assert_equal_along(mesh.get_group("tp"), plain)
        with Pipeline(table, make(), pipes.square_loss, mesh=mesh, optimizer=adam, max_grad_norm=LIMIT) as pipe:
            pipe.step(*data)
            pipe.flush()
            norm = torch.stack([g.norm() for g in reference.values()]).norm()
            assert abs(pipe.validations[-1].norm - float(norm)) < 1e-10
        expected = reference_weights(pipes.clones(stages), training_batches(4), 4)
        found = trained(make, table, mesh, training_batches(4))
        assert_close(found, expected)


def ending_in_a_collective(rank: int, directory: Path) -> None:
    """Pp 2 x tp 2, stages that begin and end in tensor-parallel layers: what they return is still on its way."""
    mesh = mesh_of(pp=2, tp=2)
    for placement in (Placement.linear(2), Placement.looped(2, 2)):
        table = with_early_forwards(placement, 4)
        torch.manual_seed(0)
        sizes = pipes.WIDTH, 2 * pipes.WIDTH
        stages = [
            nn.Sequential(nn.Linear(*sizes, dtype=DOUBLE), nn.GELU(), nn.Linear(*sizes[::-1], dtype=DOUBLE))
            for _ in range(placement.stages)
        ]
        data = pipes.batch(4, dtype=DOUBLE)
        reference, _ = plain_gradients(pipes.clones(stages), data, pipes.square_loss, 4)
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        mine = placement.stages_of(mesh.get_local_rank("pp"))
        parallel_stages = {s: parallelize_module(pipes.clones(stages)[s], mesh["tp"], plan) for s in mine}
        with torch.no_grad():
            expected = nn.Sequential(*stages)(data[0])
        for nonfinite in ("warn", "raise"):
            with Pipeline(table, parallel_stages, pipes.square_loss, mesh=mesh, nonfinite=nonfinite) as pipe:
                pipe.step(*data)
                assert_close(gradients(pipe), reference)
                output = pipe.eval(data[0])
                if output is not None:
                    assert type(output) is torch.Tensor
                    torch.testing.assert_close(output, expected, rtol=0, atol=1e-10)
                pipe.zero_grad()


class Hands(nn.Module):
    """Hands on its output spread along the sequence: as a DTensor, or its part."""

    def __init__(self, inner: nn.Module, mesh: DeviceMesh, *, part: bool) -> None:
        super().__init__()
        self.inner, self.mesh, self.part = inner, mesh, part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = DTensor.from_local(self.inner(x), self.mesh, [Replicate()]).redistribute(placements=[Shard(1)])
        return y.to_local() if self.part else y


class Takes(nn.Module):
    """Takes its part of an input that is spread along the sequence."""

    def __init__(self, inner: nn.Module, mesh: DeviceMesh) -> None:
        super().__init__()
        self.inner, self.mesh = inner, mesh

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = DTensor.from_local(x, self.mesh, [Shard(1)]).redistribute(placements=[Replicate()])
        return self.inner(y.to_local())


def handing_on_shards(rank: int, directory: Path) -> None:
    """Pp 2 x tp 2: a DTensor has no way to another rank, each device's part of one has."""
    mesh = mesh_of(pp=2, tp=2)
    table = pipes.timetable(Placement.linear(2), 4, seed=1)
    stages, data = wide_stages(2), pipes.batch(4, dtype=DOUBLE)
    reference, _ = plain_gradients(pipes.clones(stages), data, pipes.square_loss, 4)

    def make(*, part: bool) -> list[nn.Module]:
        first, second = spread(pipes.clones(stages), mesh)
        return [Hands(first, mesh["tp"], part=part), Takes(second, mesh["tp"])]

    with Pipeline(table, make(part=True), pipes.square_loss, mesh=mesh) as pipe:
        pipe.step(*data)
        assert_close({(s, name.removeprefix("inner.")): g for (s, name), g in gradients(pipe).items()}, reference)
    with (
        pytest.raises(RunError, match=r"stage 0 hands a DTensor to another rank.* end the stage with .to_local"),
        Pipeline(table, make(part=False), pipes.square_loss, mesh=mesh) as pipe,
    ):
        pipe.step(*data)


def replicas_of_tensor_parallel(rank: int, directory: Path) -> None:
    """Pp 1 x dp 2 x tp 2: shards are averaged with their own kind."""
    mesh = mesh_of(pp=1, dp=2, tp=2)
    table = pipes.timetable(Placement.linear(1), 4)
    stages, data = wide_stages(1), pipes.batch(8, dtype=DOUBLE)
    reference, _ = plain_gradients(pipes.clones(stages), data, pipes.square_loss, 8)
    other = spread(pipes.clones(stages), mesh)
    for p in other[0].parameters():
        p.data += mesh.get_local_rank("dp")
    with Pipeline(table, other, pipes.square_loss, mesh=mesh) as pipe:
        pipe.step(*part(data, mesh))
        assert_close(gradients(pipe), reference)
        assert_equal_along(mesh.get_group("dp"), gradients(pipe))
    expected = reference_weights(pipes.clones(stages), training_batches(8), 8)
    options = {"optimizer": adam, **CHECKS}
    with Pipeline(table, spread(pipes.clones(stages), mesh), pipes.square_loss, mesh=mesh, **options) as pipe:
        pipe.steps([part(batch, mesh) for batch in training_batches(8)])
        pipe.flush()
        assert_close(weights(pipe), expected)


def fully_sharded(rank: int, directory: Path) -> None:
    """Pp 2 x dp 2, with weights sharded over the replicas where asked: FSDP takes those means itself."""
    mesh = mesh_of(pp=2, dp=2)
    for placement in (Placement.linear(2), Placement.v(2)):
        table = with_early_forwards(placement, 4)
        stages, data = wide_stages(placement.stages), pipes.batch(8, dtype=DOUBLE)
        reference, _ = plain_gradients(pipes.clones(stages), data, pipes.square_loss, 8)

        def make(stages=stages):
            made = pipes.clones(stages)
            for s, stage in enumerate(made):
                if s % 4 != 3:
                    fully_shard(stage.up, mesh=mesh["dp"])
                if s % 4 in (0, 2):
                    fully_shard(stage, mesh=mesh["dp"])
            return made

        with Pipeline(table, make(), pipes.square_loss, mesh=mesh) as pipe:
            for times in (1, 2):
                pipe.step(*part(data, mesh))
                assert_close(gradients(pipe), {key: times * g for key, g in reference.items()})
            sharded = {s for (s, _), g in gradients(pipe).items() if isinstance(g, DTensor)}
            assert sharded == {s for s in pipe.ranks[0].stages if s != 3}
            expected = data[0]
            with torch.no_grad():
                for stage in stages:
                    expected = stage(expected)
            output = pipe.eval(part(data, mesh)[0])
            assert output is None or torch.allclose(output, part((expected,), mesh)[0])
            # what the evaluation gathered is no weight whose gradient could be dropped
            pipe.zero_grad()
            pipe.step(*part(data, mesh))
            assert_close(gradients(pipe), reference)
        expected = reference_weights(pipes.clones(stages), training_batches(8), 8)
        found = trained(make, table, mesh, [part(batch, mesh) for batch in training_batches(8)])
        assert_close(found, expected)


def agreement(rank: int, directory: Path) -> None:
    """Devices of one rank that differ in the last bit, or in more, act as one; those of other ranks have no say."""
    mesh = mesh_of(pp=2, tp=2)
    place = parallel.MeshPlace(mesh)
    agree = place.agreed(torch.device("cpu"))
    low = 1.0 + mesh.get_local_rank("pp")
    high = float(torch.nextafter(torch.tensor(low, dtype=DOUBLE), torch.tensor(9.0, dtype=DOUBLE)))
    second = mesh.get_local_rank("tp") == 1
    assert agree(State(step=3, overflow=False, square_sum=high if second else low)).square_sum == high
    found = agree(State(step=4, overflow=second, square_sum=low, wide=not second))
    assert (found.step, found.overflow, found.wide, found.square_sum) == (4, True, True, low)
    assert math.isnan(agree(State(step=5, overflow=True, square_sum=low if second else math.nan)).square_sum)
    assert agree(State(step=6, overflow=True, square_sum=low if second else math.inf)).square_sum == math.inf
    place.transport.close()
    alone = parallel.MeshPlace(mesh_of(pp=2, dp=2))
    assert alone.agreed(torch.device("cpu")) is None
    alone.transport.close()


def refused(rank: int, directory: Path) -> None:
    """What cannot be a pipeline's mesh, in words."""
    table = pipes.timetable(Placement.linear(2), 4)
    stages = pipes.model(2)
    mesh = mesh_of(pp=2, dp=2)
    for bad, message in (
        (init_device_mesh("cpu", (2, 2)), "does not name its dimensions; name one of them 'pp'"),
        (mesh_of(dp=2, tp=2), r"names its dimensions \('dp', 'tp'\); name one of them 'pp'"),
        (mesh_of(pp=4), "the timetable is for 2 ranks, but the mesh's dimension 'pp' has 4"),
    ):
        with pytest.raises(InvalidInput, match=message):
            Pipeline(table, stages, pipes.square_loss, mesh=bad)
    foreign = mesh_of(pp=2, shard=2)
    with pytest.raises(
        InvalidInput, match=r"is sharded by FSDP over \('shard',\): shard it over the pipeline's replicas"
    ):
        Pipeline(
            table, [fully_shard(m, mesh=foreign["shard"]) for m in pipes.model(2)], pipes.square_loss, mesh=foreign
        )
    other = pipes.timetable(Placement.linear(2), 4, seed=1)
    with pytest.raises(InvalidInput, match="are replicas of each other, but their stages or timetables differ"):
        Pipeline((table, other)[mesh.get_local_rank("dp")], stages, pipes.square_loss, mesh=mesh)


def trouble(rank: int, directory: Path, *, what: str, dims: dict[str, int]) -> None:
    """Process 1 gets into trouble in its second step."""
    mesh = mesh_of(**dims)
    table = pipes.timetable(Placement.linear(dims["pp"]), 4, seed=1)
    stages: list[nn.Module] = pipes.model(dims["pp"])
    if "tp" in dims:
        stages = [spread([Wide()], mesh)[0] for _ in stages]
    if rank == 1:
        at = mesh.get_local_rank("pp")
        stages[at] = Trouble(stages[at], 6, directory, what)
        stages[at] = Renamed(stages[at])
    else:
        stages = [Renamed(Trouble(stage, -1, directory, what)) for stage in stages]
    with Pipeline(table, stages, pipes.square_loss, mesh=mesh) as pipe:
        (directory / f"pid-{rank}").write_text(str(os.getpid()))
        pipe.steps([pipes.batch(4)] * 50)


class Renamed(nn.Sequential):
    """So that all replicas have the same names."""
