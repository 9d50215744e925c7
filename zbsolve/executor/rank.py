"""One rank at work: its program, its stages, its place in them, and what it has measured."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from zbsolve.errors import RunError
from zbsolve.executor.boundary import Boundary
from zbsolve.executor.clock import Clock, clock_of
from zbsolve.executor.program import Call, Program, StageWork, evaluation_program, training_program
from zbsolve.executor.replicas import ReplicaSum
from zbsolve.executor.story import waiting_for
from zbsolve.executor.transports.protocol import Endpoint, Stopped
from zbsolve.lowering import Lowered

__all__ = ["Rank", "RankFailure", "Updates"]

KEPT_STEPS = 256
"""Steps whose times are kept for a trace."""


class RankFailure(RunError):
    """This rank failed by itself; what happened is its cause."""


class Updates(Protocol):
    """What happens to a rank's parameters around a step. The runtime calls, in this order:

    ::

        begin      before the first operation
        complete   once for each stage, after its last weight gradient (replicas are not yet summed)
        end        after the row; replicas are summed
    """

    def begin(self) -> None:
        """A step starts."""

    def complete(self, stage: int) -> None:
        """The gradients of a stage are complete on this rank."""

    def end(self) -> None:
        """All gradients of this rank are complete."""


class Rank:
    """Runs one rank's part of every step.

    Parameters
    ----------
    endpoint
        Its end of the transport.
    lowered, forwards
        Actions of a training step and of an evaluation.
    stages
        Its stages, by number.
    device
        Where they are.
    microbatches, last_stage, loss_fn
        Of the pipeline.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        lowered: Lowered,
        forwards: Lowered,
        stages: Mapping[int, StageWork],
        device: torch.device,
        *,
        microbatches: int,
        last_stage: int,
        loss_fn: Callable[..., torch.Tensor],
    ) -> None:
        self.number = endpoint.rank
        self.endpoint = endpoint
        self.stages = dict(stages)
        self.device = device
        self.clock: Clock = clock_of(device)
        self.updates: Updates | None = None
        self.replicas: ReplicaSum | None = None
        self.history: deque[tuple[int, list[Any]]] = deque(maxlen=KEPT_STEPS)
        self.steps = 0
        self.has_first, self.has_last = 0 in self.stages, last_stage in self.stages
        self.at = [-1]
        self.now: Program | None = None
        self._microbatches = microbatches
        self._lowered = lowered
        boundaries = boundaries_of(lowered, self.number)
        self.training = training_program(
            lowered,
            self.number,
            microbatches=microbatches,
            stages=self.stages,
            last_stage=last_stage,
            loss_fn=loss_fn,
            boundaries=boundaries,
            mail=endpoint.mail(lowered, boundaries, device),
            mark=self.clock.mark,
            device=device,
            after_last_weight=self._after_last_weight,
        )
        eval_boundaries = boundaries_of(forwards, self.number)
        self._eval_boundaries = eval_boundaries
        self.evaluation = evaluation_program(
            forwards,
            self.number,
            microbatches=microbatches,
            stages=self.stages,
            boundaries=eval_boundaries,
            mail=endpoint.mail(forwards, eval_boundaries, device),
            mark=self.clock.mark,
        )
        self._forwards = forwards

    def _after_last_weight(self, stage: int) -> Call:
        def complete() -> None:
            if self.replicas is not None:
                self.replicas.complete(stage)
            if self.updates is not None:
                self.updates.complete(stage)

        return complete

    @property
    def lowered(self) -> Lowered:
        """What the program under way was made from."""
        return self._forwards if self.now is self.evaluation else self._lowered

    def step(self, inputs: Sequence[Any], targets: Sequence[Any], *, divisor: int, scale: float) -> list[Any]:
        """Run a training step; returns the loss of each microbatch that has its last stage here, None for others.

        Raises
        ------
        RankFailure
            If something fails here.
        Stopped
            If another rank has failed.
        """
        desk = self.training.desk
        desk.inputs[:], desk.targets[:] = inputs, targets
        desk.divisor, desk.scale = divisor, scale
        for around in (self.replicas, self.updates):
            if around is not None:
                self._guarded(around.begin, "before its first operation")
        self._run(self.training)
        if self.replicas is not None:
            self._guarded(self.replicas.end, "while summing the gradients of replicas")
        if self.updates is not None:
            self._guarded(self.updates.end, "in its update")
        losses = desk.losses.copy()
        self.history.append((self.steps, desk.marks.copy()))
        self.steps += 1
        desk.inputs[:] = desk.targets[:] = desk.losses[:] = [None] * self._microbatches
        return losses

    def evaluate(self, inputs: Sequence[Any]) -> list[Any]:
        """Run forwards alone, without gradients; returns outputs as `step` returns losses."""
        desk = self.evaluation.desk
        desk.inputs[:] = inputs
        modules = [stage.module for stage in self.stages.values()]
        modes = [[(m, m.training) for m in module.modules()] for module in modules]
        for boundary in self._eval_boundaries.values():
            boundary.forget()
        try:
            for module in modules:
                module.eval()
            with torch.no_grad():
                self._run(self.evaluation)
        finally:
            for mode in modes:
                for module, training in mode:
                    module.training = training
        outputs = desk.losses.copy()
        desk.inputs[:] = desk.losses[:] = [None] * self._microbatches
        return outputs

    def _run(self, program: Program) -> None:
        calls = program.calls
        if torch.autograd.profiler._is_profiler_enabled:
            calls = [_ranged(str(a), call) for a, call in zip(program.actions, program.calls, strict=True)]
        self.now = program
        at = self.at
        try:
            for i, call in enumerate(calls):
                at[0] = i
                call()
        except (Stopped, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise RankFailure(self._failure(program, error)) from error
        at[0] = -1

    def _failure(self, program: Program, error: BaseException) -> str:
        text = str(error) if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
        action = program.actions[self.at[0]]
        return f"{action}: {text}"

    def _guarded(self, work: Callable[[], None], where: str) -> None:
        try:
            work()
        except (Stopped, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise RankFailure(f"{where}: {type(error).__name__}: {error}") from error

    def doing(self) -> str:
        """What this rank is at, for a message."""
        at, program = self.at[0], self.now
        if at < 0 or program is None:
            return f"rank {self.number} is between steps"
        return waiting_for(program.actions[at], self.lowered, self.number)

    def computing(self) -> tuple[int, int] | None:
        """Step and place of the operation that runs now; None while waiting or between steps."""
        at, program = self.at[0], self.now
        if at < 0 or program is None or program.actions[at].message >= 0:
            return None
        return self.steps, at

    def recover(self) -> None:
        """Drop everything in flight, as after a failure."""
        for stage in self.stages.values():
            stage.abandon()
        self.at[0] = -1
        for program in (self.training, self.evaluation):
            desk = program.desk
            for places in (desk.mail, desk.inputs, desk.targets, desk.losses):
                places[:] = [None] * len(places)


def boundaries_of(lowered: Lowered, rank: int) -> dict[int, Boundary]:
    """The boundary that each message of a rank crosses; messages over one boundary between two ranks share it."""
    shared: dict[tuple[int, int, int], Boundary] = {}
    found = {}
    for number, message in enumerate(lowered.messages):
        if rank not in (message.sender, message.receiver):
            continue
        forward = message.direction == "forward"
        before, behind = (message.sender, message.receiver) if forward else (message.receiver, message.sender)
        stage = min(message.tail.stage, message.head.stage)
        found[number] = shared.setdefault((stage, before, behind), Boundary(stage))
    return found


def _ranged(name: str, call: Call) -> Call:
    def ranged() -> None:
        with torch.profiler.record_function(name):
            call()

    return ranged
