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
from typing import Any, NamedTuple, TypeAlias

import torch

from zbsolve.errors import RunError
from zbsolve.executor.split.accumulate import accumulate

__all__ = ["Entry", "Gradients", "WeightQueue"]

Gradients: TypeAlias = "tuple[torch.Tensor | None, ...]"


class Entry(NamedTuple):
    """One use of one module, waiting for W."""

    weigh: Callable[..., Gradients]
    """Gives the parameters' gradients from the arguments."""
    arguments: tuple[Any, ...]
    parameters: tuple[torch.Tensor | None, ...]
    """One for each gradient; None where none is wanted."""

    @property
    def is_found(self) -> bool:
        """Whether B had to compute the gradient itself."""
        return self.weigh is as_found

    def tensors(self) -> Iterator[torch.Tensor]:
        """What it keeps alive, parameters apart."""
        return (a for a in self.arguments if isinstance(a, torch.Tensor))


def as_found(gradient: torch.Tensor) -> Gradients:
    """The `weigh` of a gradient that B had to compute."""
    return (gradient,)


class WeightQueue:
    """The entries of one microbatch on one stage.

    It refers to nothing but what W needs, so a graph whose nodes know their queue holds no cycle.
    """

    __slots__ = ("entries", "is_open")

    def __init__(self) -> None:
        self.entries: deque[Entry] = deque()
        self.is_open = False

    def add(
        self, weigh: Callable[..., Gradients], arguments: tuple[Any, ...], parameters: tuple[torch.Tensor | None, ...]
    ) -> None:
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
        self.entries.append(Entry(weigh, arguments, parameters))

    def add_found(self, found: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Take gradients that B had to compute, each after its parameter."""
        self.entries.extend(Entry(as_found, (gradient,), (parameter,)) for parameter, gradient in found)

    def run(self) -> None:
        """Compute every gradient and add it to the ``.grad`` of its parameter; call without grad mode."""
        entries = self.entries
        ids = [id(p) for entry in entries for p in entry.parameters if p is not None]
        again = Counter(ids) if len(set(ids)) < len(ids) else None
        sums: dict[int, torch.Tensor] = {}
        while entries:
            weigh, arguments, parameters = entries.popleft()
            gradients = weigh(*arguments)
            # the entry's tensors go before the next gradient is made
            del arguments
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
                accumulate(parameter, total)
