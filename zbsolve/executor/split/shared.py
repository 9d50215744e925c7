"""Parameters that lie in several stages of one rank.

Plain training sees all uses of such a parameter in one backward and adds their sum to ``.grad``.
Here each stage has a W of its own, and floating-point sums depend on their brackets, so what the stages
find waits until the last of them is done with the microbatch::

    W3 of stage 5    g5 ----+
    W3 of stage 0    g0 ----+--->  .grad += (g5 + g0)        the order in which one backward meets them

The price is one gradient of the parameter's size for each microbatch that waits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping

import torch

from zbsolve.executor.split.accumulate import accumulate

__all__ = ["SharedByStages", "StageShare"]


class SharedByStages:
    """The parameters that several stages of a rank hold, and what has been found of their gradients.

    Parameters
    ----------
    modules
        The stages, by number.
    """

    def __init__(self, modules: Mapping[int, torch.nn.Module]) -> None:
        holders: dict[int, set[int]] = defaultdict(set)
        self.parameters: dict[int, torch.Tensor] = {}
        for number, module in modules.items():
            for parameter in module.parameters():
                holders[id(parameter)].add(number)
                self.parameters[id(parameter)] = parameter
        self.holders = {key: frozenset(numbers) for key, numbers in holders.items() if len(numbers) > 1}
        self._missing: dict[tuple[Hashable, int], set[int]] = {}
        self._found: dict[tuple[Hashable, int], list[tuple[int, torch.Tensor, bool]]] = {}

    def of(self, number: int) -> StageShare | None:
        """The view of one stage; None where it shares nothing."""
        mine = {key: self.parameters[key] for key, numbers in self.holders.items() if number in numbers}
        return StageShare(self, number, mine) if mine else None

    def forget(self) -> None:
        """Drop what waits, as after an error."""
        self._missing.clear()
        self._found.clear()

    def give(
        self, number: int, key: Hashable, parameter: torch.Tensor, gradient: torch.Tensor, *, hooked: bool
    ) -> None:
        """A stage has found the gradient of one use, or of several that autograd has summed."""
        self._found.setdefault((key, id(parameter)), []).append((number, gradient, hooked))

    def done(self, number: int, key: Hashable, parameter: torch.Tensor) -> None:
        """A stage has given all that it finds in this microbatch."""
        place = key, id(parameter)
        missing = self._missing.setdefault(place, set(self.holders[id(parameter)]))
        missing.discard(number)
        if missing:
            return
        del self._missing[place]
        # the backward of the whole model meets the last stage first
        found = sorted(self._found.pop(place, ()), key=lambda one: -one[0])
        if found:
            total = found[0][1]
            for _, gradient, _ in found[1:]:
                total = total + gradient
            accumulate(parameter, total, hooked=any(hooked for *_, hooked in found))


class StageShare:
    """What one stage has to do with `SharedByStages`.

    Parameters
    ----------
    everyone
        Of the rank.
    number
        The stage's.
    parameters
        Those of its parameters that others hold, too, by id.
    """

    __slots__ = ("_everyone", "_number", "parameters")

    def __init__(self, everyone: SharedByStages, number: int, parameters: Mapping[int, torch.Tensor]) -> None:
        self._everyone = everyone
        self._number = number
        self.parameters = parameters

    def give(self, key: Hashable, parameter: torch.Tensor, gradient: torch.Tensor, *, hooked: bool) -> None:
        """As of `SharedByStages`."""
        self._everyone.give(self._number, key, parameter, gradient, hooked=hooked)

    def done(self, key: Hashable) -> None:
        """All gradients of this microbatch have been given; call without grad mode."""
        for parameter in self.parameters.values():
            self._everyone.done(self._number, key, parameter)

    def forget(self) -> None:
        """As of `SharedByStages`."""
        self._everyone.forget()
