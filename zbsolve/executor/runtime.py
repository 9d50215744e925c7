"""Running timetables for real.

::

    Pipeline    one object for all ranks (threads) or for this process's rank (torchrun)
      crew      threads, and what watches them
      rank      one rank's program, step by step
        program     actions as ready-made functions, in order
        actions     what each of them does, on the rank's desk
        boundary    what passes between stages
      transports/   how it passes
      microbatches  a batch's way in, and out again
      updating      the optimizer's place in the row
      tracing       what was measured
      saving        what training goes on from
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

import torch

from zbsolve.errors import InvalidInput, RunError
from zbsolve.executor.building import building, refuse_unusable, settings_shown, timetable_named
from zbsolve.executor.carrying import all_with_carry
from zbsolve.executor.crew import Crew
from zbsolve.executor.desk import StageWork
from zbsolve.executor.feed import Feed
from zbsolve.executor.finite import Mode, NonFinite
from zbsolve.executor.losses import refuse_foreign_parameters
from zbsolve.executor.microbatches import cut_for, given, joined, merged, reduced, shared
from zbsolve.executor.optimizer import LossScale, Validation
from zbsolve.executor.parallel import MeshPlace
from zbsolve.executor.patience import Patience
from zbsolve.executor.rank import Rank
from zbsolve.executor.replicas import average_replicas, sum_replicas
from zbsolve.executor.saving import restore, state_of
from zbsolve.executor.solo import Solo
from zbsolve.executor.staging import Stages, default_transport, device_of, stages_of_ranks
from zbsolve.executor.story import told
from zbsolve.executor.tracing import measured_rows, rows_of_all, trace_of
from zbsolve.executor.transports import Distributed, InProcess
from zbsolve.executor.transports.protocol import Transport
from zbsolve.executor.updating import MakeOptimizer, chain_of, early_forwards, optimizer_of
from zbsolve.lowering import lower, verify
from zbsolve.solution import Solution
from zbsolve.timetable import Timetable
from zbsolve.trace import Trace
from zbsolve.units import whole_amount

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["Pipeline"]


class Pipeline:
    """A model that trains by a timetable.

    Parameters
    ----------
    timetable
        Of any placement; a `Solution` will do.
    stages
        The modules from input to loss, or those of this process's ranks by stage number. A module
        returns a tensor or a tuple of tensors, which the next one is called with; one that takes an
        argument `carry` hands it from slice to slice (see `zbsolve.executor.carrying`). A `SplitStage`
        made by hand will do as well.
    loss_fn
        ``loss_fn(output, target)`` gives one number.
    transport
        None for threads in this process, or, where `torch.distributed` is initialized or a launcher
        started this process as one of several (`zbsolve.executor.launch` says how that is known), for
        one rank a process.
    mesh
        A `DeviceMesh` with named dimensions instead of a transport: ``"pp"`` holds the ranks of the
        pipeline, ``"dp"`` replicas of it, whose gradients are averaged as `DistributedDataParallel`
        does (each replica is given its own part of the batch, and `step` returns its own loss);
        other dimensions, such as ``"tp"``, belong to the modules' own DTensors and get the same data.
        Modules that use them, or `fully_shard` over ``"dp"``, are given ready-made.
    loss_reduction
        How the microbatches' losses make the batch's: ``"mean"`` or ``"sum"``.
    accumulation_steps
        Steps whose gradients make one update; a mean is taken over them as well.
    optimizer
        Makes the optimizer of one rank's parameters, such as ``lambda p: torch.optim.AdamW(p, lr=1e-3)``.
        None leaves the gradients in ``.grad``.
    max_grad_norm
        Limit of the global norm; None for no clipping.
    check_overflow, loss_scale, undo, snapshot_device, synchronous
        As of `zbsolve.executor.optimizer.PostValidatedOptimizer`.
    nonfinite
        What happens where a loss, or what passes between stages in a forward, is NaN or infinite:
        ``"warn"`` names step, microbatches and the stage where it began (`nonfinite` lists them),
        ``"raise"`` stops all ranks at the operation, ``"ignore"`` does not look.
    stall_s
        Seconds that one operation may run before its rank counts as stalled. Default 6, or 20 times
        the longest planned operation if that is more; 2 minutes until the first training step, or the
        first evaluation, has ended, as kernels are compiled there. What is set here counts always.
        Waiting for others, and everything between calls, is no operation.
    away_s
        Seconds that a rank may stay between calls (to load data or write a checkpoint) while another
        process waits in a call that it has not made; default 300. Half of it, at most 10 s, brings a word on stderr.

    Raises
    ------
    InvalidInput
        If stages and timetable do not fit together.
    OrderError
        If the timetable cannot be run.
    """

    def __init__(
        self,
        timetable: Timetable | Solution,
        stages: Stages,
        loss_fn: Callable[..., torch.Tensor],
        *,
        transport: Transport | None = None,
        mesh: DeviceMesh | None = None,
        loss_reduction: Literal["mean", "sum"] = "mean",
        accumulation_steps: int = 1,
        optimizer: MakeOptimizer | None = None,
        max_grad_norm: float | None = None,
        check_overflow: bool = False,
        loss_scale: LossScale | None = None,
        undo: Literal["snapshot", "inverse"] = "snapshot",
        snapshot_device: torch.device | str | None = None,
        synchronous: bool = False,
        nonfinite: Mode = "warn",
        stall_s: float | None = None,
        away_s: float | None = None,
    ) -> None:
        self.timetable = timetable.timetable if isinstance(timetable, Solution) else timetable
        if not isinstance(self.timetable, Timetable):
            raise InvalidInput(
                f"the timetable is a {type(self.timetable).__name__}; give a Timetable (simulate makes one of an order)"
            )
        self.problem = self.timetable.problem
        if loss_reduction not in ("mean", "sum"):
            raise InvalidInput(f"loss_reduction is 'mean' or 'sum', got {loss_reduction!r}")
        if whole_amount(accumulation_steps, "accumulation_steps", error=InvalidInput) < 1:
            raise InvalidInput("accumulation_steps must be at least 1")
        if not callable(loss_fn):
            raise InvalidInput(f"loss_fn is a {type(loss_fn).__name__}; give a function of (output, target)")
        refuse_unusable(optimizer, max_grad_norm=max_grad_norm, check_overflow=check_overflow, loss_scale=loss_scale)
        self._reduction = loss_reduction
        self._accumulation = accumulation_steps
        self._closed = False
        placement = self.problem.placement
        lowered = lower(self.timetable)
        verify(lowered)
        self._messages = lowered.messages
        forwards = lower(self.timetable, forward_only=True)
        verify(forwards)
        if mesh is not None and transport is not None:
            raise InvalidInput("give a transport or a mesh, not both: the mesh says which processes to connect")
        place = None if mesh is None else MeshPlace(mesh)
        transport = transport if place is None else place.transport
        self.transport = transport if transport is not None else default_transport(placement.ranks)
        if self.transport.ranks != placement.ranks:
            raise InvalidInput(
                f"the timetable is for {placement.ranks} ranks, but the "
                + (
                    f"transport connects {self.transport.ranks}"
                    if place is None
                    else f"mesh's dimension 'pp' has {self.transport.ranks}"
                )
            )
        patience = Patience.of(self.timetable, stall_s, away_s)
        chain = chain_of(self.timetable)
        checked = optimizer is not None and (max_grad_norm is not None or check_overflow) and not synchronous
        early = early_forwards(self.timetable, chain) if checked else (0,) * placement.ranks
        tag = self.transport.new_tag()
        threads = isinstance(self.transport, InProcess)
        settings = (
            loss_reduction,
            accumulation_steps,
            optimizer is not None,
            max_grad_norm,
            check_overflow,
            synchronous,
        )
        named = {
            "timetable": timetable_named(self.timetable, (lowered.rows, chain, early)),
            "settings": settings_shown(settings),
        }

        def hold() -> list[dict[int, StageWork]]:
            numbers = [placement.stages_of(e.rank) for e in self.transport.endpoints()]
            holders = [placement.holders(stage) for stage in range(placement.stages)]
            held = stages_of_ranks(stages, holders, numbers, threads=threads and transport is None)
            return [all_with_carry(works, self.problem.slices) for works in held]

        with building(self.transport, named, hold):
            endpoints, held = self.transport.endpoints(), hold()
            self.ranks = tuple(
                Rank(
                    endpoint,
                    lowered,
                    forwards,
                    works,
                    device_of(works, endpoint.rank),
                    early=early,
                    microbatches=self.problem.microbatches,
                    last_stage=placement.stages - 1,
                    loss_fn=loss_fn,
                    nonfinite=nonfinite,
                )
                for endpoint, works in zip(endpoints, held, strict=True)
            )
            for rank in self.ranks:
                refuse_foreign_parameters(loss_fn, rank.stages, placement.stages - 1)
            sum_replicas(self.ranks, placement)
            if place is not None:
                same = repr((self.timetable.order, loss_reduction, accumulation_steps))
                average_replicas(self.ranks, placement, place, same=same)
            for rank in self.ranks:
                rank.alone = len(self.ranks) == 1
                rank.finite.skips = optimizer is not None and check_overflow
                if optimizer is not None:
                    replicated = [s for s in rank.stages if len(placement.holders(s)) > 1]
                    rank.optimizer = optimizer_of(
                        optimizer,
                        rank.endpoint,
                        rank.stages,
                        chain,
                        [s for s in replicated if placement.holders(s)[0] != rank.number],
                        replicated,
                        tag,
                        within_rank=None if place is None else place.agreed(rank.device),
                        max_grad_norm=max_grad_norm,
                        check_overflow=check_overflow,
                        loss_scale=loss_scale,
                        undo=undo,
                        snapshot_device=snapshot_device,
                        synchronous=synchronous,
                    )
                    rank.training.desk.scale = rank.optimizer.loss_scale
        self._crew: Crew | Solo = (
            Crew(self.ranks, self.transport, patience, tag)
            if isinstance(self.transport, InProcess)
            else Solo(self.ranks[0], self.transport, patience)
        )
        if transport is None and isinstance(self.transport, Distributed):
            # the end of the process has words of its own
            weakref.finalize(self, self.transport.drop).atexit = False

    def close(self) -> None:
        """Let go of all connections; the pipeline cannot be used any more.

        Raises
        ------
        RunError
            If another rank has failed meanwhile, or waits for this one in a call that it has not made.
        """
        self._closed = True
        self._crew.close()
        self.transport.close()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is not None:
            # the others must not wait for a rank that leaves early
            for rank in self.ranks:
                rank.endpoint.failed(told(error))
            self.transport.abort()
        self._closed = True
        self._crew.close()
        self.transport.close(quietly=error is not None)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise RunError("the pipeline is closed: step and eval come before close, or inside the with block")

    def step(self, batch: Any = None, target: Any = None) -> torch.Tensor | None:
        """Train on one batch.

        Parameters
        ----------
        batch
            Tensor or tuple of tensors for stage 0, cut along the first dimension into microbatches; where these
            are slices, along the first into sequences and along the second into slices.
            Ranks without stage 0 need none. Where one wants a gradient itself, it ends in its ``.grad``.
        target
            The same for the loss function; ranks without the last stage need none.

        Returns
        -------
        The loss where the last stage is, None elsewhere.

        Raises
        ------
        RunError
            If a rank fails or stalls; every rank has stopped then.
        """
        return self.steps([(batch, target)])[0]

    def steps(self, batches: Iterable[tuple[Any, Any]]) -> list[torch.Tensor | None]:
        """Train on batches one after the other, with no barrier between them.

        A rank that is done with one step goes on to the next while others still finish.

        Parameters
        ----------
        batches
            Pairs as of `step`; read as they are needed.

        Returns
        -------
        One loss a batch.
        """
        if self.problem.forward_only:
            raise InvalidInput("the timetable runs forwards only, so it can evaluate but not train; use eval")
        self._refuse_closed()
        feed = Feed(batches, readers=len(self.ranks))
        divisor = self.problem.microbatches * self._accumulation if self._reduction == "mean" else 1

        def work(rank: Rank) -> list[Any]:
            made = []
            for batch, target in feed.reader():
                with self._crew.call("step", **given(rank, batch, target)):
                    inputs, targets = cut_for(rank, self.problem, batch, target)
                    update = (rank.steps + 1) % self._accumulation == 0
                    losses = rank.step(inputs, targets, divisor=divisor, update=update)
                    made.append(shared(rank, self.problem, [None if loss is None else (loss,) for loss in losses]))
            return made

        return [reduced(merged(per_rank), self._reduction) for per_rank in zip(*self._crew.run(work), strict=True)]

    def eval(self, batch: Any = None) -> Any:
        """Run the forwards alone, without gradients and with the modules in evaluation mode.

        Returns
        -------
        The last stage's output for the whole batch, where the last stage is; None elsewhere.
        """
        self._refuse_closed()

        def work(rank: Rank) -> list[Any]:
            with self._crew.call("eval", **given(rank, batch)):
                rank.validate()
                inputs, _ = cut_for(rank, self.problem, batch, training=False)
                return shared(rank, self.problem, rank.evaluate(inputs))

        return joined(merged(self._crew.run(work)), self.problem.slices)

    def trace(self) -> Trace:
        """The measured times of the last steps (at most 256); in the order of the timetable. Every rank calls it.

        Raises
        ------
        RunError
            If no step has run.
        """
        # what ends an iteration is not measured: the optimizer validates while the next step has begun
        ops = [[timed.op for timed in row if timed.op.microbatch is not None] for row in self.timetable.rows]
        rows, error = [measured_rows(rank) for rank in self.ranks], 0
        if len(self.ranks) < self.problem.placement.ranks:
            widths = [2 * len(row) + 3 * len(self._messages) for row in ops]
            with self._crew.call("trace"):
                ((rows, error),) = self._crew.run(lambda rank: rows_of_all(rank, widths))
        peaks = [None] * len(ops) if len(self.ranks) < len(ops) else [_peak(rank) for rank in self.ranks]
        return trace_of(self.problem, ops, self._messages, rows, error, peaks)

    def flush(self) -> None:
        """Settle the last step: undo and repair it if it was wrong. Every rank has to call it.

        `eval`, `state_dict` and `load_state_dict` do it by themselves.
        """
        talks = any(rank.optimizer is not None and rank.optimizer.unsettled for rank in self.ranks)
        # where no message is needed a rank may do it alone
        with self._crew.call("flush") if talks else nullcontext():
            self._crew.run(lambda rank: rank.validate())
        for rank in self.ranks:
            rank.finite.settle()

    @property
    def optimizers(self) -> dict[int, torch.optim.Optimizer]:
        """The optimizers of this process's ranks, for learning-rate schedulers."""
        return {rank.number: rank.optimizer.optimizer for rank in self.ranks if rank.optimizer is not None}

    @property
    def validations(self) -> tuple[Validation, ...]:
        """What became of the steps so far (the last 256), as a rank of this process has heard."""
        return tuple(self.ranks[0].validations)

    @property
    def nonfinite(self) -> tuple[NonFinite, ...]:
        """Losses and first values that were not finite, on the ranks of this process (the last 256)."""
        for rank in self.ranks:
            rank.finite.settle()
        return tuple(sorted((one for rank in self.ranks for one in rank.finite.found), key=lambda one: one.step))

    def zero_grad(self) -> None:
        """Drop the gradients of this process's ranks."""
        for rank in self.ranks:
            for work in rank.stages.values():
                work.module.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Everything that training needs to go on from here, of this process's ranks.

        Tensors are not copied. Random states are the caller's to save. Every rank has to call it.
        """
        self.flush()
        return state_of(self.ranks)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned on the same ranks.

        Raises
        ------
        InvalidInput
            If it is of other ranks, stages or optimizers.
        """
        if not self._crew.torn:
            self.flush()
        restore(self.ranks, state)
        self._crew.restored()


def _peak(rank: Rank) -> int | None:
    return torch.cuda.max_memory_allocated(rank.device) if rank.device.type == "cuda" else None
