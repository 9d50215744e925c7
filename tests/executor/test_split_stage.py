"""The stage itself: its order, its inputs and outputs, its errors, and what it keeps alive."""

from __future__ import annotations

import doctest
import gc
import weakref

import pytest
import torch
from torch import nn

from tests.executor.split_reference import run_both
from zbsolve.errors import InvalidInput, RunError
from zbsolve.executor.split import SplitStage
from zbsolve.executor.split import stage as stage_module

torch.set_num_threads(1)


class Several(nn.Module):
    """Several inputs of several types in; used, unused, passed through and integer outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 6)
        self.inner = nn.Linear(6, 6)

    def forward(self, x, i, skip, mask):
        y = self.inner(x + self.embed(i)).masked_fill(mask, 0.0)
        return y, i + 1, skip, (y.detach() > 0), y * skip


def several() -> list[torch.Tensor]:
    return [torch.randn(3, 6), torch.randint(5, (3,)), torch.randn(3, 6), torch.rand(3, 6) > 0.5]


def test_many_tensors_of_many_types_cross_the_boundary():
    torch.manual_seed(0)
    batches = [several() for _ in range(3)]
    run_both(Several, batches, [True, False, True, False])
    run_both(Several, batches, [False, False, True, False])
    run_both(Several, batches, [False, False, False, False])


def test_outputs_say_whether_they_want_a_gradient_and_the_next_stage_listens():
    stage = SplitStage(Several())
    y, i, skip, mask, product = stage.forward(0, *several(), requires_grad=[True, False, False, False])
    assert [t.requires_grad for t in (y, i, skip, mask, product)] == [True, False, False, False, True]
    assert y.grad_fn is None
    behind = SplitStage(nn.Linear(6, 6))
    (z,) = behind.forward(0, y)
    assert behind.backward_input(0, [torch.ones_like(z)])[0].shape == y.shape
    behind.forward(1, skip)
    assert behind.backward_input(1, [torch.ones_like(z)]) == (None,)


def test_outputs_that_nobody_used_have_no_gradient():
    module = Several()
    stage = SplitStage(module)
    stage.forward(0, *several(), requires_grad=[True, False, True, False])
    dx, di, dskip, dmask = stage.backward_input(0, [None] * 5)
    assert (dx, di, dskip, dmask) == (None, None, None, None)
    stage.backward_weight(0)
    assert all(p.grad is None for p in module.parameters())


def test_an_output_that_is_an_input_hands_its_gradient_through():
    class Through(nn.Module):
        def forward(self, x):
            return x, x

    stage = SplitStage(Through())
    stage.forward(0, torch.randn(3), requires_grad=[True])
    (dx,) = stage.backward_input(0, [torch.ones(3), torch.full((3,), 2.0)])
    assert torch.equal(dx, torch.full((3,), 3.0))
    stage.backward_weight(0)


def test_the_loss_belongs_to_the_forward_and_needs_no_gradient_given():
    module = nn.Linear(6, 6)
    stage = SplitStage(module)
    x = torch.randn(3, 6)
    (loss,) = stage.forward(0, x, finish=lambda y: y.pow(2).mean())
    stage.backward_input(0, [None])
    stage.backward_weight(0)
    twin = nn.Linear(6, 6)
    twin.load_state_dict(module.state_dict())
    expected = twin(x).pow(2).mean()
    expected.backward()
    assert torch.equal(loss.detach(), expected.detach())
    assert torch.equal(module.weight.grad, twin.weight.grad)


def test_a_scalar_that_is_no_loss_has_no_gradient_of_its_own():
    """As a balance term that is handed on: 1 would be a wrong guess where nobody used it."""

    class WithTerm(nn.Module):
        def forward(self, x):
            return x * 2, x.sum()

    stage = SplitStage(WithTerm())
    stage.forward(0, torch.randn(3), requires_grad=[True])
    (dx,) = stage.backward_input(0, [torch.ones(3), None])
    assert torch.equal(dx, torch.full((3,), 2.0))
    stage.forward(1, torch.randn(3), requires_grad=[True])
    (dx,) = stage.backward_input(1, [torch.ones(3), torch.tensor(0.5)])
    assert torch.equal(dx, torch.full((3,), 2.5))


def test_what_the_model_is_given_by_name_has_no_gradient():
    class Masked(nn.Module):
        def forward(self, x, *, mask, scale):
            return x * mask * scale

    stage = SplitStage(Masked())
    (y,) = stage.forward(
        0, torch.ones(2), keywords={"mask": torch.tensor([1.0, 0.0]), "scale": 3}, requires_grad=[True]
    )
    assert torch.equal(y.detach(), torch.tensor([3.0, 0.0]))
    (dx,) = stage.backward_input(0, [torch.ones(2)])
    assert torch.equal(dx, torch.tensor([3.0, 0.0]))


def test_a_graph_without_gradient_runs_through_all_operations():
    stage = SplitStage(nn.Linear(6, 6).requires_grad_(False))
    stage.forward(0, torch.randn(3, 6))
    assert stage.backward_input(0, [torch.ones(3, 6)]) == (None,)
    stage.backward_weight(0)
    stage.forward(1, torch.randn(3, 6), split=False)
    assert stage.backward(1, [torch.ones(3, 6)]) == (None,)
    assert stage.in_flight == ()


def test_operations_out_of_order_are_refused_by_name():
    stage = SplitStage(nn.Linear(6, 6), name="stage 2")
    x, dy = torch.randn(3, 6), torch.ones(3, 6)
    with pytest.raises(RunError, match="stage 2: backward_input of 0, which is not in flight"):
        stage.backward_input(0, [dy])
    stage.forward(0, x)
    with pytest.raises(RunError, match="stage 2: forward of 0, which is in flight already"):
        stage.forward(0, x)
    with pytest.raises(RunError, match="backward_weight of 0: its backward_input comes first"):
        stage.backward_weight(0)
    stage.backward_input(0, [dy])
    with pytest.raises(RunError, match="backward_input of 0: its backward_input has run already"):
        stage.backward_input(0, [dy])
    with pytest.raises(RunError, match="backward of 0: its backward_input has run already"):
        stage.backward(0, [dy])
    stage.backward_weight(0)
    with pytest.raises(RunError, match="not in flight"):
        stage.backward_weight(0)
    stage.forward(1, x, split=False)
    with pytest.raises(RunError, match="split=False"):
        stage.backward_input(1, [dy])
    stage.backward(1, [dy])


def test_wrong_gradients_inputs_and_outputs_are_refused():
    stage = SplitStage(nn.Linear(6, 6))
    with pytest.raises(InvalidInput, match="2 flags were given for 1 inputs"):
        stage.forward(0, torch.randn(3, 6), requires_grad=[True, True])
    with pytest.raises(InvalidInput, match=r"input 0 is of torch.int64"):
        stage.forward(0, torch.ones(3, 6, dtype=torch.int64), requires_grad=[True])
    with pytest.raises(InvalidInput, match="returned a str"):
        stage.forward(0, torch.randn(3, 6), finish=lambda y: "loss")
    assert stage.in_flight == ()
    stage.forward(0, torch.randn(3, 6))
    with pytest.raises(InvalidInput, match="2 gradients were given for 1 outputs"):
        stage.backward_input(0, [None, None])
    with pytest.raises(InvalidInput, match=r"shape \(3, 5\), its output \(3, 6\)"):
        stage.backward_input(0, [torch.ones(3, 5)])
    with pytest.raises(InvalidInput, match="keep_whole names 'x'"):
        SplitStage(nn.Linear(6, 6), keep_whole=["x"])
    with pytest.raises(RunError, match="nothing to report"):
        stage.report()


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.ones(6))
        self.where = ""

    def forward(self, x):
        if self.where == "forward":
            raise ArithmeticError("forward")
        y = self.inner(x) * self.scale
        if self.where == "backward":
            y.register_hook(self.fail)
        return y

    def fail(self, _):
        raise ArithmeticError("backward")


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_error_of_the_model_leaves_the_module_and_its_gradients_as_they_were(where):
    module = Failing()
    stage = SplitStage(module)
    stage.forward(0, torch.randn(3, 6))
    stage.backward(0, [torch.ones(3, 6)])
    before = [p.grad.clone() for p in module.parameters()]
    module.where = where
    with pytest.raises(ArithmeticError, match=where):  # noqa: PT012 (either of the two)
        stage.forward(1, torch.randn(3, 6))
        stage.backward_input(1, [torch.ones(3, 6)])
    assert all("forward" not in vars(m) for m in module.modules())
    assert all(torch.equal(p.grad, g) for p, g in zip(module.parameters(), before, strict=True))
    stage.abandon()
    module.where = ""
    stage.forward(1, torch.randn(3, 6))
    stage.backward(1, [torch.ones(3, 6)])


def test_a_module_in_two_stages_of_one_rank_serves_each_in_turn():
    shared = nn.Linear(6, 6)
    stages = [SplitStage(nn.Sequential(shared, nn.Tanh())), SplitStage(nn.Sequential(nn.Tanh(), shared))]
    x, dy = torch.randn(3, 6), torch.randn(3, 6)
    twin = nn.Linear(6, 6)
    twin.load_state_dict(shared.state_dict())
    twin(torch.tanh(torch.tanh(twin(x)))).backward(dy)
    (y,) = stages[0].forward(0, x)
    stages[1].forward(0, y)
    stages[0].backward_input(0, stages[1].backward_input(0, [dy]))
    stages[1].backward_weight(0)
    stages[0].backward_weight(0)
    assert torch.equal(shared.weight.grad, twin.weight.grad)


def test_a_module_that_two_stages_run_at_once_is_refused():
    shared = nn.Linear(6, 6)
    other = SplitStage(shared)

    class Meanwhile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared = shared

        def forward(self, x):
            return other.forward(0, self.shared(x))[0]

    with pytest.raises(RunError, match="give each rank its own modules"):
        SplitStage(Meanwhile()).forward(0, torch.randn(3, 6))
    assert "forward" not in vars(shared)


# ---- bytes


def total(stage: SplitStage) -> tuple[int, int, int, int]:
    held = stage.held_bytes()
    return held.inputs, held.saved, held.queued, held.ready


def test_bytes_of_two_linears_by_hand():
    """X of 4 x 6, hidden 4 x 10, y of 4 x 3, in floats of 4 bytes."""
    module = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))
    stage = SplitStage(module, watch=True)
    x = torch.randn(4, 6)
    (y,) = stage.forward(0, x, requires_grad=[True])
    hidden, inputs, outputs = 4 * 10 * 4, 4 * 6 * 4, 4 * 3 * 4
    # tanh saves its result, which is what the second linear saves; what tanh was given is gone
    assert total(stage) == (inputs, hidden + outputs, 0, 0)
    # y is no matter of the stage's: it lives as long as its owner wants
    del y
    assert total(stage) == (inputs, hidden, 0, 0)
    del x
    assert total(stage) == (inputs, hidden, 0, 0)
    dy = torch.randn(4, 3)
    (dx,) = stage.backward_input(0, [dy])
    del dy
    # x and the gradient of the first, hidden and dy of the second
    assert total(stage) == (0, inputs, inputs + 2 * hidden + outputs, 0)
    del dx
    assert total(stage) == (0, 0, inputs + 2 * hidden + outputs, 0)
    stage.backward_weight(0)
    assert total(stage) == (0, 0, 0, 0)


def test_bytes_of_norms_by_hand():
    for wait, queued, ready in ((False, 0, 2 * 6 * 4), (True, 2 * 24 * 4 + 2 * 4 * 4, 0)):
        stage = SplitStage(nn.LayerNorm(6), norms_wait=wait, watch=True)
        (y,) = stage.forward(0, torch.randn(4, 6), requires_grad=[True])
        del y
        # mean and 1/deviation of 4 positions
        assert total(stage) == (24 * 4, 2 * 4 * 4, 0, 0)
        stage.backward_input(0, [torch.randn(4, 6)])
        assert total(stage) == (0, 0, queued, ready)
        stage.backward_weight(0)
        assert total(stage) == (0, 0, 0, 0)


def test_bytes_of_fallback_are_gradients_that_wait():
    module = nn.PReLU(6)
    stage = SplitStage(module, watch=True)
    stage.forward(0, torch.randn(4, 6), requires_grad=[True])
    stage.backward_input(0, [torch.randn(4, 6)])
    assert total(stage) == (0, 0, 0, 6 * 4)
    stage.backward_weight(0)
    assert total(stage) == (0, 0, 0, 0)


def test_gradients_of_b_may_be_added_early():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.PReLU(6))
    twin = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.PReLU(6))
    twin.load_state_dict(module.state_dict())
    stage = SplitStage(module, early=True, watch=True)
    for k in range(3):
        x, dy = torch.randn(4, 6), torch.randn(4, 6)
        twin(x).backward(dy)
        stage.forward(k, x)
        stage.backward_input(k, [dy])
        if k:
            assert stage.held_bytes().ready == 0
            assert torch.equal(module[2].weight.grad, twin[2].weight.grad)
        stage.backward_weight(k)
        assert all(torch.equal(p.grad, q.grad) for p, q in zip(module.parameters(), twin.parameters(), strict=True))
    assert [f.name for f in stage.report().fallback] == ["2.weight"]


def test_microbatches_in_flight_add_up():
    stage = SplitStage(nn.Linear(6, 6), watch=True)
    for k in range(3):
        stage.forward(k, torch.randn(4, 6), requires_grad=[True])
    assert total(stage) == (3 * 96, 0, 0, 0)
    stage.backward_input(1, [torch.randn(4, 6)])
    assert total(stage) == (2 * 96, 0, 2 * 96, 0)
    stage.backward_weight(1)
    assert total(stage) == (2 * 96, 0, 0, 0)
    stage.abandon()
    assert total(stage) == (0, 0, 0, 0)


def test_one_storage_is_counted_once():
    class Shared(nn.Module):
        """Two linears of one input, whose sum hands both the same gradient."""

        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x):
            return self.a(x) + self.b(x)

    stage = SplitStage(Shared(), watch=True)
    stage.forward(0, torch.randn(4, 6), requires_grad=[True])
    stage.backward_input(0, [torch.randn(4, 6)])
    assert total(stage) == (0, 0, 2 * 96, 0)


def test_after_b_nothing_of_the_graph_is_left_and_no_cycle_waits_for_the_collector():
    class Keeper(torch.autograd.Function):
        """Keeps a tensor where autograd cannot free it: on its context."""

        @staticmethod
        def forward(ctx, x):
            ctx.big = torch.randn(1000)
            kept.append(weakref.ref(ctx.big))
            return x.clone()

        @staticmethod
        def backward(ctx, dy):
            return dy

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x):
            return self.b(Keeper.apply(self.a(x)))

    kept: list[weakref.ref] = []
    stage = SplitStage(Model())
    gc.collect()
    gc.disable()
    try:
        for k in range(2):
            stage.forward(k, torch.randn(4, 6), requires_grad=[True])
        stage.backward_input(0, [torch.randn(4, 6)])
        assert [r() is None for r in kept] == [True, False]
        stage.abandon()
        assert [r() is None for r in kept] == [True, True]
    finally:
        gc.enable()


def test_the_example_runs():
    results = doctest.testmod(stage_module)
    assert results.attempted >= 6
    assert results.failed == 0
