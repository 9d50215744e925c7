"""Slices of sequences: what a stage carries goes on, its gradient comes back, and both are exact."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.executor import attention, pipes
from tests.strategies import random_order
from zbsolve.catalog import baseline
from zbsolve.errors import InvalidInput, RunError
from zbsolve.executor.carrying import CarryingStage, carries
from zbsolve.executor.measure import measure_profile
from zbsolve.executor.runtime import Pipeline
from zbsolve.executor.split import SplitStage
from zbsolve.placement import Placement
from zbsolve.simulate import simulate

torch.set_num_threads(1)

SPLIT, FUSED = frozenset({"split"}), frozenset({"fused"})


def expected(stages, x, target, sequences):
    """Loss and gradients of whole sequences, by plain autograd."""
    total = torch.zeros((), dtype=torch.float64)
    for rows, wanted in zip(x.chunk(sequences), target.chunk(sequences), strict=True):
        value = attention.loss(attention.whole(stages, rows), wanted) / sequences
        value.backward()
        total += value.detach()
    return total


def pairs(stages, mine):
    return [
        (p, q) for s, m in zip(stages, mine, strict=True) for p, q in zip(s.parameters(), m.parameters(), strict=True)
    ]


def run_exactly(placement, sequences, slices, order_of, **changes):
    asked = attention.problem(placement, sequences, slices, **changes)
    stages = attention.model(placement.stages)
    mine = copy.deepcopy(stages)
    x, target = attention.batch(sequences, 4 * slices)
    with Pipeline(simulate(asked, order_of(asked)), mine, attention.loss) as pipeline:
        torch.testing.assert_close(pipeline.step(x, target), expected(stages, x, target, sequences))
        for plain, own in pairs(stages, mine):
            torch.testing.assert_close(own.grad, plain.grad, rtol=0, atol=1e-10)
        whole = torch.cat([attention.whole(stages, rows) for rows in x.chunk(sequences)])
        torch.testing.assert_close(pipeline.eval(x), whole.detach(), rtol=0, atol=1e-10)
        # nothing is left of a step: the next one gives the same again
        pipeline.zero_grad()
        pipeline.step(x, target)
        assert all(torch.allclose(own.grad, plain.grad, rtol=0, atol=1e-10) for plain, own in pairs(stages, mine))


@pytest.mark.parametrize("allow", [SPLIT, FUSED], ids=["split", "fused"])
@pytest.mark.parametrize("slices", [2, 3])
def test_seq_1f1b_gives_the_gradients_of_whole_sequences(allow, slices):
    run_exactly(Placement.linear(4), 3, slices, lambda p: baseline("seq-1f1b", p), allow=allow)


def test_zero_bubble_on_slices():
    run_exactly(Placement.linear(4), 3, 3, lambda p: baseline("seq-zb-h1", p), allow=SPLIT)


@pytest.mark.parametrize(
    "placement", [Placement.v(2), Placement.looped(2, 3), Placement.bidirectional(2)], ids=["v", "looped", "two routes"]
)
def test_any_placement_and_any_order_that_slices_allow(placement):
    for seed in range(3):
        run_exactly(placement, 2, 3, lambda p, seed=seed: random_order(p, seed))


def test_slices_that_are_computed_again():
    allow = frozenset({"split", "recompute"})
    run_exactly(Placement.linear(3), 2, 3, lambda p: baseline("gpipe-recompute", p), allow=allow)


def test_whole_sequences_need_no_other_model():
    run_exactly(Placement.linear(3), 3, 1, lambda p: baseline("1f1b", p))


@pytest.mark.parametrize("allow", [SPLIT, FUSED], ids=["split", "fused"])
def test_bit_for_bit_what_a_plain_loop_over_slices_gives(allow):
    sequences, slices = 3, 3
    asked = attention.problem(Placement.linear(4), sequences, slices, allow=allow)
    stages = attention.model(4, torch.float32)
    mine = copy.deepcopy(stages)
    x, target = attention.batch(sequences, 4 * slices)
    for rows, wanted in zip(x.chunk(sequences), target.chunk(sequences), strict=True):
        attention.by_slices(stages, rows, wanted, slices, asked.microbatches)
    with Pipeline(simulate(asked, baseline("seq-1f1b", asked)), mine, attention.loss) as pipeline:
        pipeline.step(x, target)
    assert all(torch.equal(plain.grad, own.grad) for plain, own in pairs(stages, mine))


def test_stages_without_a_carry_run_slices_as_microbatches_of_their_own():
    asked = attention.problem(Placement.linear(2), 2, 2)
    stages = [attention.Pointwise().double() for _ in range(2)]
    mine = copy.deepcopy(stages)
    x = torch.randn(4, 6, attention.WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with Pipeline(simulate(asked, baseline("seq-1f1b", asked)), mine, pipes.square_loss) as pipeline:
        pipeline.step(x, x)
        assert pipeline.eval(x).shape == x.shape
    for rows in x.chunk(2):
        for part in rows.chunk(2, dim=1):
            (pipes.square_loss(nn.Sequential(*stages)(part), part) / 4).backward()
    for plain, own in pairs(stages, mine):
        torch.testing.assert_close(own.grad, plain.grad, rtol=0, atol=1e-12)


def test_a_stage_that_carries_is_measured_on_what_it_is_given():
    stages = [attention.Block(tokens=attention.TOKENS), attention.Block(logits=attention.TOKENS)]
    measured = measure_profile(stages, attention.batch(1, 4), attention.loss, repeats=1, warmup=0)
    assert len(measured.stages) == 2
    assert all(cost.activation_bytes > 0 for cost in measured.stages)


class Number(nn.Module):
    """Carries a running sum, a number, and hands its input on by itself."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x, carry):
        total = x.mean() * self.scale + (0 if carry is None else carry)
        return x * total, total


def test_what_is_carried_may_be_one_number():
    """On the last stage, too: the gradient of a number that nobody used is 0, not that of a loss."""
    asked = attention.problem(Placement.linear(2), 1, 3)
    stages = [Number().double(), Number().double()]
    mine = copy.deepcopy(stages)
    x = torch.randn(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with Pipeline(simulate(asked, baseline("seq-1f1b", asked)), mine, pipes.square_loss) as pipeline:
        pipeline.step(x, x)
    carry, total = [None, None], 0
    for part in x.chunk(3, dim=1):
        y, carry[0] = stages[0](part, carry[0])
        y, carry[1] = stages[1](y, carry[1])
        total = total + pipes.square_loss(y, part) / 3
    total.backward()
    for plain, own in pairs(stages, mine):
        torch.testing.assert_close(own.grad, plain.grad, rtol=0, atol=1e-12)


class Handed(nn.Module):
    """Carries its very input, whose buffer is used again when the slice is done."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, carry):
        before = torch.zeros_like(x) if carry is None else carry
        return torch.tanh(self.layer(x) + before), x


def test_what_lies_in_a_receive_buffer_is_copied_where_it_is_carried():
    stage = CarryingStage(SplitStage(Handed()), 2)
    buffer = torch.ones(2, 4).requires_grad_()
    stage.forward(0, buffer)
    with torch.no_grad():
        buffer.fill_(7.0)
    (y,) = stage.forward(1, torch.ones(2, 4).requires_grad_())
    assert torch.equal(y, torch.tanh(stage.module.layer(torch.ones(2, 4)) + 1))
    given = torch.ones(2, 4)
    stage.backward_input(1, (given,))
    gradients = stage._gradients[0]
    assert gradients[0].data_ptr() != given.data_ptr()


def test_a_step_that_failed_leaves_nothing_carried():
    asked = attention.problem(Placement.linear(2), 2, 2)
    stages = attention.model(2)
    x, target = attention.batch(2, 8)
    fail = True

    def loss(output, wanted):
        if fail and bool((wanted == target[0, 4]).any()):
            raise ValueError("no")
        return attention.loss(output, wanted)

    with Pipeline(simulate(asked, baseline("seq-1f1b", asked)), stages, loss) as pipeline:
        with pytest.raises(RunError):
            pipeline.step(x, target)
        fail = False
        pipeline.zero_grad()
        assert pipeline.step(x, target) > 0


def test_forwards_that_run_again_after_a_wrong_step_start_without_a_carry():
    """Steps that are clipped late are bit for bit those that wait: what was carried meanwhile is dropped."""
    asked = attention.problem(Placement.linear(3), 2, 3)
    table, found = simulate(asked, baseline("seq-1f1b", asked)), []
    for synchronous in (True, False):
        stages = attention.model(3)
        with Pipeline(
            table,
            stages,
            attention.loss,
            optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
            max_grad_norm=0.5,
            synchronous=synchronous,
        ) as pipeline:
            losses = [float(pipeline.step(*attention.batch(2, 12, seed=step))) for step in range(3)]
            pipeline.flush()
            undone = any(validation.rerun for validation in pipeline.validations)
        found.append((losses, [p.detach().clone() for stage in stages for p in stage.parameters()], undone))
    (losses, weights, _), (mine, own, undone) = found
    assert undone
    assert losses == mine
    assert all(torch.equal(plain, late) for plain, late in zip(weights, own, strict=True))


def test_who_takes_a_carry():
    assert carries(attention.Attention())
    assert not carries(attention.Pointwise())
    compiled = nn.Module()
    compiled._orig_mod = attention.Attention()
    assert carries(compiled)
    foreign = nn.Module()
    foreign.forward = torch.add  # no Python function, as in TorchScript
    assert not carries(foreign)


class Wrong(nn.Module):
    def __init__(self, result):
        super().__init__()
        self.result, self.layer = result, nn.Linear(2, 2)

    def forward(self, x, carry):
        return self.result(self.layer(x))


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (lambda y: y, "returned a Tensor"),
        (lambda y: (y, y, y), "returned a tuple of 3"),
        (lambda y: (y, {"keys": y}), "carries on a dict"),
    ],
)
def test_a_stage_that_gives_something_else_is_told_what_it_should_give(result, words):
    with pytest.raises(InvalidInput, match=words):
        CarryingStage(SplitStage(Wrong(result), name="stage 3"), 2).forward(0, torch.ones(1, 2))


def test_slices_out_of_turn_are_refused():
    stage = CarryingStage(SplitStage(attention.Attention()), 2)
    x = torch.ones(1, 2, attention.WIDTH)
    with pytest.raises(RunError, match="forward of slice 1; that of slice 0"):
        stage.forward(1, x)
    (y,) = stage.forward(0, x)
    stage.forward(1, x)
    with pytest.raises(RunError, match="backward of slice 0; that of slice 1"):
        stage.backward(0, (y,))
    with pytest.raises(RunError, match="backward of slice 5, which is not in flight"):
        stage.backward(5, (y,))


def test_a_batch_that_cannot_be_cut_into_slices():
    asked = attention.problem(Placement.linear(1), 2, 2)
    with Pipeline(simulate(asked, baseline("gpipe", asked)), [attention.Pointwise()], pipes.square_loss) as pipeline:
        with pytest.raises(RunError, match="cannot be cut into 2 equal sequences"):
            pipeline.step(torch.ones(3, 4, 8), torch.ones(3, 4, 8))
        with pytest.raises(RunError, match=r"shape \(2, 5, 8\), whose second dimension .* 2 equal slices"):
            pipeline.step(torch.ones(2, 5, 8), torch.ones(2, 5, 8))
        with pytest.raises(RunError, match="second dimension"):
            pipeline.step(torch.ones(2), torch.ones(2))
