"""A pipeline as one dimension of a mesh of processes: replicas beside it, groups of devices within its ranks.

::

    mesh dims       who answers for them
    pp              the pipeline: one rank a coordinate
    dp              the pipeline: its replicas train on different data, gradients are averaged (`ReplicaMean`)
    all others      the modules of the stages: DTensors over "tp"; all along these dimensions get the same data

Weights may be sharded over "dp" by `fully_shard`: FSDP then takes their means itself, microbatch by microbatch.

A stage's gradients set out as soon as its last W is done, and travel while the row goes on::

    replica 0   F0 F1 B1 W1 of stage 3 | F0 of stage 1 ... W1 of stage 1 | end: wait, step
                                       `-------- mean over replicas ---------'
    replica 1   F0 F1 B1 W1 of stage 3 | F0 of stage 1 ... W1 of stage 1 | end: wait, step

`DistributedDataParallel` inside a stage cannot do this: it reduces what autograd adds to ``.grad`` and
never hears of a gradient that W computes. Here the row says when a stage is complete.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from zbsolve.errors import InvalidInput
from zbsolve.executor.lazy import refuse_lazy
from zbsolve.executor.optimizer.gradients import local
from zbsolve.executor.optimizer.verdict import State
from zbsolve.executor.split.install import is_a
from zbsolve.executor.transports import Distributed

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["MeshPlace", "ReplicaMean"]

PIPELINE = "pp"
REPLICAS = "dp"
_BUCKET_BYTES = 25 << 20

Modules = Mapping[int, torch.nn.Module]


class MeshPlace:
    """Where this process stands in a mesh.

    Parameters
    ----------
    mesh
        With named dimensions, ``"pp"`` among them.

    Attributes
    ----------
    transport
        The connections of this pipeline; a failure anywhere in the mesh stops it.
    replicas
        The processes that hold the same stages for other data; None without replicas.
    within
        Those that share this rank's stages, one group for each dimension left.

    Raises
    ------
    InvalidInput
        If the mesh has no names, no ``"pp"``, or does not hold this process.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        names = getattr(mesh, "mesh_dim_names", None)
        if not names or PIPELINE not in names:
            said = f"names its dimensions {tuple(names)}" if names else "does not name its dimensions"
            raise InvalidInput(
                f"the mesh {said}; name one of them {PIPELINE!r}, as init_device_mesh('cpu', (2, 2), "
                f"mesh_dim_names=({PIPELINE!r}, {REPLICAS!r})) does"
            )
        if mesh.get_coordinate() is None:
            raise InvalidInput(f"process {dist.get_rank()} is not in the mesh, so it cannot take part in the pipeline")
        sizes = dict(zip(names, mesh.mesh.shape, strict=True))
        self.replicas: dist.ProcessGroup | None = mesh.get_group(REPLICAS) if sizes.get(REPLICAS, 1) > 1 else None
        self.within: tuple[dist.ProcessGroup, ...] = tuple(
            mesh.get_group(name) for name in names if name not in (PIPELINE, REPLICAS) and sizes[name] > 1
        )
        self.transport = Distributed(mesh.get_group(PIPELINE), everyone=mesh.mesh.flatten().tolist())

    def means(self, modules: Modules, *, late: Iterable[int], same: str) -> list[ReplicaMean]:
        """What averages the gradients of this rank, if it has replicas; parameters as of `ReplicaMean`."""
        for stage, module in modules.items():
            self._refuse_foreign_shards(stage, module)
        if self.replicas is None:
            return []
        return [
            ReplicaMean(
                self.replicas,
                modules,
                late=late,
                stopped=lambda error: self.transport.health.stopped(None, error),
                same=same,
            )
        ]

    def _refuse_foreign_shards(self, stage: int, module: torch.nn.Module) -> None:
        """FSDP averages over what it shards over, so whatever it leaves whole must be averaged over the same."""
        replicas = set() if self.replicas is None else set(dist.get_process_group_ranks(self.replicas))
        for name, inner in module.named_modules():
            if not is_a(inner, "FSDPModule"):
                continue
            for parameter in inner.parameters():
                others = set(_spread_over(parameter)) - {dist.get_rank()}
                if others and not (replicas and replicas - {dist.get_rank()} <= others):
                    dims = getattr(getattr(parameter, "device_mesh", None), "mesh_dim_names", None)
                    where = f"stage {stage} ({name or 'the stage itself'})"
                    raise InvalidInput(
                        f"{where} is sharded by FSDP over {dims or 'a mesh'}: shard it over the pipeline's replicas, "
                        f"fully_shard(module, mesh=mesh[{REPLICAS!r}])"
                    )

    def agreed(self, device: torch.device) -> Callable[[State], State] | None:
        """For `PostValidatedOptimizer`: the one state of all who share this rank's stages; None where it is alone.

        Gradients that are not sharded are computed by each of them, perhaps with another last bit, and
        DTensors are counted as a whole by all; the largest sum is everybody's.
        """
        if not self.within:
            return None

        def agree(own: State) -> State:
            # a NaN has no place in an order, so it goes by itself
            lost = math.isnan(own.square_sum)
            words = [own.overflow, own.wide, lost, 0.0 if lost else own.square_sum]
            total = torch.tensor([float(word) for word in words], dtype=torch.float64, device=device)
            for group in self.within:
                dist.all_reduce(total, op=dist.ReduceOp.MAX, group=group)
            overflow, wide, lost, square = total.tolist()
            return State(
                step=own.step, overflow=bool(overflow), square_sum=math.nan if lost else square, wide=bool(wide)
            )

        return agree


class ReplicaMean:
    """Averages gradients over the replicas of a pipeline, and keeps the replicas equal.

    Parameters
    ----------
    group
        The processes that hold the same stages.
    modules
        The rank's stages, by number.
    late
        Those whose gradients are complete only at the end of the row, since other ranks add to them.
    stopped
        Makes of a broken connection what is to be raised.
    same
        What the replicas must have in common besides their parameters, such as the timetable.

    Raises
    ------
    InvalidInput
        If the replicas differ in their parameters' names, shapes or types, or in `same`; or if a parameter has no
        shape yet.

    Notes
    -----
    As `DistributedDataParallel` does, it starts with the parameters and buffers of the first replica,
    takes the mean, and hands on the first replica's buffers (batch statistics), though only after each
    update and only those that a state_dict holds. A parameter that no replica has used keeps ``.grad``
    None. Parameters that are sharded over the replicas (`fully_shard`) are left to whoever sharded
    them, who takes the mean, too.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        modules: Modules,
        *,
        late: Iterable[int],
        stopped: Callable[[BaseException], BaseException],
        same: str = "",
    ) -> None:
        self._group = group
        self._size = group.size()
        self._stopped = stopped
        self._late = frozenset(late)
        others = set(dist.get_process_group_ranks(group)) - {dist.get_rank()}
        stages_of: dict[torch.Tensor, set[int]] = {}
        names = []
        for stage in sorted(modules):
            refuse_lazy(stage, modules[stage])
            for name, parameter in modules[stage].named_parameters():
                names.append(f"{stage} {name} {tuple(parameter.shape)} {parameter.dtype} {parameter.requires_grad}")
                if not others & set(_spread_over(parameter)):
                    stages_of.setdefault(parameter, set()).add(stage)
        self._modules = [modules[stage] for stage in sorted(modules)]
        self._stages_of = {p: frozenset(stages) for p, stages in stages_of.items() if p.requires_grad}
        self._waiting: dict[torch.Tensor, set[int]] = {}
        self._before: dict[torch.Tensor, torch.Tensor] = {}
        self._travelling: list[_Bucket] = []
        self._update = True
        self._reduced = False
        tensors = [*stages_of, *self._buffers(persistent=False)]
        self._refuse_different("\n".join([*names, same]), _device_of(tensors))
        self._hand_on(tensors)

    def begin(self, *, update: bool) -> None:
        """A step starts; gradients of steps that only gather (`update` False) stay where they are."""
        self._update = update
        self._travelling.clear()
        self._waiting = {p: set(stages) for p, stages in self._stages_of.items()}
        self._before = {}
        if self._reduced:
            # what is averaged already must not be averaged again
            self._before = {p: p.grad for p in self._stages_of if p.grad is not None}
            for parameter in self._before:
                parameter.grad = None
            self._reduced = False

    def complete(self, stage: int) -> None:
        """The last W of a stage is done: its gradients set out."""
        if self._update and stage not in self._late:
            self._send_off([stage])

    def end(self) -> None:
        """Wait for the means."""
        if not self._update:
            return
        self._send_off(sorted({s for stages in self._waiting.values() for s in stages}))
        try:
            for bucket in self._travelling:
                bucket.arrive()
            self._hand_on(self._buffers(persistent=True))
        except RuntimeError as error:
            raise self._stopped(error) from error
        self._travelling.clear()
        for parameter, before in self._before.items():
            parameter.grad = before if parameter.grad is None else before + parameter.grad
        self._before = {}
        self._reduced = True

    def _buffers(self, *, persistent: bool) -> list[torch.Tensor]:
        """Those that are there now; if asked, without what a state_dict leaves out, such as tables of constants."""
        inner = [m for module in self._modules for m in module.modules()]
        found = [
            buffer
            for m in inner
            for name, buffer in m._buffers.items()
            if buffer is not None and not (persistent and name in m._non_persistent_buffers_set)
        ]
        return [b for b in dict.fromkeys(found) if not _spread_over(b)]

    def _hand_on(self, tensors: Sequence[torch.Tensor]) -> None:
        """Make tensors those of the first replica."""
        under_way: list[tuple[Any, torch.Tensor, torch.Tensor]] = []
        for tensor in tensors:
            place = local(tensor.detach())
            dense = place.contiguous()
            under_way.append((dist.broadcast(dense, group=self._group, group_src=0, async_op=True), place, dense))
        for work, place, dense in under_way:
            work.wait()
            if dense is not place:
                place.copy_(dense)

    def _send_off(self, stages: Sequence[int]) -> None:
        ready = []
        for stage in stages:
            for parameter, waiting in list(self._waiting.items()):
                waiting.discard(stage)
                # a parameter of several stages waits for the last of them
                if not waiting:
                    del self._waiting[parameter]
                    ready.append(parameter)
        try:
            self._travelling += [_Bucket(parameters, self._group, self._size) for parameters in _buckets(ready)]
        except RuntimeError as error:
            raise self._stopped(error) from error

    def _refuse_different(self, text: str, device: torch.device) -> None:
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")
        ends = torch.tensor([number, -number], dtype=torch.int64, device=device)
        dist.all_reduce(ends, op=dist.ReduceOp.MAX, group=self._group)
        if ends.tolist() != [number, -number]:
            members = dist.get_process_group_ranks(self._group)
            raise InvalidInput(
                f"processes {members} are replicas of each other, but their stages or timetables differ; give every "
                "coordinate of the mesh's dimension 'dp' the same ones"
            )


class _Bucket:
    """Gradients of one type on their way, in one tensor; behind them a flag each: whether there is one."""

    def __init__(self, parameters: Sequence[torch.Tensor], group: dist.ProcessGroup, size: int) -> None:
        dtype = _gradient_dtype(parameters[0])
        parts = [_flat_gradient(p).to(dtype) for p in parameters]
        flags = torch.tensor([float(p.grad is not None) for p in parameters]).to(parts[0])
        # divided before they are added, so that sums of small types do not overflow
        flat = torch.cat([*parts, flags]).div_(size)
        *means, self._flags = torch.split(flat, [*(part.numel() for part in parts), len(parts)])
        self._to_put: list[tuple[int, torch.Tensor, torch.Tensor]] = []
        for i, (parameter, mean) in enumerate(zip(parameters, means, strict=True)):
            gradient = parameter.grad
            if type(gradient) is torch.Tensor and gradient.is_contiguous() and gradient.dtype is dtype:
                # it lives in the bucket from now on, so that there are no two of it
                parameter.grad = mean.view(gradient.shape)
            else:
                self._to_put.append((i, parameter, mean))
        self._work: Any = dist.all_reduce(flat, group=group, async_op=True)

    def arrive(self) -> None:
        """Put the means where the gradients were."""
        self._work.wait()
        for i, parameter, mean in self._to_put:
            if parameter.grad is None:
                if not self._flags[i]:
                    continue
                parameter.grad = torch.zeros_like(parameter)
            place = local(parameter.grad)
            place.copy_(mean.view(place.shape))


def _flat_gradient(parameter: torch.Tensor) -> torch.Tensor:
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(local(parameter.detach()), memory_format=torch.contiguous_format).reshape(-1)
    if gradient.layout is not torch.strided:
        raise InvalidInput(
            f"a gradient of shape {tuple(gradient.shape)} is sparse, which replicas cannot average: build its "
            "embedding with sparse=False"
        )
    return local(gradient).reshape(-1)


def _gradient_dtype(parameter: torch.Tensor) -> torch.dtype:
    """That of its gradient, whether there is one yet or not."""
    asked: torch.dtype | None = getattr(parameter, "grad_dtype", None)
    return parameter.dtype if asked is None else asked


def _buckets(parameters: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Parameters of one type and device together, up to 25 MiB; in the same order on all replicas."""
    found: list[list[torch.Tensor]] = []
    filling: dict[tuple[torch.dtype, torch.device], tuple[list[torch.Tensor], int]] = {}
    for parameter in parameters:
        key = _gradient_dtype(parameter), parameter.device
        size = local(parameter.detach()).numel() * key[0].itemsize
        bucket, filled = filling.get(key, ([], 0))
        if not bucket or filled + size > _BUCKET_BYTES:
            bucket, filled = [], 0
            found.append(bucket)
        bucket.append(parameter)
        filling[key] = bucket, filled + size
    return found


def _spread_over(tensor: torch.Tensor) -> list[int]:
    """The processes that a DTensor lies on; none for any other tensor."""
    mesh: Any = getattr(tensor, "device_mesh", None)
    return [] if mesh is None else mesh.mesh.flatten().tolist()


def _device_of(tensors: Sequence[torch.Tensor]) -> torch.device:
    return tensors[0].device if tensors else torch.device("cpu")
