"""What torch's own split (torch.distributed.pipelining, 2.13) gets wrong, beside what ours does.

Each test shows torch's behaviour first, so that it fails when torch changes.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.distributed.pipelining._backward import (
    stage_backward,
    stage_backward_input,
    stage_backward_weight,
)
from torch.distributed.pipelining.stage import _PipelineStageBase

from tests.executor.split_reference import Checkpointed, compare_gradients
from zbsolve.executor.split import SplitStage
from zbsolve.executor.split.held import Watch

torch.set_num_threads(1)


class Block(nn.Module):
    """A transformer block, with a count of its forwards."""

    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.first = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.second = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.forwards = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.forwards += 1
        b, t, d = x.shape
        q, k, v = self.qkv(self.first(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, d))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


def torch_forward(module: nn.Module, x: torch.Tensor, wants: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = x.detach().requires_grad_(wants)
    return leaf, module(leaf)


def torch_input(module: nn.Module, leaf: torch.Tensor, y: torch.Tensor, dy: torch.Tensor) -> list[dict]:
    return stage_backward_input([y], [dy], [leaf], module.parameters())[1]


def test_trap_1_stage_0_has_an_input_gradient_to_compute():
    """torch's I at stage 0 does nothing, so its W is the whole backward; our B leaves W the weights only."""
    torch.manual_seed(0)
    theirs = nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    mine = copy.deepcopy(theirs)
    data, dy = torch.randint(7, (2, 3)), torch.randn(2, 3, 6)
    ran: list[str] = []
    theirs[2].register_full_backward_hook(lambda *_: ran.append("theirs"))
    mine[2].register_full_backward_hook(lambda *_: ran.append("mine"))

    first = SimpleNamespace(
        has_backward=True, is_first=True, is_last=False, dw_builder=None, _runtime_validate=False, log_prefix="",
        _check_chunk_id=lambda _: None, _retrieve_recv_grads=lambda _: (dy,),
        _stage_meta=SimpleNamespace(inputs=(data,)),
        fwd_cache={0: ((theirs(data),), [data])}, backward_state={}, bwd_cache={}, dw_runner={},
    )  # fmt: skip
    _PipelineStageBase.backward_one_chunk(first, 0, full_backward=False)
    assert ran == []
    inputs, _, outputs, output_grads = first.backward_state[0]
    stage_backward(outputs, output_grads, inputs)  # what its W does at the first stage
    assert ran == ["theirs"]

    stage = SplitStage(mine)
    stage.forward(0, data)
    assert stage.backward_input(0, [dy]) == (None,)
    assert ran == ["theirs", "mine"]
    assert all(p.grad is None for p in mine.parameters())
    stage.backward_weight(0)
    assert ran == ["theirs", "mine"]
    compare_gradients(theirs, mine)


def test_trap_2_b_frees_activations():
    """torch's I frees nothing that F saved and adds to it; our B leaves only what the weights need."""
    torch.manual_seed(0)
    width, batch, time = 16, 2, 8
    unit = 4 * batch * time * width
    block = Block(width)
    x, dy = torch.randn(batch, time, width), torch.randn(batch, time, width)
    known = {t.untyped_storage()._cdata for t in [*block.parameters(), x, dy]}

    def held(watch: Watch) -> int:
        return sum(size for key, size in watch.made.alive().items() if key not in known)

    theirs = Watch()
    with theirs:
        leaf, y = torch_forward(block, x)
        after_forward = held(theirs)
        groups = torch_input(block, leaf, y, dy)
        leaf.grad = None
    after_input = held(theirs)
    assert after_input > after_forward
    stage_backward_weight(block.parameters(), groups)
    del groups, leaf, y
    block.zero_grad()

    stage = SplitStage(block, watch=True)
    outputs = stage.forward(0, x, requires_grad=[True])
    del outputs
    before = stage.held_bytes()
    assert before.total <= after_forward
    given = stage.backward_input(0, [dy])
    del given
    after = stage.held_bytes()
    # dY of down (that of the block's output, which is not ours), its input; dY and input of up; of out; of qkv
    assert after.queued == unit * ((1 + 4) + (4 + 1) + (1 + 1) + (3 + 1))
    assert after.ready == 4 * 4 * width
    assert after.inputs == after.saved == 0
    assert after.total < before.total < after_input
    stage.backward_weight(0)
    assert stage.held_bytes().total == 0


@pytest.mark.parametrize("reentrant", [False, True])
def test_trap_4_checkpointed_blocks_run_twice(reentrant):
    """torch's split runs a non-reentrant checkpoint's forward again and again, and refuses a reentrant one."""
    torch.manual_seed(0)
    block = Block(8)
    stack = nn.Sequential(nn.Linear(8, 8), Checkpointed(block, reentrant))
    x, dy = torch.randn(2, 4, 8), torch.randn(2, 4, 8)

    leaf, y = torch_forward(stack, x)
    if reentrant:
        with pytest.raises(RuntimeError) as refused:
            torch_input(stack, leaf, y, dy)
        assert "checkpoint is incompatible" in str(refused.value.__cause__)
    else:
        stage_backward_weight(stack.parameters(), torch_input(stack, leaf, y, dy))
        assert block.forwards > 2
    stack.zero_grad()

    twin = copy.deepcopy(stack)
    torch_forward(twin, x)[1].backward(dy)
    block.forwards = 0
    stage = SplitStage(stack)
    stage.forward(0, x, requires_grad=[True])
    assert block.forwards == 1
    stage.backward_input(0, [dy])
    assert block.forwards == 2
    stage.backward_weight(0)
    assert block.forwards == 2
    compare_gradients(twin, stack)
    assert stage.report().fallback == ()


def test_trap_5_custom_functions_run_once():
    """torch's split runs the backward of an autograd.Function that has weights in I and again in W."""
    ran: list[str] = []

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x * weight

        @staticmethod
        def backward(ctx, dy):
            ran.append("backward")
            x, weight = ctx.saved_tensors
            return dy * weight, (dy * x).sum((0, 1))

    class Custom(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.alpha = nn.Parameter(torch.ones(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Product.apply(x, self.alpha).relu()

    torch.manual_seed(0)
    theirs = nn.Sequential(nn.Linear(6, 6), Custom(), nn.Linear(6, 6), nn.Tanh())
    mine = copy.deepcopy(theirs)
    x, dy = torch.randn(2, 3, 6), torch.randn(2, 3, 6)
    leaf, y = torch_forward(theirs, x)
    stage_backward_weight(theirs.parameters(), torch_input(theirs, leaf, y, dy))
    assert len(ran) == 2

    ran.clear()
    stage = SplitStage(mine)
    stage.forward(0, x, requires_grad=[True])
    stage.backward_input(0, [dy])
    assert mine[1].alpha.grad is None
    stage.backward_weight(0)
    assert len(ran) == 1
    compare_gradients(theirs, mine)
    report = stage.report()
    assert [(f.name, f.reason) for f in report.fallback] == [("1.alpha", "Custom.alpha is used by code unknown here")]
    # two Linears: rows x (2 in out + out); alpha: 2 elements x rows
    assert (report.deferred_flops, report.fallback_flops) == (2 * 6 * (2 * 36 + 6), 2 * 6 * 6)
    assert str(report) == "92.9 % of weight-gradient FLOPs deferred; fallback: 1.alpha"


def test_trap_7_a_weight_shared_by_two_stages_gets_the_mean():
    """torch's scale_grads divides the gradient of a shared weight once for each stage; losses scaled once do not."""
    microbatches = 2
    data = [torch.full((1, 1), 0.5)] * microbatches

    def stages() -> list[nn.Module]:
        first, second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        second.weight = first.weight
        nn.init.constant_(first.weight, 0.25)
        return [first, second]

    theirs = stages()
    for x in data:
        theirs[1](theirs[0](x)).sum().backward()
    for stage in theirs:
        for parameter in stage.parameters():
            parameter.grad.div_(microbatches)  # what scale_grads does
    assert theirs[0].weight.grad.item() == 0.125

    mine = stages()
    split = [SplitStage(m) for m in mine]
    for k, x in enumerate(data):
        (y,) = split[0].forward(k, x)
        split[1].forward(k, y, finish=lambda z: z.sum() / microbatches)
    for k in range(microbatches):
        split[0].backward_input(k, split[1].backward_input(k, [None]))
    for s in (1, 0):
        for k in range(microbatches):
            split[s].backward_weight(k)
    assert mine[0].weight.grad.item() == 0.25
