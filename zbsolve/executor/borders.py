"""What comes into every stage: real inputs from before it, real gradients from behind it.

Timing a stage on zeros or noise would be off wherever a kernel looks at its numbers (denormals,
sparse gradients, branches), so one pass through the whole model provides both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zbsolve.executor.stagework import Gradients, StageWork, Tensors, fresh_leaf
from zbsolve.executor.target import users_code

__all__ = ["Border", "borders"]


@dataclass(frozen=True, slots=True)
class Border:
    """What comes into a stage from both sides, and which inputs want a gradient."""

    inputs: Tensors
    wants_grad: tuple[bool, ...]
    output_grads: Gradients
    output_bytes: int

    def leaves(self) -> Tensors:
        """Fresh inputs, as a receive buffer would hold them."""
        return tuple(fresh_leaf(t, wants_grad=w) for t, w in zip(self.inputs, self.wants_grad, strict=True))


def borders(works: Sequence[StageWork], inputs: Tensors) -> list[Border]:
    """One pass forward and one back through the model, holding one stage's graph at a time."""
    entering: list[tuple[Tensors, tuple[bool, ...]]] = [(inputs, tuple(t.requires_grad for t in inputs))]
    for work in works:
        tensors, wants = entering[-1]
        with users_code(f"forward of stage {work.number} failed"):
            flight = work.forward(tuple(fresh_leaf(t, wants_grad=w) for t, w in zip(tensors, wants, strict=True)))
        wanted = tuple(t.requires_grad and t.is_floating_point() for t in flight.outputs)
        entering.append((tuple(t.detach() for t in flight.outputs), wanted))
    found: list[Border] = []
    # of the loss, whose gradient is 1
    output_grads: Gradients = (None,)
    for work, (tensors, wants), (leaving, _) in zip(works[::-1], entering[-2::-1], entering[::-1], strict=False):
        border = Border(tensors, wants, output_grads, sum(t.numel() * t.element_size() for t in leaving))
        found.append(border)
        with users_code(f"backward of stage {work.number} failed"):
            gradients = work.backward(work.forward(border.leaves(), split=False), output_grads)
        output_grads = tuple(None if g is None else g.detach() for g in gradients)
    return found[::-1]
