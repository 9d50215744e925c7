"""What the weight gradients still need, between B and W.

B of a module that can be split puts one entry here: how to compute, from what, for which
parameters. W takes the entries out in the order they came, which is the order in which autograd
would have computed them, and each entry's tensors are free as soon as it is done::

    B:   head.backward -> add     block1.backward -> add     block0.backward -> add
              |                        |                          |
              v                        v                          v
    queue:  [head: x, dY]         [block1: x, dY]           [block0: x, dY]
              |                        |                          |
    W:   weigh, .grad +=          weigh, .grad +=            weigh, .grad +=

A parameter that a microbatch uses more than once gets the sum of its uses first, and its
``.grad`` is touched once, as autograd does it: floating-point sums depend on their brackets.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import torch

from zbsolve.errors import RunError
from zbsolve.executor.split.accumulate import accumulate

__all__ = ["Entry", "Gradients", "WeightQueue", "kept_by"]

Gradients: TypeAlias = "tuple[torch.Tensor | None, ...]"

Entry: TypeAlias = "tuple[Callable[..., Gradients], tuple[Any, ...], tuple[torch.Tensor | None, ...]]"
"""One use of one module: `weigh`, its arguments, and the parameters (None where no gradient is wanted).

``weigh(parameters, *arguments)`` returns one gradient for each parameter.
"""


def as_found(_parameters: tuple[torch.Tensor], gradient: torch.Tensor) -> Gradients:
    """Give a gradient that autograd has computed in B."""
    return (gradient,)


def kept_by(entries: Iterable[Entry], *, ready: bool) -> Iterator[torch.Tensor]:
    """The tensors that entries keep alive: gradients ready to be added, or what they will be computed from."""
    for weigh, arguments, _ in entries:
        if (weigh is as_found) is ready:
            yield from (a for a in arguments if isinstance(a, torch.Tensor))


class WeightQueue:
    """The entries of one microbatch on one stage.

    It refers to nothing but what W needs, so a graph whose nodes know their queue holds no cycle.
    """

    __slots__ = ("entries", "is_open")

    def __init__(self) -> None:
        self.entries: deque[Entry] = deque()
        self.is_open = False

    def add(self, entry: Entry) -> None:
        """Take an entry, from within the backward of a module.

        Raises
        ------
        RunError
            If the backward is not the stage's own: a gradient taken inside the forward would be
            counted as the weight's, and its own second gradient would be lost.
        """
        if not self.is_open:
            raise RunError(
                "a gradient was taken through a split module outside the backward of its stage; name the modules that "
                "differentiate inside their forward in SplitStage(keep_whole=...)"
            )
        self.entries.append(entry)

    def add_found(self, found: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Take gradients that B had to compute, each with its parameter."""
        self.entries.extend((as_found, (gradient,), (parameter,)) for parameter, gradient in found)

    def run(self) -> None:
        """Compute every gradient and add it to the ``.grad`` of its parameter; call without grad mode."""
        entries = self.entries
        ids = [id(p) for _, _, parameters in entries for p in parameters if p is not None]
        again = Counter(ids) if len(set(ids)) < len(ids) else None
        sums: dict[int, torch.Tensor] = {}
        while entries:
            # the last entry's tensors go here, its gradients at the end of `settle`
            weigh, arguments, parameters = entries.popleft()
            settle(parameters, weigh(parameters, *arguments), again, sums, hooked=weigh is as_found)


def settle(
    parameters: tuple[torch.Tensor | None, ...],
    gradients: Gradients,
    again: Counter[int] | None,
    sums: dict[int, torch.Tensor],
    *,
    hooked: bool,
) -> None:
    """Add gradients to where they belong: to ``.grad``, or to the sum of a parameter that comes again.

    Parameters
    ----------
    again
        How often each parameter, by id, is still to come; None if none comes twice.
    sums
        What has come of those so far.
    hooked
        As for `accumulate`.
    """
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if parameter is None or gradient is None:
            continue
        total = gradient
        if again is not None:
            key = id(parameter)
            if key in sums:
                total = sums.pop(key) + gradient
            again[key] -= 1
            if again[key]:
                sums[key] = total
                continue
        accumulate(parameter, total, hooked=hooked)
