"""What one rank adds to the state: overflow and sum of squares of its own gradients.

Each gradient's norm is taken in float64, whatever its dtype, so float16 gradients do not overflow
in it and the order inside a kernel hardly shows. A finite sum proves that every element of a
gradient up to 32 bits is finite (its square fits float64 a hundred-thousand-fold), so overflow
costs no second pass over memory.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch

from zbsolve.errors import InvalidInput
from zbsolve.executor.optimizer.verdict import State

__all__ = ["local", "local_state", "parameters_of", "scale_gradients"]

_CHUNK = 1 << 22  # elements converted to float64 at once where a kernel makes a copy


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a distributed tensor (DTensor) that lies here; any other tensor as it is."""
    to_local = getattr(tensor, "to_local", None)
    if to_local is None:
        return tensor
    with torch.no_grad():
        part: torch.Tensor = to_local()
        return part


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All parameters, in the order of the optimizer's groups."""
    return [p for group in optimizer.param_groups for p in group["params"]]


@torch.no_grad()
def local_state(parameters: Iterable[torch.Tensor], step: int, uncounted: Collection[torch.Tensor] = ()) -> State:
    """The part of one rank.

    Parameters
    ----------
    parameters
        In the order in which their squares are summed; those without a gradient add nothing.
    step
        Number of the step.
    uncounted
        Parameters whose squares another rank counts; they are still checked for overflow.

    Raises
    ------
    InvalidInput
        If a gradient is sparse: its norm is not that of what it stores.
    """
    leave_out = {id(p) for p in uncounted}
    gradients = [(p.grad, id(p) not in leave_out) for p in parameters if p.grad is not None]
    for gradient, _ in gradients:
        if gradient.layout is not torch.strided:
            raise InvalidInput(
                f"a gradient of shape {tuple(gradient.shape)} is sparse: build its embedding with sparse=False, "
                "or switch clipping and overflow checks off"
            )
    squares = _squares([gradient for gradient, _ in gradients])
    total, overflow, wide = 0.0, False, False
    for (gradient, counts), square in zip(gradients, squares, strict=True):
        if not math.isfinite(square):
            # float64 squares overflow where the elements do not
            overflow = overflow or not math.isfinite(_norm(gradient, math.inf))
        wide = wide or gradient.dtype in (torch.float64, torch.complex128)
        if counts:
            total += square
    return State(step=step, overflow=overflow, square_sum=total, wide=wide)


def _squares(gradients: list[torch.Tensor]) -> list[float]:
    """Sum of the squares of each gradient, in float64; one wait a device and dtype."""
    result = [0.0] * len(gradients)
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    sharded: dict[tuple[Any, tuple[int, ...]], list[int]] = {}
    for index, gradient in enumerate(gradients):
        placements: tuple[Any, ...] = getattr(gradient, "placements", ())
        if placements:
            if any(placement.is_partial() for placement in placements):
                norm = _norm(gradient, 2.0)
                result[index] = norm * norm
                continue
            dims = tuple(d for d, placement in enumerate(placements) if not placement.is_replicate())
            sharded.setdefault((getattr(gradient, "device_mesh", None), dims), []).append(index)
        groups.setdefault((gradient.device, gradient.dtype), []).append(index)
    for indices in groups.values():
        slices = [(i, piece) for i in indices for piece in _pieces(local(gradients[i]))]
        norms = torch._foreach_norm([piece for _, piece in slices], 2, torch.float64) if slices else ()
        values: list[float] = torch.stack(list(norms)).tolist() if norms else []
        for (index, _), value in zip(slices, values, strict=True):
            result[index] += value * value
    for (mesh, dims), indices in sharded.items():
        # all of one kind travel together; what is replicated along a dimension counts once there
        squares = torch.tensor([result[i] for i in indices], dtype=torch.float64, device=gradients[indices[0]].device)
        for dim in dims:
            torch.distributed.all_reduce(squares, group=mesh.get_group(dim))
        for index, square in zip(indices, squares.tolist(), strict=True):
            result[index] = square
    return result


def _norm(gradient: torch.Tensor, order: float) -> float:
    """A norm in float64; of a distributed tensor that of the whole, the same number on all who hold it."""
    if gradient.is_complex():
        gradient = torch.view_as_real(gradient)
    norm = torch.linalg.vector_norm(gradient, order, dtype=torch.float64)
    whole = getattr(norm, "full_tensor", None)
    return float(norm if whole is None else whole())


def _pieces(gradient: torch.Tensor) -> Iterator[torch.Tensor]:
    """The gradient in slices of bounded size along its first dimension; complex ones as pairs of reals."""
    if gradient.is_complex():
        gradient = torch.view_as_real(gradient)
    if gradient.numel() <= _CHUNK or gradient.dim() == 0:
        if gradient.numel():
            yield gradient
        return
    rows = max(1, _CHUNK * len(gradient) // gradient.numel())
    yield from torch.split(gradient, rows)


@torch.no_grad()
def scale_gradients(parameters: Iterable[torch.Tensor], factor: float) -> None:
    """Multiply every gradient in place, as a gradient scaler's unscaling does."""
    for parameter in parameters:
        if parameter.grad is not None and factor != 1.0:
            local(parameter.grad).mul_(factor)
