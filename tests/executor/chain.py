"""A chain of ranks as threads of this process, and the same steps in one piece beside it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch

from zbsolve.executor.optimizer import LossScale, PostValidatedOptimizer, Validation, queue_channels, synchronous_step

Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
SHAPES = ((3, 4), (5,))
LIMIT = 1.0


def parameters(rank: int, dtype: torch.dtype = torch.float32, shapes: Sequence[tuple[int, ...]] = SHAPES) -> list:
    generator = torch.Generator().manual_seed(100 + rank)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def gradients(kind: str, step: int, rank: int, like: Sequence[torch.Tensor], scale: float = 1.0) -> list[torch.Tensor]:
    """``small`` ones stay below the limit even on five ranks, ``large`` ones pass it alone."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    size = {"small": 0.01, "large": 2.0, "inf": 0.01, "nan": 0.01, "zero": 0.0}[kind]
    found = [(torch.randn(p.shape, generator=generator) * size * scale).to(p.dtype) for p in like]
    if kind in ("inf", "nan"):
        found[-1].view(-1)[step % found[-1].numel()] = float(kind)
    return found


@dataclass
class Run:
    """What a run left: weights and state of every rank, and what every rank heard of every step."""

    weights: list[list[torch.Tensor]]
    states: list[Any]
    validations: list[list[Validation]] = field(default_factory=list)
    scale: LossScale | None = None
    held: list[list[int]] = field(default_factory=list)


Kinds = Sequence[Sequence[str]]


def together(ranks: int, work: Callable[[int], None]) -> None:
    """Run ``work(rank)`` in a thread a rank; the first failure is raised here."""
    failed: list[BaseException] = []

    def guarded(rank: int) -> None:
        try:
            work(rank)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    if failed:
        raise failed[0]
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"


def post_validated(
    kinds: Kinds,
    make: Make,
    *,
    dtype: torch.dtype = torch.float32,
    schedule: bool = False,
    loss_scale: LossScale | None = None,
    scheduler_after_validation: bool = False,
    shared: bool = False,
    **options: Any,
) -> Run:
    """``kinds[step][rank]`` says what the gradients of a rank look like."""
    ranks = len(kinds[0])
    channels = queue_channels(ranks, timeout_s=20)
    weights = [parameters(rank, dtype) for rank in range(ranks)]
    validations: list[list[Validation]] = [[] for _ in range(ranks)]
    held: list[list[int]] = [[] for _ in range(ranks)]
    states: list[Any] = [None] * ranks
    scales: list[LossScale | None] = [None] * ranks

    def work(rank: int) -> None:
        optimizer = make(weights[rank])
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) if schedule else None
        stepper = PostValidatedOptimizer(
            optimizer,
            rank=rank,
            ranks=ranks,
            channel=channels[rank],
            loss_scale=loss_scale,
            replicas=replicas_of(rank, weights[rank]) if shared else None,
            **options,
        )
        for step, row in enumerate(kinds):
            found = gradients(row[rank], step, 0 if shared else rank, weights[rank], stepper.loss_scale)
            for parameter, gradient in zip(weights[rank], found, strict=True):
                parameter.grad = gradient
            stepper.step_begin()
            assert all(p.grad is None for group in optimizer.param_groups for p in group["params"])
            if scheduler is not None and not scheduler_after_validation:
                scheduler.step()
            held[rank].append(stepper.held_bytes().total)
            before = [p.detach().clone() for p in weights[rank]]
            stepper.zero_grad()
            validation = stepper.validate()
            assert stepper.held_bytes().total == 0
            if not validation.weights_changed:
                assert same_bits(before, weights[rank])
            validations[rank].append(validation)
            if scheduler is not None and scheduler_after_validation:
                scheduler.step()
        assert stepper.flush() is None
        states[rank] = deepcopy(optimizer.state_dict())
        scales[rank] = stepper._scale

    together(ranks, work)
    assert len({repr(s) for s in scales}) == 1
    return Run([[p.detach() for p in w] for w in weights], states, validations, scales[0], held)


def replicas_of(rank: int, weights: Sequence[torch.Tensor]) -> dict[torch.Tensor, bool]:
    """The first parameter is one that all ranks hold; rank 0 counts it."""
    return {weights[0]: rank == 0}


def in_one_piece(
    kinds: Kinds,
    make: Make,
    *,
    dtype: torch.dtype = torch.float32,
    schedule: bool = False,
    loss_scale: LossScale | None = None,
    max_grad_norm: float | None = None,
    check_overflow: bool = False,
    shared: bool = False,
) -> Run:
    """The synchronous rule on the same gradients."""
    ranks = len(kinds[0])
    weights = [parameters(rank, dtype) for rank in range(ranks)]
    optimizers = [make(w) for w in weights]
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(o, 0.5) for o in optimizers] if schedule else []
    for step, row in enumerate(kinds):
        for rank, own in enumerate(weights):
            scale = 1.0 if loss_scale is None else loss_scale.scale
            found = gradients(row[rank], step, 0 if shared else rank, own, scale)
            for parameter, gradient in zip(own, found, strict=True):
                parameter.grad = gradient
        _, _, loss_scale = synchronous_step(
            optimizers,
            max_grad_norm=max_grad_norm,
            check_overflow=check_overflow,
            loss_scale=loss_scale,
            replicas=[replicas_of(r, w) for r, w in enumerate(weights)] if shared else None,
        )
        for scheduler in schedulers:
            scheduler.step()
    return Run([[p.detach() for p in w] for w in weights], [o.state_dict() for o in optimizers], scale=loss_scale)


def same_bits(a: Any, b: Any) -> bool:
    """Equal down to the bits of every tensor, NaN included, and in structure."""
    if isinstance(a, torch.Tensor):
        alike = isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape
        return alike and _bytes(a) == _bytes(b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same_bits(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(same_bits(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and repr(a) == repr(b)  # so that NaN is NaN


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
