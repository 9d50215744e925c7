"""A rank's actions as ready-made functions: everything is looked up before the first step.

An action becomes a closure over the lists it reads and writes. All that passes between actions
lies in `Desk.mail`, one place a message::

    wait 7      mail[7] = what came
    F3          mail[9] = forward(3, *mail[7])
    send 9      hand mail[9] to the transport

Actions that mean nothing to a transport, and hand-overs within the rank, leave no function.

A B with its W right behind it, and no other operation that waits for what B finds (so on stage 0), runs as one
plain backward: the gradients are the same, and nothing is kept for W in between. The trace shows a W of no length.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from zbsolve.errors import RunError
from zbsolve.executor.boundary import Boundary
from zbsolve.executor.cutoff import stops, warn_if_cut_off, warn_of_stop
from zbsolve.executor.split import DRAWING
from zbsolve.executor.transports.protocol import Mail, Tensors
from zbsolve.lowering import Action, Do, Lowered
from zbsolve.ops import Kind, Op

__all__ = ["Desk", "Program", "StageWork", "evaluation_program", "training_program"]

Call = Callable[[], None]
Mark = Callable[[], Any]
AfterForward = Callable[[int, Sequence[Any], Sequence[Any], bool], None]
"""Is given the microbatch, the inputs, the outputs or the loss, and whether those are the loss."""


class StageWork(Protocol):
    """A stage that can run its backward in two halves; `zbsolve.executor.split.SplitStage` is one."""

    module: torch.nn.Module

    def forward(
        self,
        key: int,
        *inputs: Any,
        split: bool = True,
        finish: Callable[[Any], Any] | None = None,
        checkpoint: bool = False,
    ) -> tuple[Any, ...]:
        """Run the module on a microbatch; outputs are detached and say whether they want a gradient."""

    def recompute(self, key: int) -> None:
        """Run it once more, where it has kept a checkpoint alone."""

    def backward_input(self, key: int, grad_outputs: Sequence[Any]) -> tuple[Any, ...]:
        """The gradients of the inputs."""

    def backward_weight(self, key: int) -> None:
        """The gradients of the weights, added to ``.grad``."""

    def backward(self, key: int, grad_outputs: Sequence[Any]) -> tuple[Any, ...]:
        """Both in one."""

    def abandon(self) -> None:
        """Drop every microbatch in flight."""


@dataclass(slots=True)
class Desk:
    """What the closures of one rank read and write.

    Parameters
    ----------
    mail
        Tensors by message.
    inputs, targets
        By microbatch, where this rank has stage 0 and the last stage.
    losses
        By microbatch, detached, as the loss function gave them.
    input_gradients
        By microbatch, what stage 0 found for its inputs, where those want a gradient.
    marks
        Start and end of every operation, by its place among the computes of the row.
    passing
        Three marks a message: sent, waited for from, taken; a rank fills in its own.
    divisor
        What the loss is divided by.
    scale
        What the loss is multiplied by after that.
    """

    mail: list[Any]
    inputs: list[Any]
    targets: list[Any]
    losses: list[Any]
    input_gradients: list[Any]
    marks: list[Any]
    passing: list[Any]
    divisor: int = 1
    scale: float = 1.0


@dataclass(slots=True)
class Program:
    """The functions of one rank and the actions they stand for, one to one.

    Parameters
    ----------
    calls, actions
        In order.
    ops
        The operations among them, in order: what `Desk.marks` is about.
    cut
        How many calls come before the validation of the step before.
    desk
        Where they work.
    ran
        It has run to its end before, so whatever is compiled or loaded at first use is there.
    """

    calls: list[Call] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    cut: int = 0
    desk: Desk = field(default_factory=lambda: Desk([], [], [], [], [], [], []))
    ran: bool = False


def empty_desk(lowered: Lowered, rank: int, microbatches: int) -> Desk:
    """A desk with a place for everything."""
    computes = sum(action.do is Do.COMPUTE for action in lowered.rows[rank])
    return Desk(
        mail=[None] * len(lowered.messages),
        inputs=[None] * microbatches,
        targets=[None] * microbatches,
        losses=[None] * microbatches,
        input_gradients=[None] * microbatches,
        marks=[None] * (2 * computes),
        passing=[None] * (3 * len(lowered.messages)),
    )


def training_program(
    lowered: Lowered,
    rank: int,
    *,
    first: Sequence[int],
    rest: Sequence[int],
    microbatches: int,
    stages: Mapping[int, StageWork],
    last_stage: int,
    loss_fn: Callable[..., torch.Tensor],
    boundaries: Mapping[int, Boundary],
    mail: Mail,
    mark: Mark,
    after_last_weight: Callable[[int], Call | None],
    after_forward: Callable[[int], AfterForward | None],
) -> Program:
    """Make the functions of a training step.

    Parameters
    ----------
    lowered, rank
        Whose actions.
    first, rest
        Places in the row of the actions before and after the validation of the step before.
    microbatches
        In a step.
    stages
        The rank's stages, by number.
    last_stage
        The number of the stage with the loss.
    loss_fn
        ``loss_fn(output, target)``.
    boundaries
        By message.
    mail
        The rank's messages.
    mark
        Gives the time now.
    after_last_weight
        What to do once the gradients of a stage are complete, if anything.
    after_forward
        What to do after each forward of a stage, if anything.
    """
    desk = empty_desk(lowered, rank, microbatches)
    program = Program(desk=desk)
    row = lowered.rows[rank]
    fused = {(a.op.stage, a.op.microbatch) for a in row if a.do is Do.COMPUTE and a.op.kind is Kind.BACKWARD}
    again = {(a.op.stage, a.op.microbatch) for a in row if a.do is Do.COMPUTE and a.op.kind is Kind.RECOMPUTE}
    alone = any(a.do is Do.COMPUTE and a.op.kind is Kind.RECOMPUTE for other in lowered.rows for a in other)
    entering, leaving = _ends(lowered, rank)
    joined = _joined(row, leaving)
    whole = fused | joined
    last_weight = {
        a.op.stage: a for a in row if a.do is Do.COMPUTE and a.op.kind in (Kind.BACKWARD_WEIGHT, Kind.BACKWARD)
    }

    def compute(op: Op, at: int) -> Call:
        assert op.microbatch is not None
        into, out = entering.get(op), leaving.get(op)
        stage, key = stages[op.stage], op.microbatch
        if op.kind is Kind.FORWARD:
            finish = _loss(desk, key, loss_fn) if op.stage == last_stage else None
            split = (op.stage, key) not in whole
            behind = None if out is None else boundaries[out]
            look = after_forward(op.stage)
            return _forward(
                desk, at, mark, op.stage, stage, key, into, out,
                split=split, checkpoint=(op.stage, key) in again, alone=alone, finish=finish, behind=behind, look=look,
            )  # fmt: skip
        if op.kind is Kind.RECOMPUTE:
            return _alone(desk, at, mark, stage.recompute, key)
        together = (op.stage, key) in joined
        if op.kind is Kind.BACKWARD_WEIGHT:
            return _done_with_input(desk, at) if together else _alone(desk, at, mark, stage.backward_weight, key)
        run = stage.backward_input if op.kind is Kind.BACKWARD_INPUT and not together else stage.backward
        ahead = None if out is None else boundaries[out]
        behind = None if into is None else boundaries[into]
        return _backward(desk, at, mark, op.stage, run, key, into, out, behind=behind, ahead=ahead)

    waiting_for_sends: list[tuple[Action, Call]] = []
    for number, action in enumerate((*(row[i] for i in (*first, *rest)), None)):
        if number == len(first):
            program.cut = len(program.calls)
        if action is None or action.do not in (Do.SEND, Do.HAND_OVER):
            for due, call in waiting_for_sends:
                program.actions.append(due)
                program.calls.append(call)
            waiting_for_sends.clear()
        if action is None:
            break
        if action.do is Do.COMPUTE:
            made: Call | None = compute(action.op, 2 * len(program.ops))
            program.ops.append(action.op)
            if last_weight.get(action.op.stage) is action:
                extra = after_last_weight(action.op.stage)
                if extra is not None:
                    waiting_for_sends.append((action, extra))
        else:
            made = message_call(action, desk, mail, mark)
        if made is not None:
            program.actions.append(action)
            program.calls.append(made)
    return program


def evaluation_program(
    lowered: Lowered,
    rank: int,
    *,
    microbatches: int,
    stages: Mapping[int, StageWork],
    boundaries: Mapping[int, Boundary],
    mail: Mail,
    mark: Mark,
) -> Program:
    """Make the functions of an evaluation; the last stage's outputs end in `Desk.losses`.

    Parameters as of `training_program`; `lowered` holds forwards only.
    """
    desk = empty_desk(lowered, rank, microbatches)
    program = Program(desk=desk)
    entering, leaving = _ends(lowered, rank)
    keep = mail.keeper()
    for action in lowered.rows[rank]:
        if action.do is Do.COMPUTE:
            op, at = action.op, 2 * len(program.ops)
            assert op.microbatch is not None
            out = leaving.get(op)
            made: Call | None = _evaluate(
                desk, at, mark, stages[op.stage].module, op.microbatch, entering.get(op), out, keep,
                None if out is None else boundaries[out],
            )  # fmt: skip
            program.ops.append(op)
        else:
            made = message_call(action, desk, mail, mark)
        if made is not None:
            program.actions.append(action)
            program.calls.append(made)
    return program


def message_call(action: Action, desk: Desk, mail: Mail, mark: Mark) -> Call | None:
    """The function of an action that is no compute, or None where it means nothing to the transport."""
    letters, passing, number = desk.mail, desk.passing, action.message
    at = 3 * number
    if action.do is Do.POST:
        return mail.poster(number)
    if action.do is Do.COMPLETE:
        return mail.completer(number)
    if action.do is Do.WAIT:
        wait = mail.waiter(number)

        def take() -> None:
            passing[at + 1] = mark()
            letters[number] = wait()
            passing[at + 2] = mark()

        return take
    if action.do is Do.SEND:
        send = mail.sender(number)

        def give() -> None:
            tensors = letters[number]
            letters[number] = None
            passing[at] = mark()
            send(tensors)

        return give
    if action.do is Do.HAND_OVER:
        keep = mail.keeper()
        if keep is None:
            return None

        def hand_over() -> None:
            letters[number] = keep(letters[number])

        return hand_over
    return None


def _joined(row: Sequence[Action], leaving: Mapping[Op, int]) -> set[tuple[int, int | None]]:
    """Stage and microbatch of each B that its W follows at once, and that hands nothing on."""
    ops = [action.op for action in row if action.do is Do.COMPUTE]
    return {
        (op.stage, op.microbatch)
        for op, behind in itertools.pairwise(ops)
        if op.kind is Kind.BACKWARD_INPUT
        and behind == Op(Kind.BACKWARD_WEIGHT, op.stage, op.microbatch)
        and op not in leaving
    }


def _ends(lowered: Lowered, rank: int) -> tuple[dict[Op, int], dict[Op, int]]:
    """The message that enters each operation of a rank, and the one that leaves it."""
    entering, leaving = {}, {}
    for number, message in enumerate(lowered.messages):
        if message.receiver == rank:
            entering[message.head] = number
        if message.sender == rank:
            leaving[message.tail] = number
    return entering, leaving


def _forward(
    desk: Desk,
    at: int,
    mark: Mark,
    number: int,
    stage: StageWork,
    key: int,
    into: int | None,
    out: int | None,
    *,
    split: bool,
    checkpoint: bool,
    alone: bool,
    finish: Callable[[Any], Any] | None,
    behind: Boundary | None,
    look: AfterForward | None,
) -> Call:
    letters, marks, run = desk.mail, desk.marks, stage.forward
    source, place = (desk.inputs, key) if into is None else (letters, into)
    kept = {"checkpoint": True} if checkpoint else {}
    if alone:
        run = _drawing_alone(run)

    def forward() -> None:
        inputs = source[place]
        if source is letters:
            source[place] = None
        marks[at] = mark()
        outputs = run(key, *inputs, split=split, finish=finish, **kept)
        marks[at + 1] = mark()
        if look is not None:
            look(key, inputs, outputs if finish is None else (desk.losses[key],), finish is not None)
        if behind is not None:
            if behind.specs is None:
                warn_if_cut_off(number, stage.module, inputs, outputs)
            behind.check(outputs, key)
            letters[out] = outputs  # type: ignore[index]

    return forward


def _backward(
    desk: Desk,
    at: int,
    mark: Mark,
    number: int,
    run: Callable[[int, Sequence[Any]], tuple[Any, ...]],
    key: int,
    into: int | None,
    out: int | None,
    *,
    behind: Boundary | None,
    ahead: Boundary | None,
) -> Call:
    letters, marks, told = desk.mail, desk.marks, desk.input_gradients
    of_the_loss = (None,)
    warned = False

    def backward() -> None:
        if behind is None:
            gradients: Sequence[Any] = of_the_loss
        else:
            gradients = behind.returned(letters[into])  # type: ignore[index]
            letters[into] = None  # type: ignore[index]
        marks[at] = mark()
        found = run(key, gradients)
        marks[at + 1] = mark()
        if ahead is None:
            told[key] = found
            return
        returning = ahead.returning(found)
        letters[out] = returning  # type: ignore[index]
        nonlocal warned
        if returning and returning[0] is None and not warned and stops(returning, gradients, of_the_loss):
            warned = True
            warn_of_stop(number)

    return backward


def _drawing_alone(run: Callable[..., Any]) -> Callable[..., Any]:
    """Not while a rank of this process computes a forward again: they draw from one generator."""

    def drawing_alone(*inputs: Any, **how: Any) -> Any:
        with DRAWING:
            return run(*inputs, **how)

    return drawing_alone


def _alone(desk: Desk, at: int, mark: Mark, run: Callable[[int], None], key: int) -> Call:
    """What takes nothing in and hands nothing on."""
    marks = desk.marks

    def alone() -> None:
        marks[at] = mark()
        run(key)
        marks[at + 1] = mark()

    return alone


def _done_with_input(desk: Desk, at: int) -> Call:
    marks = desk.marks

    def nothing() -> None:
        marks[at] = marks[at + 1] = marks[at - 1]

    return nothing


def _evaluate(
    desk: Desk,
    at: int,
    mark: Mark,
    module: torch.nn.Module,
    key: int,
    into: int | None,
    out: int | None,
    keep: Callable[[Tensors], Tensors] | None,
    behind: Boundary | None,
) -> Call:
    letters, marks = desk.mail, desk.marks
    source, place = (desk.inputs, key) if into is None else (letters, into)

    def evaluate() -> None:
        inputs = source[place]
        if source is letters:
            source[place] = None
        marks[at] = mark()
        result = module(*inputs)
        marks[at + 1] = mark()
        outputs = tuple(result) if isinstance(result, tuple | list) else (result,)
        if behind is None:
            # the output may be the input itself, which lies in a receive slot
            desk.losses[key] = outputs if keep is None else keep(outputs)
        else:
            behind.check(outputs, key)
            letters[out] = outputs  # type: ignore[index]

    return evaluate


def _loss(desk: Desk, key: int, loss_fn: Callable[..., torch.Tensor]) -> Callable[[Any], Any]:
    """The last stage's output to what the backward starts from; notes the plain loss."""

    def finish(output: Any) -> torch.Tensor:
        target = desk.targets[key]
        loss = loss_fn(output, target)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise RunError(f"the loss function must return one number, got {got}")
        if loss.dim():
            loss = loss.reshape(())
        if not loss.requires_grad:
            raise RunError(
                "the loss has no gradient, so nothing would learn: is the output or the loss detached, turned into a "
                "plain number, computed under no_grad, or is every parameter frozen?"
            )
        desk.losses[key] = loss.detach()
        if desk.divisor != 1:
            loss = loss / desk.divisor
        return loss if desk.scale == 1.0 else loss * desk.scale

    return finish
