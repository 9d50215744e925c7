"""A rank's actions as ready-made functions: everything is looked up before the first step.

An action becomes a closure over the lists it reads and writes. All that passes between actions
lies in `Desk.mail`, one place a message::

    wait 7      mail[7] = what came
    F3          mail[9] = forward(3, *mail[7])
    send 9      hand mail[9] to the transport

Actions that mean nothing to a transport, and hand-overs within the rank, leave no function.

A forward and a backward that run together are one function after the other, and one operation of the trace: a rank
computes in one thread, so what two streams of a device could hide is not hidden here.

A B with its W right behind it, and no other operation that waits for what B finds (so on stage 0), runs as one
plain backward: the gradients are the same, and nothing is kept for W in between. The trace shows a W of no length.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from zbsolve.executor.actions import (
    alone_call,
    backward_call,
    copy_call,
    evaluation_call,
    forward_call,
    joined_weight_call,
    message_call,
    release_call,
    together_call,
)
from zbsolve.executor.boundary import Boundary
from zbsolve.executor.carrying import CarryingStage
from zbsolve.executor.desk import AfterForward, Call, Desk, Mark, StageWork, empty_desk
from zbsolve.executor.losses import loss_of
from zbsolve.executor.transports.protocol import Mail
from zbsolve.lowering import Action, Do, Lowered
from zbsolve.ops import Kind, Op

_BACKWARDS = (Kind.BACKWARD, Kind.BACKWARD_INPUT)

__all__ = ["Program", "evaluation_program", "training_program"]


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
    runs = [(half, a) for a in row if a.do is Do.COMPUTE for half in a.op.halves]
    fused = {(op.stage, op.microbatch) for op, _ in runs if op.kind is Kind.BACKWARD}
    again = {(op.stage, op.microbatch) for op, _ in runs if op.kind is Kind.RECOMPUTE}
    moving = {(op.stage, op.microbatch) for op, _ in runs if op.kind is Kind.OFFLOAD}
    alone = any(a.do is Do.COMPUTE and a.op.kind is Kind.RECOMPUTE for other in lowered.rows for a in other)
    entering, leaving = _messages(lowered, rank)
    joined = _joined(row, leaving)
    whole = fused | joined
    last_weight = {op.stage: a for op, a in runs if op.kind in (Kind.BACKWARD_WEIGHT, Kind.BACKWARD)}

    def compute(op: Op, at: int) -> Call:
        if op.beside is not None:
            return together_call(desk, at, *(compute(half, at) for half in op.halves))
        assert op.microbatch is not None
        into, out = entering.get(op), leaving.get(op)
        stage, key = stages[op.stage], op.microbatch
        if op.kind is Kind.FORWARD:
            finish = loss_of(desk, key, loss_fn) if op.stage == last_stage else None
            split = (op.stage, key) not in whole
            behind = None if out is None else boundaries[out]
            look = after_forward(op.stage)
            return forward_call(
                desk, at, mark, op.stage, stage, key, into, out,
                split=split, checkpoint=(op.stage, key) in again, moves=(op.stage, key) in moving, alone=alone,
                finish=finish, behind=behind, look=look,
            )  # fmt: skip
        if op.kind is Kind.RECOMPUTE:
            return alone_call(desk, at, mark, stage.recompute, key)
        if op.kind is Kind.RELEASE:
            return release_call(desk, at, mark, stage.release, key)
        if op.kind.moves:
            return copy_call(desk, at, mark, stage.offload if op.kind is Kind.OFFLOAD else stage.reload, key)
        together = (op.stage, key) in joined
        if op.kind is Kind.BACKWARD_WEIGHT:
            return joined_weight_call(desk, at) if together else alone_call(desk, at, mark, stage.backward_weight, key)
        run = stage.backward_input if op.kind is Kind.BACKWARD_INPUT and not together else stage.backward
        ahead = None if out is None else boundaries[out]
        behind = None if into is None else boundaries[into]
        return backward_call(desk, at, mark, op.stage, run, key, into, out, behind=behind, ahead=ahead)

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
            for half in action.op.halves:
                key = half.microbatch
                if half.kind in _BACKWARDS and key is not None and (half.stage, key) in moving:
                    # ahead of its marks, as for whatever a backward waits for
                    program.actions.append(action)
                    program.calls.append(partial(stages[half.stage].arrive, key))
            made: Call | None = compute(action.op, 2 * len(program.ops))
            program.ops.append(action.op)
            for half in action.op.halves:
                extra = after_last_weight(half.stage) if _ends(half, action, last_weight) else None
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
    entering, leaving = _messages(lowered, rank)
    keep = mail.keeper()
    for action in lowered.rows[rank]:
        if action.do is Do.COMPUTE:
            op, at = action.op, 2 * len(program.ops)
            assert op.microbatch is not None
            out = leaving.get(op)
            stage = stages[op.stage]
            run = partial(stage.evaluate, op.microbatch) if isinstance(stage, CarryingStage) else stage.module
            made: Call | None = evaluation_call(
                desk, at, mark, run,
                op.microbatch, entering.get(op), out, keep,
                None if out is None else boundaries[out],
            )  # fmt: skip
            program.ops.append(op)
        else:
            made = message_call(action, desk, mail, mark)
        if made is not None:
            program.actions.append(action)
            program.calls.append(made)
    return program


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


def _ends(op: Op, action: Action, last_weight: Mapping[int, Action]) -> bool:
    """Whether an operation of an action is the last that adds to the gradients of its stage."""
    return op.kind in (Kind.BACKWARD_WEIGHT, Kind.BACKWARD) and last_weight.get(op.stage) is action


def _messages(lowered: Lowered, rank: int) -> tuple[dict[Op, int], dict[Op, int]]:
    """The message that enters each operation of a rank, and the one that leaves it."""
    entering, leaving = {}, {}
    for number, message in enumerate(lowered.messages):
        if message.receiver == rank:
            entering[message.head] = number
        if message.sender == rank:
            leaving[message.tail] = number
    return entering, leaving
