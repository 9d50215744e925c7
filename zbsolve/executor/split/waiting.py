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
``.grad`` is touched once, as autograd does it: floating-point sums depend on their brackets. Autograd
does so for each of its runs; the backward of a reentrant checkpoint is a run of its own, within the run
of the stage, so what is found in one is summed and added apart from what is found in another.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, TypeAlias

import torch

from zbsolve.errors import RunError
from zbsolve.executor.split.accumulate import accumulate
from zbsolve.executor.split.shared import StageShare

__all__ = ["Entry", "Gradients", "WeightQueue", "kept_by"]

Gradients: TypeAlias = "tuple[torch.Tensor | None, ...]"

Entry: TypeAlias = "tuple[Callable[..., Gradients], tuple[Any, ...], tuple[torch.Tensor | None, ...]]"
"""One use of one module: `weigh`, its arguments, and the parameters (None where no gradient is wanted).

``weigh(parameters, *arguments)`` returns one gradient for each parameter.
"""


# not public: where a version of torch lacks it, all runs of autograd count as one
run_of_autograd: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: 0)


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

    __slots__ = ("entries", "is_open", "runs")

    def __init__(self) -> None:
        self.entries: deque[Entry] = deque()
        # which run of autograd each entry comes from
        self.runs: list[int] = []
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
        self.runs.append(run_of_autograd())

    def add_piece(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        """Take a gradient that B had to compute, from within the run of autograd that has summed it."""
        self.entries.append((as_found, (gradient,), (parameter,)))
        self.runs.append(run_of_autograd())

    def add_found(self, found: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Take gradients that B had to compute, each with its parameter, after a B of one run."""
        run = self.runs[-1] if self.runs else 0
        for parameter, gradient in found:
            self.entries.append((as_found, (gradient,), (parameter,)))
            self.runs.append(run)

    def found(self) -> list[torch.Tensor]:
        """The parameters whose gradients B had to compute."""
        return [parameter for weigh, _, (parameter, *_) in self.entries if weigh is as_found and parameter is not None]

    def sort_out(self) -> bool:
        """Whether there were several runs of autograd; of one, what B had to compute comes last, as ever after."""
        if len(set(self.runs)) > 1:
            return True
        self.entries = deque(sorted(self.entries, key=lambda entry: entry[0] is as_found))
        return False

    def run(self, key: Hashable = None, share: StageShare | None = None) -> None:
        """Compute every gradient and add it to the ``.grad`` of its parameter; call without grad mode.

        Parameters
        ----------
        key, share
            The microbatch, and where gradients of parameters go that other stages of the rank hold, too.
        """
        entries = self.entries
        once = [id(p) for _, _, parameters in entries for p in parameters if p is not None]
        if share is None and len(set(once)) == len(once):
            # nearly always: every parameter once; its gradient is let go of before the next one is made
            while entries:
                weigh, arguments, parameters = entries.popleft()
                add_all(parameters, weigh(parameters, *arguments), weigh is as_found)
            self.runs = []
            return
        self._run_and_sum(key, share)

    def _run_and_sum(self, key: Hashable, share: StageShare | None) -> None:
        """The same where parameters are used again, or other stages hold them, too."""
        entries = self.entries
        uses = [
            (id(p), run)
            for (_, _, parameters), run in zip(entries, self.runs, strict=True)
            for p in parameters
            if p is not None
        ]
        again = Counter(uses) if len(set(uses)) < len(uses) else None
        sums: dict[tuple[int, int], torch.Tensor] = {}
        for run in self.runs:
            # the last entry's tensors go here, its gradients at the end of `settle`
            weigh, arguments, parameters = entries.popleft()
            gradients = weigh(parameters, *arguments)
            hooked = weigh is as_found
            if share is not None:
                gradients = handed_over(parameters, gradients, key, share, hooked=hooked)
            if again is None:
                add_all(parameters, gradients, hooked)
            else:
                settle(parameters, gradients, run, again, sums, hooked=hooked)
        self.runs = []
        if share is not None:
            share.done(key)


def add_all(parameters: tuple[torch.Tensor | None, ...], gradients: Gradients, hooked: bool) -> None:
    """Add the gradients of one use to ``.grad``; `hooked` as for `accumulate`."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if parameter is not None and gradient is not None:
            accumulate(parameter, gradient, hooked=hooked)


def handed_over(
    parameters: tuple[torch.Tensor | None, ...], gradients: Gradients, key: Hashable, share: StageShare, *, hooked: bool
) -> Gradients:
    """Give away the gradients of parameters that other stages hold; the rest is returned, with None for those."""
    kept: list[torch.Tensor | None] = []
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if parameter is None or gradient is None or id(parameter) not in share.parameters:
            kept.append(gradient)
        else:
            share.give(key, parameter, gradient, hooked=hooked)
            kept.append(None)
    return tuple(kept)


def settle(
    parameters: tuple[torch.Tensor | None, ...],
    gradients: Gradients,
    run: int,
    again: Counter[tuple[int, int]],
    sums: dict[tuple[int, int], torch.Tensor],
    *,
    hooked: bool,
) -> None:
    """Add the gradients of one use to where they belong: to ``.grad``, or to the sum of a parameter that comes again.

    Parameters
    ----------
    run
        Of autograd, in which they were found.
    again
        How often each parameter, by id and run, is still to come.
    sums
        What has come of those so far.
    hooked
        As for `accumulate`.
    """
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if parameter is None or gradient is None:
            continue
        key = id(parameter), run
        total = sums.pop(key) + gradient if key in sums else gradient
        again[key] -= 1
        if again[key]:
            sums[key] = total
        else:
            accumulate(parameter, total, hooked=hooked)
