"""Each kind of action as a function that is made once and called in every step: it takes nothing and gives nothing.

What it needs and what it makes lies on the rank's `Desk`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils._pytree import tree_leaves

from zbsolve.executor.boundary import Boundary
from zbsolve.executor.cutoff import stops, warn_if_cut_off, warn_of_stop
from zbsolve.executor.desk import AfterForward, Call, Desk, Mark, StageWork
from zbsolve.executor.split import DRAWING
from zbsolve.executor.split.arriving import arrived
from zbsolve.executor.transports.protocol import Mail, Tensors
from zbsolve.lowering import Action, Do

__all__ = [
    "alone_call",
    "backward_call",
    "copy_call",
    "evaluation_call",
    "forward_call",
    "joined_weight_call",
    "message_call",
    "release_call",
    "together_call",
]


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


def forward_call(
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
    moves: bool,
    alone: bool,
    finish: Callable[[Any], Any] | None,
    behind: Boundary | None,
    look: AfterForward | None,
) -> Call:
    """The function of an F, which may keep a checkpoint alone, or move away; `alone`: in turn with those of others."""
    letters, marks, run = desk.mail, desk.marks, stage.forward
    source, place = (desk.inputs, key) if into is None else (letters, into)
    kept: dict[str, Any] = {name: True for name, does in (("checkpoint", checkpoint), ("moves", moves)) if does}
    if alone:
        run = _drawing_alone(run)

    def forward() -> None:
        inputs = source[place]
        if source is letters:
            source[place] = None
        if moves and finish is not None:  # the target, part of the batch, lies there anyway
            kept["stays"] = tree_leaves(desk.targets[key])
        marks[at] = mark()
        outputs = run(key, *inputs, split=split, finish=finish, **kept)
        kept.pop("stays", None)
        marks[at + 1] = mark()
        if look is not None:
            look(key, inputs, outputs if finish is None else (desk.losses[key],), finish is not None)
        if behind is not None:
            if behind.specs is None:
                warn_if_cut_off(number, stage.module, inputs, outputs)
            behind.check(outputs, key)
            letters[out] = outputs  # type: ignore[index]

    return forward


def backward_call(
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
    """The function of a B, or of a whole backward."""
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


def alone_call(desk: Desk, at: int, mark: Mark, run: Callable[[int], None], key: int) -> Call:
    """The function of what takes nothing in and hands nothing on: a W, or a forward that is computed again."""
    marks = desk.marks

    def alone() -> None:
        marks[at] = mark()
        run(key)
        marks[at + 1] = mark()

    return alone


def together_call(desk: Desk, at: int, first: Call, second: Call) -> Call:
    """The function of two that run together: one after the other, as one operation."""
    marks = desk.marks

    def together() -> None:
        first()
        started = marks[at]
        second()
        marks[at] = started

    return together


def copy_call(desk: Desk, at: int, mark: Mark, run: Callable[[int, Mark], tuple[Any, Any]], key: int) -> Call:
    """The function of an offload or a reload, which notes the time where it runs, beside the computing."""
    marks = desk.marks

    def copy() -> None:
        marks[at], marks[at + 1] = run(key, mark)

    return copy


def release_call(desk: Desk, at: int, mark: Mark, run: Callable[[int], None], key: int) -> Call:
    """The function of a release, which takes no time once its copy has ended."""
    marks = desk.marks

    def release() -> None:
        run(key)
        marks[at] = marks[at + 1] = mark()

    return release


def joined_weight_call(desk: Desk, at: int) -> Call:
    """The function of a W that its B has done already."""
    marks = desk.marks

    def nothing() -> None:
        marks[at] = marks[at + 1] = marks[at - 1]

    return nothing


def evaluation_call(
    desk: Desk,
    at: int,
    mark: Mark,
    module: Callable[..., Any],
    key: int,
    into: int | None,
    out: int | None,
    keep: Callable[[Tensors], Tensors] | None,
    behind: Boundary | None,
) -> Call:
    """The function of an F in an evaluation."""
    letters, marks = desk.mail, desk.marks
    source, place = (desk.inputs, key) if into is None else (letters, into)

    def evaluate() -> None:
        inputs = source[place]
        if source is letters:
            source[place] = None
        marks[at] = mark()
        result = module(*inputs)
        marks[at + 1] = mark()
        outputs = tuple(map(arrived, result)) if isinstance(result, tuple | list) else (arrived(result),)
        if behind is None:
            # the output may be the input itself, which lies in a receive slot
            desk.losses[key] = outputs if keep is None else keep(outputs)
        else:
            behind.check(outputs, key)
            letters[out] = outputs  # type: ignore[index]

    return evaluate
