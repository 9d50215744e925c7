"""Which modules can be split, and the forward that each of them gets meanwhile.

A split forward computes what the module's own forward computes, with the same kernels, but keeps
its parameters out of autograd's sight::

    own      x ----> linear(x, W, b) ----> y        autograd: dx, dW, db in one backward
                       ^    ^
                       W    b

    split    x ----> LinearSplit ----> y            autograd: dx;  queue: (x, dy) for W
                       ^
                     ticket                         a leaf that wants a gradient and never gets one:
                                                    with it y has a backward even where x wants none

At each call it looks again whether it may: the parameters may have been frozen, replaced by
computed ones (weight_norm, parametrizations) or by tensors of another class (DTensor) since. If it
may not, it calls the module's own forward, whose weight gradient autograd then computes in B.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Protocol, TypeAlias

import torch
from torch import nn
from torch._prims_common import suggest_memory_format
from torch.nn import functional

from zbsolve.executor.split.attention import attention_with
from zbsolve.executor.split.convolution import ConvolutionCall, Geometry, split_convolution
from zbsolve.executor.split.embedding import EmbeddingCall, split_embedding
from zbsolve.executor.split.engine import any_autocast
from zbsolve.executor.split.linear import split_linear
from zbsolve.executor.split.norms import (
    GroupNormCall,
    LayerNormCall,
    RMSNormCall,
    ScaleCall,
    split_group_norm,
    split_layer_norm,
    split_rms_norm,
    split_scale,
)
from zbsolve.executor.split.waiting import WeightQueue

__all__ = ["KINDS", "NORMS", "Forward", "Place", "kind_of"]

Forward: TypeAlias = "Callable[..., torch.Tensor]"
Kinds: TypeAlias = "dict[type[nn.Module], Callable[[Any, Forward, Place], Forward]]"
Parameters: TypeAlias = "Mapping[str, torch.Tensor | None]"


class Place(Protocol):
    """Where a split forward finds the queue of the microbatch that is under way."""

    queue: WeightQueue | None
    ticket: torch.Tensor


def may_split(x: torch.Tensor, first: torch.Tensor | None, second: torch.Tensor | None = None) -> bool:
    """Whether this very call can be split: a backward will come, and nothing is of a class we do not know."""
    return (
        torch.is_grad_enabled()
        and (type(x) is torch.Tensor or type(x) is nn.Parameter)
        and not x.is_nested
        and not x.is_complex()
        and (first is None or type(first) is nn.Parameter)
        and (second is None or type(second) is nn.Parameter)
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
    )


def ticket_for(x: torch.Tensor, place: Place) -> torch.Tensor | None:
    """The ticket, or None if x has a backward already."""
    return None if x.requires_grad else place.ticket


has_autocast = cache(torch.amp.is_autocast_available)


def casts(device: str) -> bool:
    """Whether autocast is on for a device type; some types do not know it at all."""
    return has_autocast(device) and torch.is_autocast_enabled(device)


def lowered(x: torch.Tensor) -> tuple[torch.Tensor, torch.dtype | None]:
    """The input of a matrix product as autocast would have it, and the precision it asks for."""
    if not any_autocast():
        return x, None
    device = x.device.type
    if not casts(device) or x.dtype is torch.float64 or not x.is_floating_point():
        return x, None
    dtype = torch.get_autocast_dtype(device)
    return x.to(dtype), dtype


@cache
def raises_precision(kind: str, device: str, dtype: torch.dtype) -> bool:
    """Whether autocast runs this norm in float32; devices differ, so one is asked by trying."""
    probe = torch.ones(1, 2, dtype=dtype, device=device)
    with torch.no_grad(), torch.autocast(device, dtype):
        if kind == "group_norm":
            return functional.group_norm(probe, 1).dtype is torch.float32
        return getattr(functional, kind)(probe, (2,)).dtype is torch.float32


def linear(module: nn.Linear, own: Forward, place: Place) -> Forward:
    """The split forward of a `Linear`."""
    held: Parameters = module._parameters

    def forward(input: torch.Tensor) -> torch.Tensor:
        weight, bias, queue = held.get("weight"), held.get("bias"), place.queue
        if queue is None or weight is None or not weight.requires_grad or not may_split(input, weight, bias):
            return own(input)
        x, dtype = lowered(input)
        return split_linear(x, ticket_for(x, place), (weight, bias, queue, dtype))

    return forward


def attention(module: nn.MultiheadAttention, own: Forward, place: Place) -> Forward:
    """The split forward of a `MultiheadAttention`."""

    def project(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        queue = place.queue
        if queue is None or not weight.requires_grad or not may_split(x, weight, bias):
            return functional.linear(x, weight, bias)
        x, dtype = lowered(x)
        return split_linear(x, ticket_for(x, place), (weight, bias, queue, dtype))

    split = attention_with(project)

    def forward(*inputs: Any, **named: Any) -> Any:
        # what is being compiled must see torch's own function
        return own(*inputs, **named) if torch.compiler.is_compiling() else split(module, *inputs, **named)

    return forward


def embedding(module: nn.Embedding, own: Forward, place: Place) -> Forward:
    """The split forward of an `Embedding`."""
    held: Parameters = module._parameters

    def forward(input: torch.Tensor) -> torch.Tensor:
        table, queue = held.get("weight"), place.queue
        if queue is None or table is None or not table.requires_grad or not may_split(input, table):
            return own(input)
        if module.max_norm is not None or module.sparse:
            return own(input)
        padding = -1 if module.padding_idx is None else module.padding_idx
        call = EmbeddingCall(table, queue, padding, module.scale_grad_by_freq)
        return split_embedding(input, ticket_for(input, place), call)

    return forward


def convolution(module: Any, own: Forward, place: Place) -> Forward:
    """The split forward of a convolution, transposed or not."""
    held: Parameters = module._parameters
    spatial = len(module.kernel_size)
    transposed: bool = module.transposed

    def forward(input: torch.Tensor, *more: Any, **named: Any) -> torch.Tensor:
        weight, bias, queue = held.get("weight"), held.get("bias"), place.queue
        if queue is None or weight is None or not weight.requires_grad or more or named:
            return own(input, *more, **named)
        if not may_split(input, weight, bias):
            return own(input, *more, **named)
        padding = module.padding
        x = input
        if module.padding_mode != "zeros":
            if transposed:
                return own(input)
            x = functional.pad(x, module._reversed_padding_repeated_twice, mode=module.padding_mode)
            padding = (0,) * spatial
        elif isinstance(padding, str):
            sides = module._reversed_padding_repeated_twice
            if sides[::2] != sides[1::2]:
                return own(input)
            padding = tuple(sides[::-2])
        single = x.dim() == spatial + 1
        if single:
            x = x.unsqueeze(0)
        x, dtype = lowered(x)
        geometry = Geometry(module.stride, padding, module.dilation, transposed, module.output_padding, module.groups)
        y = split_convolution(x, ticket_for(x, place), ConvolutionCall(weight, bias, queue, geometry, dtype))
        return y.squeeze(0) if single else y

    return forward


def trains(*parameters: torch.Tensor | None) -> bool:
    """Whether any of them wants a gradient."""
    return any(p is not None and p.requires_grad for p in parameters)


def raised(x: torch.Tensor, kind: str, *parameters: torch.Tensor | None) -> torch.Tensor | None:
    """The input of a norm as autocast would have it; None where that would change a parameter too."""
    if not any_autocast():
        return x
    device = x.device.type
    if not casts(device) or not x.is_floating_point():
        return x
    if x.dtype is torch.float64 or not raises_precision(kind, device, torch.get_autocast_dtype(device)):
        return x
    if any(p is not None and p.dtype is not torch.float32 for p in parameters):
        return None
    return x.to(torch.float32)


def layer_norm(module: nn.LayerNorm, own: Forward, place: Place) -> Forward:
    """The split forward of a `LayerNorm`."""
    held: Parameters = module._parameters

    def forward(input: torch.Tensor) -> torch.Tensor:
        scale, bias, queue = held.get("weight"), held.get("bias"), place.queue
        if queue is None or not trains(scale, bias) or not may_split(input, scale, bias):
            return own(input)
        x = raised(input, "layer_norm", scale, bias)
        if x is None:
            return own(input)
        call = LayerNormCall(scale, bias, queue, module.normalized_shape, module.eps)
        return split_layer_norm(x, ticket_for(x, place), call)

    return forward


def group_norm(module: nn.GroupNorm, own: Forward, place: Place) -> Forward:
    """The split forward of a `GroupNorm`."""
    held: Parameters = module._parameters

    def forward(input: torch.Tensor) -> torch.Tensor:
        scale, bias, queue = held.get("weight"), held.get("bias"), place.queue
        if (
            queue is None
            or not trains(scale, bias)
            or input.dim() < 2
            or not input.numel()
            or not may_split(input, scale, bias)
        ):
            return own(input)
        x = raised(input, "group_norm", scale, bias)
        if x is None or input.shape[1] % module.num_groups:
            return own(input)
        # what torch itself makes of x: on the CPU its kernels know channels last
        layout = suggest_memory_format(x) if x.device.type == "cpu" else torch.contiguous_format
        x = x.contiguous(memory_format=layout)
        call = GroupNormCall(scale, bias, queue, module.num_groups, module.eps, layout)
        return split_group_norm(x, ticket_for(x, place), call)

    return forward


def rms_norm(module: nn.RMSNorm, own: Forward, place: Place) -> Forward:
    """The split forward of an `RMSNorm`."""
    held: Parameters = module._parameters

    # nn.RMSNorm calls its argument x where the others say input
    def forward(x: torch.Tensor) -> torch.Tensor:
        scale, queue = held.get("weight"), place.queue
        if queue is None or scale is None or not scale.requires_grad or not may_split(x, scale):
            return own(x)
        ready = raised(x, "rms_norm", scale)
        if ready is None or ready.dtype is not scale.dtype:
            return own(x)
        shape, eps = module.normalized_shape, module.eps
        if ready.device.type == "cuda" and hasattr(torch.ops.aten, "_fused_rms_norm_backward"):
            return split_rms_norm(ready, ticket_for(ready, place), RMSNormCall(scale, queue, shape, eps))
        # where x lies otherwise, torch multiplies by the scale before it puts the result into order
        if ready.device.type == "cpu" and ready.dtype in {torch.float32, torch.float64} and ready.is_contiguous():
            normed = functional.rms_norm(ready, shape, None, eps)
            return split_scale(normed, ticket_for(normed, place), ScaleCall(scale, queue))
        return own(x)

    return forward


KINDS: Kinds = {
    nn.Linear: linear,
    nn.MultiheadAttention: attention,
    nn.Embedding: embedding,
    nn.Conv1d: convolution,
    nn.Conv2d: convolution,
    nn.Conv3d: convolution,
    nn.ConvTranspose1d: convolution,
    nn.ConvTranspose2d: convolution,
    nn.ConvTranspose3d: convolution,
}
"""The kinds of modules whose product with a weight can be split, each with what makes its split forward."""

NORMS: Kinds = {nn.LayerNorm: layer_norm, nn.GroupNorm: group_norm, nn.RMSNorm: rms_norm}
"""The kinds of modules that are split on demand."""


def kind_of(module: nn.Module) -> type[nn.Module] | None:
    """The kind whose forward this module runs unchanged; None if it is none of them.

    A subclass counts as long as it inherits the forward and what that calls; an instance that was
    given a forward of its own does not.
    """
    if "forward" in module.__dict__:
        return None
    for kind in (*KINDS, *NORMS):
        if isinstance(module, kind):
            same = all(getattr(type(module), n, None) is getattr(kind, n, None) for n in ("forward", "_conv_forward"))
            return kind if same else None
    return None
