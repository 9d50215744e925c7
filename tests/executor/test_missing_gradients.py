"""Where plain training has no gradient, or a wish for one, the pipeline has the same."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.executor import pipes
from zbsolve.catalog import baseline
from zbsolve.errors import InvalidInput, RunError
from zbsolve.executor.gradients import plain_gradients
from zbsolve.executor.runtime import Pipeline
from zbsolve.placement import Placement
from zbsolve.simulate import simulate

torch.set_num_threads(1)

LINEAR = Placement.linear(2)


@pytest.fixture(params=["1f1b", "zb-h1"])
def table(request):
    asked = pipes.problem(LINEAR, 4)
    return simulate(asked, baseline(request.param, asked))


def assert_as_plain(table, stages, data, loss_fn=pipes.square_loss):
    reference, _ = plain_gradients(pipes.clones(stages), data, loss_fn, table.problem.microbatches)
    Pipeline(table, stages, loss_fn).step(*data)
    for number, stage in enumerate(stages):
        for name, p in stage.named_parameters():
            assert (p.grad is None) == ((number, name) not in reference), name
            if p.grad is not None:
                wanted = reference[number, name]
                assert p.grad.layout == wanted.layout
                assert torch.equal(p.grad.to_dense(), wanted.to_dense()), name
    return reference


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.used(x), self.unused(x)


class UsesSome(nn.Linear):
    """The second input only where its first number is above a limit."""

    limit = float("inf")

    def forward(self, x, y):
        return super().forward(x + y if y.detach()[0, 0] > self.limit else x)


@pytest.mark.parametrize("limit", [float("inf"), 0.0, -float("inf")], ids=["never", "sometimes", "always"])
def test_an_output_that_nobody_uses_gets_no_gradient(table, limit):
    torch.manual_seed(1)
    stages = [Two(), UsesSome(4, 4)]
    stages[1].limit = limit
    reference = assert_as_plain(table, stages, pipes.batch(4))
    assert ((0, "unused.weight") in reference) == (limit < 1)


def test_a_replicated_stage_has_no_gradient_where_no_holder_has_one():
    stages = [Two(), UsesSome(4, 4)]
    pipe = Pipeline(pipes.timetable(Placement.bidirectional(2), 2), stages, pipes.square_loss)
    pipe.step(*pipes.batch(2))
    for (_, name), copies in pipes.gradients(pipe).items():
        assert all((gradient is None) == name.startswith("unused") for gradient in copies)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=True)


def test_a_batch_that_wants_a_gradient_gets_it(table):
    torch.manual_seed(2)
    stages = [Checkpointed(), nn.Linear(4, 4)]
    inputs, target = pipes.batch(4)
    own = inputs.clone().requires_grad_()
    assert_as_plain(table, stages, (inputs.requires_grad_(), target))
    assert stages[0].inner[0].weight.grad is not None
    # above both the plain model's and the pipeline's gradient were added
    plain_gradients(pipes.clones(stages), (own, target), pipes.square_loss, 4)
    assert torch.equal(inputs.grad, own.grad + own.grad)


def test_a_batch_out_of_another_graph_is_refused(table):
    inputs, target = pipes.batch(4)
    pipe = Pipeline(table, pipes.model(2), pipes.square_loss)
    with pytest.raises(RunError, match="the batch was computed from something that wants a gradient"):
        pipe.step(inputs.requires_grad_() * 2, target)


@pytest.mark.parametrize(
    "loss_fn",
    [lambda y, t: pipes.square_loss(y.detach(), t), lambda y, t: torch.tensor(pipes.square_loss(y, t).item())],
    ids=["detached", "made anew"],
)
def test_a_loss_without_a_gradient_is_refused(table, loss_fn):
    pipe = Pipeline(table, pipes.model(2), loss_fn)
    with pytest.raises(RunError, match=r"F0 of stage 1: the loss has no gradient, so nothing would learn"):
        pipe.step(*pipes.batch(4))


class Detached(nn.Module):
    def __init__(self, before: nn.Module, behind: nn.Module) -> None:
        super().__init__()
        self.before, self.behind = before, behind

    def forward(self, x):
        return self.behind(self.before(x).detach())


def test_a_cut_within_a_stage_is_told_once(table):
    stages = [nn.Linear(4, 4), Detached(nn.Linear(4, 4), nn.Linear(4, 4))]
    with pytest.warns(UserWarning, match=r"stage 1 has no gradient for its inputs, so the stages before it") as told:
        assert_as_plain(table, stages, pipes.batch(4))
    assert len(told) <= 4  # one for each B that was the first to see it
    assert stages[0].weight.grad is None


def test_a_cut_at_the_end_of_a_stage_is_told(table):
    stages = [Detached(nn.Linear(4, 4), nn.Identity()), nn.Linear(4, 4)]
    with pytest.warns(UserWarning, match="no output of stage 0 wants a gradient, so its own 2 parameters learn"):
        assert_as_plain(table, stages, pipes.batch(4))


def test_a_frozen_first_stage_is_nothing_to_tell(table):
    stages = [nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_as_plain(table, stages, pipes.batch(4))
    assert stages[0].weight.grad is None
    assert stages[1].weight.grad is not None


@pytest.mark.parametrize(
    "options",
    [{"sparse": True}, {"max_norm": 0.5}, {"sparse": True, "max_norm": 0.5}],
    ids=" ".join,
)
def test_sparse_and_renormalised_embeddings(table, options):
    torch.manual_seed(3)
    stages = [nn.Embedding(7, 4, **options), nn.Linear(4, 4)]
    data = torch.randint(7, (8, 3)), torch.randn(8, 3, 4)
    assert_as_plain(table, stages, data)
    assert stages[0].weight.grad.is_sparse == ("sparse" in options)


def test_sparse_gradients_of_a_weight_that_dense_ones_meet(table):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(7, 4, sparse=True)

        def forward(self, i):
            return self.table(i) @ self.table.weight.T

    torch.manual_seed(4)
    assert_as_plain(table, [Both(), nn.Linear(7, 4)], (torch.randint(7, (8, 3)), torch.randn(8, 3, 4)))


def test_an_optimizer_takes_sparse_gradients():
    torch.manual_seed(5)
    stages = [nn.Embedding(7, 4, sparse=True), nn.Linear(4, 4)]
    data = torch.randint(7, (4, 3)), torch.randn(4, 3, 4)
    pipe = Pipeline(pipes.timetable(LINEAR, 2), stages, pipes.square_loss, optimizer=lambda p: torch.optim.SGD(p, 0.1))
    losses = pipe.steps([data] * 3)
    assert losses[2] < losses[0]


def test_sparse_gradients_of_replicas_are_refused():
    stages = [nn.Embedding(7, 4, sparse=True), nn.Linear(4, 4)]
    data = torch.randint(7, (4, 3)), torch.randn(4, 3, 4)
    pipe = Pipeline(pipes.timetable(Placement.bidirectional(2), 2), stages, pipes.square_loss)
    with pytest.raises(
        (RunError, InvalidInput), match="is sparse, which replicas cannot sum: build its embedding with"
    ):
        pipe.step(*data)


class HalfLazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.never = nn.LazyLinear(4), nn.LazyLinear(4)

    def forward(self, x):
        return self.used(x)


def test_a_lazy_parameter_that_never_runs_has_no_gradient(table):
    data = pipes.batch(4)
    for options in ({}, {"optimizer": lambda p: torch.optim.AdamW(p, lr=0.1), "max_grad_norm": 0.1}):
        stages = [HalfLazy(), HalfLazy()]
        pipe = Pipeline(table, stages, pipes.square_loss, **options)
        pipe.steps([data, data])
        pipe.flush()
        assert stages[1].never.weight.grad is None
        assert options or stages[1].used.weight.grad is not None


def test_copies_of_a_lazy_stage_are_refused():
    placement = Placement(routes=((0, 1), (1, 0)))
    with pytest.raises(InvalidInput, match=r"stage 0 has copies, but its lazy parameter used.weight has no shape yet"):
        Pipeline(pipes.timetable(placement, 4), [HalfLazy(), HalfLazy()], pipes.square_loss)
