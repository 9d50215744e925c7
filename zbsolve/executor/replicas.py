"""Stages that several ranks hold: their gradients are summed before anything uses them.

Each holder sends its own sums as soon as its last weight gradient is done, and adds everyone's at
the end of its row, in the same order everywhere, so replicas stay bitwise equal::

    rank 0   ... W5 of stage 1  tell ------------------ end: hear, g0 + g3
    rank 3   ... F2  B2  W2 of stage 1  tell ... end: hear, g0 + g3
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from zbsolve.errors import InvalidInput
from zbsolve.executor.lazy import refuse_lazy
from zbsolve.executor.parallel import MeshPlace
from zbsolve.executor.rank import Rank
from zbsolve.executor.transports.protocol import Endpoint
from zbsolve.placement import Placement

__all__ = ["ReplicaSum", "average_replicas", "sum_replicas"]


class ReplicaSum:
    """Sums the gradients of a rank's replicated stages.

    Parameters
    ----------
    endpoint
        Of the rank.
    modules
        Its stages that others hold as well, by number.
    holders
        The ranks that hold each of them, this one included, in the same order on all.
    """

    def __init__(
        self, endpoint: Endpoint, modules: Mapping[int, torch.nn.Module], holders: Mapping[int, Sequence[int]]
    ) -> None:
        self._endpoint = endpoint
        self._holders = {stage: tuple(ranks) for stage, ranks in holders.items()}
        self._parameters = {
            stage: [p for p in module.parameters() if p.requires_grad] for stage, module in modules.items()
        }
        self._before: dict[torch.Tensor, torch.Tensor | None] = {}
        self._told: set[int] = set()

    def begin(self, *, update: bool) -> None:
        """Set aside what earlier steps have gathered: it is summed already."""
        self._told.clear()
        self._before = {p: p.grad for parameters in self._parameters.values() for p in parameters}
        for parameter in self._before:
            parameter.grad = None

    def complete(self, stage: int) -> None:
        """The gradients of a stage are complete here: tell the other holders."""
        parameters = self._parameters.get(stage)
        if parameters is None or stage in self._told:
            return
        self._told.add(stage)
        own = _gradients(parameters)
        for rank in self._holders[stage]:
            if rank != self._endpoint.rank:
                self._endpoint.tell(rank, own, 1 + stage)

    def end(self) -> None:
        """Wait for the other holders, and sum."""
        for stage in sorted(self._parameters):
            self.complete(stage)
        for stage in sorted(self._parameters):
            parameters = self._parameters[stage]
            own = _gradients(parameters)
            parts = [
                own if rank == self._endpoint.rank else self._endpoint.hear(rank, own, 1 + stage)
                for rank in self._holders[stage]
            ]
            found = torch.stack([flags.cpu() for *_, flags in parts]).any(0).tolist()
            for there, parameter, *gradients in zip(found, parameters, *(part[:-1] for part in parts), strict=True):
                before = self._before.get(parameter)
                if not there:
                    parameter.grad = before
                    continue
                # never in place: the other holders may still be reading
                total = gradients[0]
                for gradient in gradients[1:]:
                    total = total + gradient
                parameter.grad = total if before is None else before + total
        self._before = {}


def _gradients(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """One for each parameter, zeros where there is none, and last which there are."""
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.layout is not torch.strided:
            raise InvalidInput(
                f"a gradient of shape {tuple(parameter.shape)} is sparse, which replicas cannot sum: build its "
                "embedding with sparse=False"
            )
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    return [*found, torch.tensor([p.grad is not None for p in parameters], dtype=torch.uint8)]


def sum_replicas(ranks: Iterable[Rank], placement: Placement) -> None:
    """Let ranks sum the gradients of the stages that others hold as well.

    Raises
    ------
    InvalidInput
        If such a stage shares a parameter with another stage of its rank, or has one without a shape yet.
    """
    for rank in ranks:
        shared = {s: placement.holders(s) for s in rank.stages if len(placement.holders(s)) > 1}
        for numbers in rank.shared.holders.values():
            if not numbers.isdisjoint(shared):
                raise InvalidInput(
                    f"stages {', '.join(map(str, sorted(numbers)))} share a parameter on rank {rank.number} and "
                    "lie on other ranks, too, where copies would drift apart; give each stage its own"
                )
        for number in shared:
            refuse_lazy(number, rank.stages[number].module)
        if shared:
            rank.endpoint.befriend(sorted({r for holders in shared.values() for r in holders} - {rank.number}))
            modules = {s: rank.stages[s].module for s in shared}
            rank.around.append(ReplicaSum(rank.endpoint, modules, shared))


def average_replicas(ranks: Iterable[Rank], placement: Placement, place: MeshPlace, *, same: str) -> None:
    """Let ranks average gradients with the pipelines beside theirs.

    Parameters
    ----------
    ranks
        Of this process.
    placement
        Which ranks of this pipeline hold which stages.
    place
        Where this process is in the mesh.
    same
        What all pipelines must have the same.
    """
    for rank in ranks:
        modules = {s: work.module for s, work in rank.stages.items()}
        late = [s for s in rank.stages if len(placement.holders(s)) > 1]
        rank.around += place.means(modules, late=late, same=same)
