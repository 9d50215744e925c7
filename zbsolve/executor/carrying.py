"""A stage whose slices of a sequence share state: what one leaves for the next goes on, and its gradient comes back.

A stage says that it does by taking an argument `carry`, and gives back its output and what it carries on::

    def forward(self, x, carry):            carry: None for the first slice of a sequence, then
        ...                                 what this stage gave for the slice before
        return y, (keys, values)            a tensor, a tuple of tensors, or None

To the stage below, carry is one more input and one more output, so F, B and W are what they are::

    F0 --carry--> F1 --carry--> F2          on one stage: F of slice 1 needs F of slice 0,
    B0 <-gradient- B1 <-gradient- B2        B of slice 1 needs B of slice 2

Where sequences are whole, carry is None and what the stage gives of it is left. A stage without the argument
runs its slices as microbatches that have nothing to do with each other.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from zbsolve.errors import InvalidInput, RunError
from zbsolve.executor.desk import Mark, StageWork
from zbsolve.executor.split import HeldBytes, SplitReport, SplitStage
from zbsolve.executor.split.arriving import arrived
from zbsolve.executor.split.shared import StageShare

__all__ = ["ARGUMENT", "CarryingStage", "all_with_carry", "carries", "warn_if_none_carries", "with_carry"]

ARGUMENT = "carry"
"""The argument by which a module says that it carries something from slice to slice."""

Tensors = tuple[torch.Tensor, ...]


def carries(module: torch.nn.Module) -> bool:
    """Whether a module's forward takes a carry; what is compiled is asked for what it was compiled from."""
    forward = getattr(module, "_orig_mod", module).forward
    try:
        return ARGUMENT in inspect.signature(forward).parameters
    except (TypeError, ValueError):  # no Python function, as in TorchScript
        return False


def with_carry(stage: SplitStage, slices: int) -> SplitStage | CarryingStage:
    """The stage, carrying from slice to slice if its module does."""
    return CarryingStage(stage, slices) if carries(stage.module) else stage


def all_with_carry(works: Mapping[int, StageWork], slices: int) -> dict[int, StageWork]:
    """The same of all stages of a rank; what is no `SplitStage` sees to itself."""
    return {
        number: with_carry(work, slices) if isinstance(work, SplitStage) else work for number, work in works.items()
    }


def warn_if_none_carries(held: Iterable[Mapping[int, StageWork]], slices: int) -> None:
    """Warn if sequences come in slices and no stage here hands anything from one to the next."""
    works = [work for of_rank in held for work in of_rank.values()]
    if slices > 1 and works and all(isinstance(work, SplitStage) for work in works):
        warnings.warn(
            f"no stage takes the argument {ARGUMENT!r}, so the {slices} slices of a sequence know nothing of each "
            f"other: right where positions are computed one by one, wrong for attention, whose forward(x, {ARGUMENT}) "
            f"returns (y, {ARGUMENT}); give stages the argument (it may be left alone) if that is meant",
            stacklevel=3,
        )


@dataclass(frozen=True, slots=True)
class _Carry:
    """What passes from a slice to the next: its tensors, and whether they are one, several or none to the module."""

    tensors: Tensors
    form: type[object]

    @classmethod
    def of(cls, value: Any, name: str) -> _Carry:
        if value is None:
            return cls((), type(None))
        if isinstance(value, torch.Tensor):
            return cls((value,), torch.Tensor)
        if isinstance(value, tuple | list) and all(isinstance(v, torch.Tensor) for v in value):
            return cls(tuple(value), tuple)
        raise InvalidInput(
            f"{name} carries on a {type(value).__name__}; give a tensor, a tuple of tensors, or None as second result"
        )

    def value(self, tensors: Sequence[Any]) -> Any:
        """These tensors in the form that the module knows them in."""
        if self.form is type(None):
            return None
        return tensors[0] if self.form is torch.Tensor else tuple(tensors)


_NO_CARRY = _Carry((), type(None))


@dataclass(slots=True)
class _Slice:
    """One slice between its forward and its backward: how many inputs and outputs are its own."""

    inputs: int
    outputs: int
    carried_on: Tensors


class CarryingStage:
    """A `SplitStage` that hands what its module carries from slice to slice, and the gradients back.

    Parameters
    ----------
    stage
        Its module takes `carry`.
    slices
        Of a sequence: microbatch j is slice ``j % slices`` of its sequence.

    Notes
    -----
    Tensors that lie in a receive buffer are copied where they have to outlive the slice that received them.
    """

    def __init__(self, stage: SplitStage, slices: int) -> None:
        self.stage = stage
        self.module = stage.module
        self.slices = slices
        self._ahead: dict[int, _Carry] = {}
        self._flights: dict[int, _Slice] = {}
        self._gradients: dict[int, tuple[torch.Tensor | None, ...]] = {}

    @property
    def name(self) -> str:
        """For messages."""
        return self.stage.name

    @property
    def share(self) -> StageShare | None:
        """What the stage has in common with others of its rank."""
        return self.stage.share

    @share.setter
    def share(self, share: StageShare | None) -> None:
        self.stage.share = share

    def _before(self, key: int) -> _Carry:
        """What the slice before left, for this one alone."""
        if key % self.slices == 0:
            return _NO_CARRY
        carry = self._ahead.pop(key - 1, None)
        if carry is None:
            raise RunError(f"{self.name}: forward of slice {key}; that of slice {key - 1} of its sequence comes first")
        return carry

    def _call(self, given: int, carry: _Carry, found: list[_Carry], alone: list[bool]) -> Callable[..., Any]:
        """The module as a function of its inputs and the tensors carried, giving its outputs and those carried on."""

        def call(*entered: Any, **named: Any) -> tuple[Any, ...]:
            result = self.module(*entered[:given], **named, **{ARGUMENT: carry.value(entered[given:])})
            if not isinstance(result, tuple) or len(result) != 2:
                got = f"a tuple of {len(result)}" if isinstance(result, tuple) else f"a {type(result).__name__}"
                raise InvalidInput(
                    f"{self.name} takes {ARGUMENT}, so it returns its output and what it carries on (None for "
                    f"nothing), but it returned {got}"
                )
            output, on = result
            found[:] = [_Carry.of(on, self.name)]
            alone[:] = [not isinstance(output, tuple | list)]
            return (*([output] if alone[0] else output), *found[0].tensors)

        return call

    def forward(
        self,
        key: int,
        *inputs: Any,
        split: bool = True,
        finish: Callable[[Any], Any] | None = None,
        checkpoint: bool = False,
        moves: bool = False,
        stays: Sequence[Any] = (),
    ) -> tuple[Any, ...]:
        """Run the module on a slice with what the slice before it carried on; parameters as of `SplitStage`."""
        carry, found, alone = self._before(key), [_NO_CARRY], [True]

        def finished(result: tuple[Any, ...]) -> tuple[Any, ...]:
            own = result[: len(result) - len(found[0].tensors)]
            assert finish is not None
            return (finish(own[0] if alone[0] else own), *found[0].tensors)

        made = self.stage.forward(
            key,
            *inputs,
            *carry.tensors,
            split=split,
            finish=None if finish is None else finished,
            checkpoint=checkpoint,
            moves=moves,
            stays=stays,
            call=self._call(len(inputs), carry, found, alone),
        )
        outputs = len(made) - len(found[0].tensors)
        on = _apart(made[outputs:], inputs)
        self._flights[key] = _Slice(len(inputs), outputs, on)
        if self._has_next(key):
            self._ahead[key] = _Carry(on, found[0].form)
        return made[:outputs]

    def evaluate(self, key: int, *inputs: Any) -> Any:
        """Run the module alone, without a backward to come; the output as the module gives it."""
        carry, found, alone = self._before(key), [_NO_CARRY], [True]
        made = self._call(len(inputs), carry, found, alone)(*inputs, *carry.tensors)
        outputs = len(made) - len(found[0].tensors)
        if self._has_next(key):
            self._ahead[key] = _Carry(_apart(map(arrived, made[outputs:]), inputs), found[0].form)
        return made[0] if alone[0] else made[:outputs]

    def _has_next(self, key: int) -> bool:
        return (key + 1) % self.slices != 0

    def recompute(self, key: int) -> None:
        """Run the forward of a slice once more, on what it was given."""
        self.stage.recompute(key)

    def offload(self, key: int, mark: Mark) -> tuple[Any, Any]:
        """Start to move away what a slice has saved; what was carried to it, an input, stays."""
        return self.stage.offload(key, mark)

    def release(self, key: int) -> None:
        """Let go of it, once it is copied."""
        self.stage.release(key)

    def reload(self, key: int, mark: Mark) -> tuple[Any, Any]:
        """Start to bring it back."""
        return self.stage.reload(key, mark)

    def arrive(self, key: int) -> None:
        """Wait until it is back."""
        self.stage.arrive(key)

    def backward_input(self, key: int, grad_outputs: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
        """The gradients of a slice's inputs; that of what it was given by the slice before waits for that one's B."""
        return self._back(self.stage.backward_input, key, grad_outputs)

    def backward(self, key: int, grad_outputs: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
        """The same with the gradients of the weights."""
        return self._back(self.stage.backward, key, grad_outputs)

    def _back(
        self,
        run: Callable[[int, Sequence[torch.Tensor | None]], tuple[Any, ...]],
        key: int,
        grad_outputs: Sequence[torch.Tensor | None],
    ) -> tuple[Any, ...]:
        flight = self._flights.pop(key, None)
        if flight is None:
            raise RunError(f"{self.name}: the backward of slice {key}, which is not in flight; its forward comes first")
        if self._has_next(key) and key not in self._gradients:
            raise RunError(f"{self.name}: the backward of slice {key}; that of slice {key + 1} comes first")
        given = self._gradients.pop(key, (None,) * len(flight.carried_on))
        # None for a number would be taken for the loss, whose gradient is 1
        carried = [
            torch.zeros_like(tensor) if gradient is None and not tensor.dim() else gradient
            for tensor, gradient in zip(flight.carried_on, given, strict=True)
        ]
        found = run(key, (*grad_outputs, *carried))
        if key % self.slices:
            self._gradients[key - 1] = _apart(found[flight.inputs :], grad_outputs)
        return found[: flight.inputs]

    def backward_weight(self, key: int) -> None:
        """The gradients of the weights of a slice."""
        self.stage.backward_weight(key)

    def abandon(self) -> None:
        """Drop every slice in flight, and what is carried."""
        for kept in (self._ahead, self._flights, self._gradients):
            kept.clear()
        self.stage.abandon()

    def held_bytes(self) -> HeldBytes:
        """As of the stage: what is carried lives as long as it is used there."""
        return self.stage.held_bytes()

    def report(self) -> SplitReport:
        """What of the weight gradients waits for W."""
        return self.stage.report()


def _apart(tensors: Iterable[Any], others: Iterable[Any]) -> tuple[Any, ...]:
    """The tensors, copied where they share memory with others, which may be receive buffers."""
    there = {other.untyped_storage()._cdata for other in others if isinstance(other, torch.Tensor)}
    return tuple(
        t.detach().clone().requires_grad_(t.requires_grad)
        if isinstance(t, torch.Tensor) and t.untyped_storage()._cdata in there
        else t
        for t in tensors
    )
