"""Values that are not finite: where they first came, told once the step is over or raised on the spot.

After every forward of a training step the sum of what the stage gives (of the loss, on the last one)
is looked at; if it is not finite, so is what the stage was given. The stage whose input was still
finite is where it began::

    stage 0   finite -> finite
    stage 1   finite -> NaN      told by its rank: first came out of stage 1
    stage 2   NaN    -> NaN
    stage 3   NaN    -> loss     told by its rank: the loss of microbatch 2 is nan

On CUDA the sums stay on the device and are read one step later, when they have long been there.
Tensors that want no gradient are passed over: masks hold infinities by design.
"""

from __future__ import annotations

import cmath
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from zbsolve.errors import InvalidInput, RunError

__all__ = ["FiniteWatch", "Mode", "NonFinite", "NonFiniteWarning"]

Mode = Literal["warn", "raise", "ignore"]
_KEPT = 256
_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
"""What sums are taken in where the elements' own type might overflow."""


class NonFiniteWarning(RuntimeWarning):
    """A loss, or what passes between stages, is NaN or infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFinite:
    """A value that is not finite.

    Parameters
    ----------
    step
        Number of the step, from 0.
    microbatch
        Which.
    stage
        Where it came out.
    loss
        It is the loss of the microbatch; else what the stage gives to the next.
    first
        What the stage was given was finite, so it began here.
    """

    step: int
    microbatch: int
    stage: int
    loss: bool
    first: bool


class FiniteWatch:
    """Looks at the forwards of one rank.

    Parameters
    ----------
    mode
        ``warn``, ``raise`` or ``ignore``.
    device
        Of the rank.
    skips
        Whether the optimizer skips such an update; told in the warning.
    """

    def __init__(self, mode: Mode, device: torch.device) -> None:
        if mode not in ("warn", "raise", "ignore"):
            raise InvalidInput(f"nonfinite is 'warn', 'raise' or 'ignore', got {mode!r}")
        self.mode = mode
        self.skips = False
        self.found: deque[NonFinite] = deque(maxlen=_KEPT)
        self._late = mode == "warn" and device.type == "cuda"
        self._bad: dict[tuple[int, int, bool], bool] = {}
        self._sums: dict[tuple[int, int, bool], tuple[torch.Tensor, torch.Tensor]] = {}
        self._travelling: tuple[int, list[tuple[int, int, bool]], torch.Tensor, Callable[[], object]] | None = None
        self._told = 0

    def after_forward(self, stage: int) -> Callable[[int, Sequence[Any], Sequence[Any], bool], None] | None:
        """What to call after each forward of a stage, with microbatch, inputs, outputs, whether those are the loss."""
        if self.mode == "ignore":
            return None

        late, wide = self._late, _WIDE.get

        def check(key: int, inputs: Sequence[Any], outputs: Sequence[Any], is_loss: bool) -> None:
            if not late and len(outputs) == 1 and type(outputs[0]) is torch.Tensor:
                # nearly always: one tensor, and all is well
                only = outputs[0]
                if not is_loss and not only.requires_grad:
                    return
                total = (only if is_loss and only.dim() == 0 else only.detach().sum(dtype=wide(only.dtype))).item()
                if total - total == 0:
                    return
            given = outputs if is_loss else [t for t in outputs if isinstance(t, torch.Tensor) and t.requires_grad]
            if late:
                sums = _sum(given), _sum(inputs)
                if sums[0] is not None:
                    self._sums[stage, key, is_loss] = sums[0], sums[0].new_zeros(()) if sums[1] is None else sums[1]
                return
            if _finite(given):
                return
            first = _finite(inputs)
            if self.mode == "raise":
                what = "the loss" if is_loss else "the output"
                came = "though its input is" if first else "and neither is its input"
                raise RunError(f"{what} of stage {stage} for microbatch {key} is not finite, {came}")
            self._bad[stage, key, is_loss] = first

        return check

    def forget(self) -> None:
        """What ran since the last step is void and runs again."""
        self._bad.clear()
        self._sums.clear()

    def end_step(self, step: int) -> None:
        """The step is over: tell what was found in it; on CUDA, what was found in the one before."""
        if self._late:
            self.settle()
            if self._sums:
                keys = list(self._sums)
                pairs = torch.stack([torch.stack([a.float(), b.float()]) for a, b in self._sums.values()])
                self._travelling = step, keys, *_sent_to_host(torch.isfinite(pairs))
                self._sums.clear()
            return
        if self._bad:
            self._tell(step, self._bad)
            self._bad = {}

    def settle(self) -> None:
        """Tell what was found in the last step, if that is still to be read from the device."""
        if self._travelling is None:
            return
        step, keys, on_host, arrive = self._travelling
        self._travelling = None
        arrive()
        bad = {key: given for key, (gives, given) in zip(keys, on_host.tolist(), strict=True) if not gives}
        if bad:
            self._tell(step, bad)

    def _tell(self, step: int, bad: dict[tuple[int, int, bool], bool]) -> None:
        new = [
            NonFinite(step=step, microbatch=key, stage=stage, loss=is_loss, first=first)
            for (stage, key, is_loss), first in sorted(bad.items())
            if is_loss or first
        ]
        if not new:
            return
        self.found.extend(new)
        self._told += 1
        # the first, second, fourth, ... time: a run that has diverged would say it in every step
        if self._told & (self._told - 1):
            return
        said = []
        for stage in sorted({one.stage for one in new if one.first}):
            where = [one.microbatch for one in new if one.stage == stage and one.first]
            said.append(f"the first value that is not finite came out of stage {stage} in {_microbatches(where)}")
        losses = [one.microbatch for one in new if one.loss]
        if losses:
            said.append(f"the loss of {_microbatches(losses)} is not finite")
        then = "the optimizer skips this update" if self.skips else "check_overflow=True would skip such updates"
        warnings.warn(
            f"step {step}: {'; '.join(said)} ({then}; nonfinite='raise' stops at the operation)",
            NonFiniteWarning,
            stacklevel=2,
        )


def _sent_to_host(tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[], object]]:
    """Where it will be, and what waits until it is there."""
    on_host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    on_host.copy_(tensor, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(tensor.device))
    return on_host, event.synchronize


def _microbatches(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
    return f"microbatch {shown}" if len(numbers) == 1 else f"microbatches {shown}"


def _sums_of(tensors: Sequence[Any]) -> list[torch.Tensor]:
    """One sum each, in a type that is wide enough; DTensors are left out, as their sums need messages."""
    return [
        t.detach().sum(dtype=_WIDE.get(t.dtype))
        for t in tensors
        if type(t) in (torch.Tensor, torch.nn.Parameter) and (t.is_floating_point() or t.is_complex())
    ]


def _sum(tensors: Sequence[Any]) -> torch.Tensor | None:
    sums = [s.abs() if s.is_complex() else s for s in _sums_of(tensors)]
    return torch.stack([s.float() for s in sums]).sum() if sums else None


def _finite(tensors: Sequence[Any]) -> bool:
    """Whether all elements are; a sum that is not finite is looked at again, as it may have overflowed by itself."""
    return all(cmath.isfinite(s.item()) for s in _sums_of(tensors)) or all(
        bool(torch.isfinite(t.detach()).all()) for t in tensors if type(t) in (torch.Tensor, torch.nn.Parameter)
    )
