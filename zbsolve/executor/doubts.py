"""What makes a measurement doubtful, or a model no pipeline: found on the real model, told in words.

A profile is believed by all that follows, so a model that does not learn on the sample, or whose
backward is cut somewhere, should not pass without a word: its times are not those of training.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence

import torch
from torch.nn.parameter import UninitializedParameter

from zbsolve.errors import InvalidInput
from zbsolve.executor.borders import Border
from zbsolve.executor.stagework import StageWork

IDLE_CHECKPOINT = "None of the inputs have requires_grad"
"""How torch's reentrant checkpoint says that it does nothing."""

__all__ = ["doubts", "refuse_shared"]


def refuse_shared(modules: Sequence[torch.nn.Module]) -> None:
    """Refuse stages that are not apart: the ranks of a pipeline share no memory.

    Raises
    ------
    InvalidInput
        If two stages are the same module, or share a weight or its memory.
    """
    for (a, first), (b, second) in itertools.combinations(enumerate(modules), 2):
        if first is second:
            raise InvalidInput(
                f"stages {a} and {b} are the same module; a rank cannot share it with another, so give each a copy"
            )
    owners: dict[object, tuple[int, str]] = {}
    for number, module in enumerate(modules):
        for name, parameter in module.named_parameters():
            for key in _identities(parameter):
                owner, known_as = owners.setdefault(key, (number, name))
                if owner != number:
                    raise InvalidInput(
                        f"stages {owner} and {number} share a weight ({known_as} and {name}); ranks share nothing and "
                        "no schedule here sums the gradients of two copies, so give each stage a weight of its own"
                    )


def _identities(parameter: torch.nn.Parameter) -> Iterator[object]:
    yield id(parameter)
    if not isinstance(parameter, UninitializedParameter) and (address := parameter.data_ptr()):
        yield str(parameter.device), address


def doubts(work: StageWork, border: Border) -> list[str]:
    """Run a stage once more and tell what is doubtful about it.

    Returns
    -------
    One sentence for each: a checkpoint that recomputes nothing, a loss that is no number, no gradient
    for the stage's input, weights that get no gradient.
    """
    module = work.module
    kept = [(parameter, parameter.grad) for parameter in module.parameters()]
    for parameter, _ in kept:
        parameter.grad = None
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            flight = work.forward(border.leaves(), split=False)
        found = []
        if any(IDLE_CHECKPOINT in str(warning.message) for warning in said):
            found.append(
                f"a reentrant checkpoint on stage {work.number} gets no input that wants a gradient, so it recomputes "
                "nothing and the weights in it learn nothing; checkpoint with use_reentrant=False"
            )
        if flight.loss is not None and not bool(torch.isfinite(flight.loss.detach()).all()):
            found.append(f"the loss of the sample is {float(flight.loss.detach())}; check sample, weights and loss")
        gradients = work.backward(flight, border.output_grads)
        wanted = [gradient for gradient, wants in zip(gradients, border.wants_grad, strict=True) if wants]
        if wanted and all(gradient is None for gradient in wanted):
            found.append(
                f"stage {work.number} gives its input no gradient, so the stages before it learn nothing; is it "
                "detached there, or under no_grad?"
            )
        found += _without_gradient(work)
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient
    return found


def _without_gradient(work: StageWork) -> list[str]:
    names = [name for name, p in work.module.named_parameters() if p.requires_grad and p.grad is None]
    if not names:
        return []
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return [
        f"on stage {work.number} no gradient reaches {shown}, so their backward was not measured; does the sample not "
        "use them, or is something detached?"
    ]
