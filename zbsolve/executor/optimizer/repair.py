"""What the synchronous rule does once the full state is known, and that rule as one function.

`synchronous_step` is the reference: one process that sees the gradients of all ranks at once.
`PostValidatedOptimizer` with snapshots ends every step with the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.nn.utils import clip_grads_with_norm_

from zbsolve.executor.optimizer.gradients import local_state, parameters_of, scale_gradients
from zbsolve.executor.optimizer.lossscale import LossScale
from zbsolve.executor.optimizer.verdict import Rule, State, Verdict, clip_coefficient, total_norm

__all__ = ["apply_verdict", "synchronous_step"]


def apply_verdict(optimizer: torch.optim.Optimizer, verdict: Verdict, full: State, rule: Rule) -> None:
    """Skip, or clip by the full state's norm and step, or step; on the gradients in place."""
    if verdict is Verdict.SKIPPED:
        return
    if verdict is Verdict.CLIPPED:
        assert rule.max_grad_norm is not None
        _clip(parameters_of(optimizer), rule.max_grad_norm, full)
    optimizer.step()


def _clip(parameters: list[torch.Tensor], max_grad_norm: float, full: State) -> None:
    """Torch's own arithmetic; the norm lies on the host, so that all devices get the same coefficient."""
    spread = [p for p in parameters if hasattr(p.grad, "to_local")]
    # torch does not multiply distributed tensors by a plain one, but everyone may multiply its own part
    scale_gradients(spread, clip_coefficient(full, max_grad_norm))
    plain = [p for p in parameters if not hasattr(p.grad, "to_local")]
    clip_grads_with_norm_(plain, max_grad_norm, total_norm(full))


def synchronous_step(
    optimizers: Sequence[torch.optim.Optimizer],
    *,
    max_grad_norm: float | None = None,
    check_overflow: bool = False,
    loss_scale: LossScale | None = None,
    replicas: Sequence[Mapping[torch.Tensor, bool]] | None = None,
) -> tuple[Verdict, State, LossScale | None]:
    """One step of all ranks under the synchronous rule, in one process.

    Unscale, take the global norm, and skip, or clip and step, or step. The norm is combined as
    between ranks: squares in the order of each optimizer's parameters, then the ranks' sums in
    order, in float64.

    Parameters
    ----------
    optimizers
        One a rank, in the order of positions.
    max_grad_norm, check_overflow, loss_scale
        As for `PostValidatedOptimizer`.
    replicas
        One mapping a rank, as for `PostValidatedOptimizer`.

    Returns
    -------
    What was done, the full state, and the loss scale of the next step.
    """
    rule = Rule(max_grad_norm=max_grad_norm, check_overflow=check_overflow)
    full: State | None = None
    for position, optimizer in enumerate(optimizers):
        parameters = parameters_of(optimizer)
        if loss_scale is not None:
            scale_gradients(parameters, loss_scale.inverse)
        held = replicas[position] if replicas is not None else {}
        own = local_state(parameters, 0, tuple(p for p, counts in held.items() if not counts))
        full = rule.combine(full, own, position)
    assert full is not None
    verdict = rule.verdict(full)
    for optimizer in optimizers:
        apply_verdict(optimizer, verdict, full, rule)
    return verdict, full, None if loss_scale is None else loss_scale.after(full.overflow)
