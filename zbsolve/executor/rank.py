"""One rank at work: its program, its stages, its place in them, and what it has measured."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch

from zbsolve.errors import RunError
from zbsolve.executor.batch import give_back
from zbsolve.executor.boundary import Boundary, described
from zbsolve.executor.carrying import CarryingStage
from zbsolve.executor.clock import Clock, clock_of
from zbsolve.executor.desk import Call, StageWork
from zbsolve.executor.finite import FiniteWatch, Mode
from zbsolve.executor.kept import KeptBuffers, KeptRandomState
from zbsolve.executor.optimizer import PostValidatedOptimizer, Validation
from zbsolve.executor.program import Program, evaluation_program, training_program
from zbsolve.executor.split import SharedByStages, SplitStage
from zbsolve.executor.story import told, waiting_for
from zbsolve.executor.transports.protocol import Endpoint, Mail, Stopped
from zbsolve.executor.updating import WarmUp
from zbsolve.lowering import Action, Do, Lowered
from zbsolve.ops import Kind

__all__ = ["Around", "Rank", "RankFailure"]

KEPT_STEPS = 256
"""Steps whose times are kept for a trace."""


class RankFailure(RunError):
    """A rank failed by itself; what happened is its cause."""


class Around(Protocol):
    """What gathers a rank's gradients around a step, ahead of the optimizer: `ReplicaSum`, `ReplicaMean`.

    ::

        begin        before the first operation; without `update` the gradients only gather, for a later step
        complete     once for each stage, right after its last weight gradient
        end          after the row
    """

    def begin(self, *, update: bool) -> None:
        """A step starts."""

    def complete(self, stage: int) -> None:
        """The gradients of a stage are complete on this rank; its row goes on meanwhile."""

    def end(self) -> None:
        """Return once the gradients are what the optimizer is to see."""


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
    early
        How many operations each rank runs before it validates the step before.
    microbatches, last_stage, loss_fn, nonfinite
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
        early: Sequence[int],
        microbatches: int,
        last_stage: int,
        loss_fn: Callable[..., torch.Tensor],
        nonfinite: Mode = "warn",
    ) -> None:
        self.number = endpoint.rank
        self.endpoint = endpoint
        self.stages = dict(stages)
        self.shared = SharedByStages({number: work.module for number, work in stages.items()})
        for number, work in stages.items():
            if isinstance(work, SplitStage | CarryingStage):
                work.share = self.shared.of(number)
        self.device = device
        self.clock: Clock = clock_of(device)
        self.optimizer: PostValidatedOptimizer | None = None
        self.validations: deque[Validation] = deque(maxlen=KEPT_STEPS)
        self.alone = False
        self.finite = FiniteWatch(nonfinite, device)
        self.around: list[Around] = []
        # of the step under way and the one before: nobody is further ahead of the slowest rank
        self._before: deque[tuple[int, KeptBuffers]] = deque(maxlen=2)
        # device clocks tell differences only, so one mark is tied to the host's clock
        self.anchor = self.clock.tie()
        self.history: deque[tuple[int, list[Any], list[Any]]] = deque(maxlen=KEPT_STEPS)
        self.steps = 0
        self.has_first, self.has_last = 0 in self.stages, last_stage in self.stages
        self.at = [-1]
        self._where = "between steps"
        self.now: Program | None = None
        self._microbatches = microbatches
        self._lowered = lowered
        boundaries = boundaries_of(lowered, self.number)
        self._boundaries = boundaries
        mail = endpoint.mail(lowered, boundaries, device)
        warm_up = WarmUp(lowered, early, self.number)
        self._void = _void_calls(warm_up, mail)
        self.training = training_program(
            lowered,
            self.number,
            first=warm_up.first,
            rest=warm_up.rest,
            microbatches=microbatches,
            stages=self.stages,
            last_stage=last_stage,
            loss_fn=loss_fn,
            boundaries=boundaries,
            mail=mail,
            mark=self.clock.mark,
            after_last_weight=self._after_last_weight,
            after_forward=self.finite.after_forward,
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
            for around in self.around:
                around.complete(stage)

        return complete

    @property
    def lowered(self) -> Lowered:
        """What the program under way was made from."""
        return self._forwards if self.now is self.evaluation else self._lowered

    def step(self, inputs: Sequence[Any], targets: Sequence[Any], *, divisor: int, update: bool) -> list[Any]:
        """Run a training step; returns the loss of each microbatch that has its last stage here, None for others.

        Raises
        ------
        RankFailure
            If something fails here.
        Stopped
            If another rank has failed.
        """
        desk, optimizer = self.training.desk, self.optimizer
        if not self.alone:
            # after a failure only ranks that are threads go on
            self._before.append((self.steps, KeptBuffers(work.module for work in self.stages.values())))
        desk.inputs[:], desk.targets[:] = inputs, targets
        desk.divisor = divisor
        for around in self.around:
            self._guarded(partial(around.begin, update=update), "before its first operation")
        if optimizer is None or not optimizer.pending:
            self._run(self.training)
        else:
            self._run_and_validate(optimizer)
        if self.has_first:
            self._guarded(partial(give_back, desk.inputs, desk.input_gradients), "at the gradient of the batch")
        for around in self.around:
            self._guarded(around.end, "at the sum over replicas")
        if optimizer is not None and update:
            self._guarded(optimizer.step_begin, "in its optimizer")
        losses = desk.losses.copy()
        self.history.append((self.steps, desk.marks.copy(), desk.passing.copy()))
        self.steps += 1
        self.finite.end_step(self.steps - 1)
        for places in (desk.inputs, desk.targets, desk.losses, desk.input_gradients):
            places[:] = [None] * self._microbatches
        return losses

    def _run_and_validate(self, optimizer: PostValidatedOptimizer) -> None:
        """The row, with the validation of the step before at its place, and again from the start if that was wrong."""
        cut = self.training.cut
        before: list[KeptBuffers | KeptRandomState] = [self._buffers()] if cut else []
        if cut and self.alone:
            # threads share the generators, so only a rank that is alone in its process can put them back
            before.append(KeptRandomState(self.device))
        self._run(self.training, end=cut)
        self._guarded(self.validate, "at the validation of its last step")
        if self.validations[-1].rerun:
            self._guarded(self._throw_away, "about to start over")
            for kept in before:
                kept.put_back()
            if cut:
                self._run(self.training, end=cut)
        self.training.desk.scale = optimizer.loss_scale
        self._run(self.training, start=cut)

    def _buffers(self) -> KeptBuffers:
        """As they are before the first operation of this step, where they are noted already."""
        if self._before:
            return self._before[-1][1]
        return KeptBuffers(work.module for work in self.stages.values())

    def validate(self) -> None:
        """Hear what became of the last step; undo and repair it if it was wrong. Every rank has to do it."""
        if self.optimizer is not None:
            validation = self.optimizer.validate()
            if validation is not None:
                self.validations.append(validation)
            self.training.desk.scale = self.optimizer.loss_scale

    def _throw_away(self) -> None:
        self.finite.forget()
        for stage in self.stages.values():
            stage.abandon()
        mail = self.training.desk.mail
        mail[:] = [None] * len(mail)
        for call in self._void:
            call()

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
            for stage in self.stages.values():
                # nothing is in flight, but weights that FSDP has gathered would stay
                stage.abandon()
        outputs = desk.losses.copy()
        desk.inputs[:] = desk.losses[:] = [None] * self._microbatches
        return outputs

    def _run(self, program: Program, start: int = 0, end: int | None = None) -> None:
        calls = program.calls if start == 0 and end is None else program.calls[start:end]
        if torch.autograd.profiler._is_profiler_enabled:
            calls = [_ranged(str(a), call) for a, call in zip(program.actions[start:end], calls, strict=True)]
        self.now = program
        at = self.at
        try:
            for i, call in enumerate(calls, start):
                at[0] = i
                call()
        except (Stopped, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise RankFailure(self._failure(program, error)) from error
        at[0] = -1
        program.ran = program.ran or end is None

    def _failure(self, program: Program, error: BaseException) -> str:
        action = program.actions[self.at[0]]
        if isinstance(error, RunError):
            return f"{action}: {error}"
        text = f"{action}: {told(error)}"
        came = self._came(action)
        return text if came is None else f"{text} (it was called with {came})"

    def _came(self, action: Action) -> str | None:
        """What the stage of a forward was called with, if that came from another stage."""
        if action.do is not Do.COMPUTE or action.op.kind is not Kind.FORWARD:
            return None
        for number, message in enumerate(self.lowered.messages):
            if message.head == action.op and number in self._boundaries:
                return described(self._boundaries[number].specs or ())
        return None

    def _guarded(self, work: Callable[[], None], where: str) -> None:
        self._where = where
        try:
            work()
            self._where = "between steps"
        except (Stopped, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise RankFailure(f"{where}: {told(error)}") from error

    def doing(self) -> str:
        """What this rank is at, for a message."""
        action = self._action()
        if action is None:
            return f"rank {self.number} is {self._where}"
        return waiting_for(action, self.lowered, self.number)

    def computing(self) -> tuple[int, int] | None:
        """Step and place of the operation that runs now; None while waiting or between steps."""
        at, action = self.at[0], self._action()
        return None if action is None or action.message >= 0 else (self.steps, at)

    def _action(self) -> Action | None:
        """What runs now; asked by other threads, so place and program may be of different moments."""
        at, program = self.at[0], self.now
        return program.actions[at] if program is not None and 0 <= at < len(program.actions) else None

    def first_time(self) -> bool:
        """The program under way has never run to its end."""
        return self.now is not None and not self.now.ran

    def all_done(self) -> None:
        """All ranks have come to the end of a call, so nothing of it will be put back."""
        self._before.clear()

    def recover(self, steps: int) -> None:
        """Drop everything in flight, as after a failure, and go back to where all ranks had made as many steps."""
        for stage in self.stages.values():
            stage.abandon()
        for made, buffers in reversed(self._before):
            if made >= steps:
                buffers.put_back()
        self._before.clear()
        while self.history and self.history[-1][0] >= steps:
            self.history.pop()
        self.steps = steps
        self.finite.forget()
        self.at[0] = -1
        self._where = "between steps"
        for program in (self.training, self.evaluation):
            desk = program.desk
            for places in (desk.mail, desk.inputs, desk.targets, desk.losses, desk.input_gradients):
                places[:] = [None] * len(places)


def _void_calls(warm_up: WarmUp, mail: Mail) -> list[Callable[[], object]]:
    """What starting over takes from the transport first."""
    calls: list[Callable[[], object]] = []
    for message, unposted in warm_up.void:
        post = mail.poster(message) if unposted else None
        calls += [call for call in (post, mail.waiter(message)) if call is not None]
    return calls + [call for call in map(mail.completer, warm_up.unsent) if call is not None]


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
