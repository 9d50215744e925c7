"""What one microbatch costs on one stage."""

from __future__ import annotations

from dataclasses import dataclass, fields

from zbsolve.errors import ProfileError
from zbsolve.profile.amounts import check_name
from zbsolve.units import whole_amount

_OPTIONAL = ("recompute_ns", "checkpoint_bytes", "offload_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """What one microbatch costs on one stage; times in ns, memory in bytes.

    Parameters
    ----------
    forward_ns, backward_input_ns, backward_weight_ns
        Durations of F, B (input gradient) and W (weight gradient).
    backward_ns
        Duration of B and W done as one operation; default their sum.
    activation_bytes
        Held from the start of the forward.
    recompute_ns
        Duration of computing the forward again, ahead of a backward whose forward has kept a checkpoint
        alone; None is what the forward takes.
    checkpoint_bytes
        Held from the start of such a forward in place of `activation_bytes`, which are there once it is
        computed again; None is all of them, so that nothing is saved.
    offload_bytes
        What of `activation_bytes` can be away in host memory between the forward and its backward; None is all.
    backward_weight_bytes
        What the end of B leaves until the end of W; may exceed `activation_bytes`.
    workspace_bytes
        Extra while any operation of the stage runs.
    static_bytes
        Parameters, gradients and optimizer state, always there.
    output_bytes
        Sent to the next stage, and as a gradient back.
    optimizer_ns, grad_reduce_ns
        Optimizer step and gradient reduction of the stage, once an iteration.
    name
        For people.

    Raises
    ------
    ProfileError
        If a number is not a whole one in ``0..2**62``, or a checkpoint, or what can be moved away, is larger than the
        activations.
    """

    forward_ns: int
    backward_input_ns: int
    backward_weight_ns: int
    backward_ns: int = -1
    activation_bytes: int = 0
    backward_weight_bytes: int = 0
    workspace_bytes: int = 0
    static_bytes: int = 0
    output_bytes: int = 0
    optimizer_ns: int = 0
    grad_reduce_ns: int = 0
    name: str = ""
    recompute_ns: int | None = None
    checkpoint_bytes: int | None = None
    offload_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.backward_ns == -1 and not isinstance(self.backward_ns, bool):
            for field in ("backward_input_ns", "backward_weight_ns"):
                whole_amount(getattr(self, field), field, error=ProfileError)
            object.__setattr__(self, "backward_ns", self.backward_input_ns + self.backward_weight_ns)
        for column in fields(self):
            optional = column.name in _OPTIONAL and getattr(self, column.name) is None
            if column.name != "name" and not optional:
                whole_amount(getattr(self, column.name), column.name, error=ProfileError)
        if self.checkpoint > self.activation_bytes:
            raise ProfileError(
                f"checkpoint_bytes are {self.checkpoint}, more than the {self.activation_bytes} activation_bytes "
                "of which they are a part"
            )
        if self.offloadable > self.activation_bytes:
            raise ProfileError(
                f"offload_bytes are {self.offloadable}, more than the {self.activation_bytes} activation_bytes "
                "of which they are a part"
            )
        check_name(self.name, "the name of a stage")

    @property
    def recomputing_ns(self) -> int:
        """What computing the forward again takes."""
        return self.forward_ns if self.recompute_ns is None else self.recompute_ns

    @property
    def checkpoint(self) -> int:
        """Bytes held until the forward is computed again."""
        return self.activation_bytes if self.checkpoint_bytes is None else self.checkpoint_bytes

    @property
    def offloadable(self) -> int:
        """Bytes that can be away in host memory between the forward and its backward."""
        return self.activation_bytes if self.offload_bytes is None else self.offload_bytes
