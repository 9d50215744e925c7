"""Undo by inverse arithmetic: within its bound, without a snapshot, refused where it is not defined."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.executor.chain import LIMIT, gradients, in_one_piece, parameters, post_validated
from tests.executor.own_optimizers import WritesGroups
from zbsolve.errors import InvalidInput, RunError
from zbsolve.executor.optimizer import PostValidatedOptimizer, Verdict, queue_channels
from zbsolve.executor.optimizer.inverse import InverseUndo

SGD, Adam, AdamW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
INVERTIBLE = {
    "sgd": functools.partial(SGD, weight_decay=0.1),
    "sgd-maximize": functools.partial(SGD, maximize=True, fused=True),
    "sgd-momentum": functools.partial(SGD, momentum=0.9, dampening=0.3, weight_decay=0.1),
    "sgd-momentum-foreach": functools.partial(SGD, momentum=0.9, foreach=True, maximize=True),
    "sgd-momentum-fused": functools.partial(SGD, momentum=0.9, fused=True),
    "sgd-nesterov": functools.partial(SGD, momentum=0.9, nesterov=True, weight_decay=0.1),
    "sgd-nesterov-foreach": functools.partial(SGD, momentum=0.9, nesterov=True, foreach=True),
    "sgd-nesterov-fused": functools.partial(SGD, momentum=0.6, nesterov=True, fused=True),
    "adam": functools.partial(Adam, foreach=False),
    "adam-decay": functools.partial(Adam, weight_decay=0.5, maximize=True, foreach=True),
    "adam-fused": functools.partial(Adam, weight_decay=0.1, fused=True),
    "adam-betas": functools.partial(Adam, betas=(0.5, 0.6), eps=1e-30),
    "adamw": functools.partial(AdamW, weight_decay=0.1, foreach=True),
    "adamw-fused": functools.partial(AdamW, weight_decay=0.5, maximize=True, fused=True),
}


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(sorted(INVERTIBLE)),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.float16]),
    rate=st.sampled_from([1e-4, 0.01, 0.9]),
    sizes=st.lists(st.sampled_from([0.0, 1e-12, 1e-3, 1.0, 30.0]), min_size=1, max_size=5),
    weight=st.sampled_from([0.0, 1e-6, 1.0, 100.0]),
    seed=st.integers(0, 2**20),
)
def test_every_element_comes_back_within_the_bound(name, dtype, rate, sizes, weight, seed):
    if dtype is torch.float16 and name.startswith("adam"):
        return
    if (
        dtype in (torch.float16, torch.bfloat16)
        and INVERTIBLE[name].func is SGD
        and "fused" in INVERTIBLE[name].keywords
    ):
        return
    generator = torch.Generator().manual_seed(seed)

    def numbers(size):
        return (torch.randn(64, generator=generator) * size).to(dtype)

    parameter = torch.nn.Parameter(numbers(weight))
    optimizer = INVERTIBLE[name]([parameter], lr=rate)
    before = state = None
    for index, size in enumerate(sizes):
        gradient = numbers(size)
        parameter.grad = gradient.clone()
        if index == len(sizes) - 1:
            before = parameter.detach().clone()
            state = {k: v.clone() for k, v in optimizer.state.get(parameter, {}).items()}
            undo = InverseUndo(optimizer, {parameter: gradient})
        optimizer.step()
    if not torch.isfinite(parameter).all():
        return
    error = undo.restore()
    assert (parameter.detach().double() - before.double()).abs().max() <= error.parameter
    assert optimizer.state.get(parameter, {}).keys() == state.keys()
    for key, old in state.items():
        now = optimizer.state[parameter][key]
        if key == "step":
            assert now == old
        else:
            assert (now.double() - old.double()).abs().max() <= error.state[key]


@pytest.mark.parametrize("name", sorted(INVERTIBLE))
def test_the_bound_is_worth_having(name):
    """For ordinary numbers it is a few roundings of the values, no more."""
    parameter = torch.nn.Parameter(torch.linspace(-1, 1, 64))
    optimizer = INVERTIBLE[name]([parameter], lr=0.01)
    for _ in range(3):
        parameter.grad = torch.linspace(1, -1, 64) * 0.1
        undo = InverseUndo(optimizer, {parameter: parameter.grad.clone()})
        optimizer.step()
    error = undo.restore()
    assert 0 < error.parameter < 1e-5
    assert all(0 < bound < 1e-5 for bound in error.state.values())


EVENTFUL = [
    ["small", "small", "large"],
    ["small", "small", "small"],
    ["small", "small", "inf"],
    ["small", "large", "small"],
    ["small", "small", "small"],
]


@pytest.mark.parametrize("name", sorted(INVERTIBLE))
def test_a_run_stays_near_the_synchronous_rule(name):
    make = functools.partial(INVERTIBLE[name], lr=0.01)
    checks = {"max_grad_norm": LIMIT, "check_overflow": True}
    run = post_validated(EVENTFUL, make, undo="inverse", schedule=True, **checks)
    reference = in_one_piece(EVENTFUL, make, schedule=True, **checks)
    for own, wanted in zip(run.weights, reference.weights, strict=True):
        torch.testing.assert_close(own, wanted, rtol=1e-5, atol=1e-5)
    # the last rank never undoes anything, so it is exact
    assert all(torch.equal(a, b) for a, b in zip(run.weights[-1], reference.weights[-1], strict=True))
    undone = [v for v in run.validations[0] if v.undone]
    assert [v.verdict for v in undone] == [Verdict.CLIPPED, Verdict.SKIPPED, Verdict.CLIPPED]
    assert all(0 < v.undo_error.parameter < 1e-4 for v in undone)
    assert all(v.undo_error is None for v in run.validations[2])


def test_nothing_but_the_gradients_is_held():
    run = post_validated([["small"] * 3] * 3, functools.partial(AdamW, lr=0.1), undo="inverse", check_overflow=True)
    size = sum(p.numel() * 4 for p in parameters(0))
    assert run.held == [[size] * 3, [size] * 3, [0] * 3]


def test_a_snapshot_steps_in_where_the_numbers_are_too_large_to_come_back():
    """1e30 squared is no float32: the step leaves an infinity in Adam's squares."""
    channels = queue_channels(2)
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = Adam([parameter], lr=0.1)
    stepper = PostValidatedOptimizer(
        optimizer, rank=0, ranks=2, channel=channels[0], check_overflow=True, undo="inverse"
    )
    parameter.grad = torch.full((3,), 1e30)
    stepper.step_begin()
    assert stepper.held_bytes().parameters == 12
    step, _, squares, wide, _ = channels[1].receive(0)
    channels[1].send(0, (step, 1.0, squares, wide, 1.0))
    assert stepper.validate().undone
    assert torch.equal(parameter.detach(), torch.ones(3))
    assert not optimizer.state


def test_infinities_that_a_step_left_are_an_error_and_not_a_weight():
    parameter = torch.nn.Parameter(torch.full((3,), 3e38))
    optimizer = SGD([parameter], lr=1e8)
    gradient = torch.full((3,), -1e35)
    parameter.grad = gradient
    undo = InverseUndo(optimizer, {parameter: gradient})
    optimizer.step()
    with pytest.raises(RunError, match="cannot be computed back"):
        undo.restore()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (torch.optim.Adagrad, "is defined for SGD, Adam and AdamW"),
        (WritesGroups, "is defined for SGD, Adam and AdamW"),
        (type("MySGD", (SGD,), {}), "is defined for SGD, Adam and AdamW"),
        (functools.partial(Adam, amsgrad=True), "amsgrad keeps a maximum"),
        (functools.partial(Adam, betas=(0.0, 0.999)), "a beta below 0.5"),
        (functools.partial(AdamW, lr=0.9, weight_decay=1.0), "lr x weight_decay"),
        (functools.partial(SGD, lr=1.0, weight_decay=1.0), "lr x weight_decay"),
        (functools.partial(SGD, momentum=0.1), "a momentum below 0.5"),
        (functools.partial(Adam, differentiable=True), "capturable or differentiable"),
    ],
)
def test_others_are_refused_with_the_reason_and_what_to_use(make, reason):
    with pytest.raises(InvalidInput, match=reason) as caught:
        PostValidatedOptimizer(make(parameters(0)), check_overflow=True, undo="inverse")
    assert "use undo='snapshot'" in str(caught.value)


def test_float16_adam_hooks_complex_numbers_and_replicas_are_refused():
    halves = parameters(0, torch.float16)
    with pytest.raises(InvalidInput, match="float16 holds neither"):
        PostValidatedOptimizer(Adam(halves), check_overflow=True, undo="inverse")
    with pytest.raises(InvalidInput, match="complex64"):
        PostValidatedOptimizer(
            SGD([torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))]), check_overflow=True, undo="inverse"
        )
    hooked = SGD(parameters(0))
    hooked.register_step_post_hook(lambda *_: None)
    with pytest.raises(InvalidInput, match="step hooks"):
        PostValidatedOptimizer(hooked, check_overflow=True, undo="inverse")
    own = parameters(0)
    with pytest.raises(InvalidInput, match="would drift apart"):
        PostValidatedOptimizer(SGD(own), check_overflow=True, undo="inverse", replicas={own[0]: True})


def test_fused_16_bit_sgd_on_the_cpu_is_refused():
    """It updates only some of the elements, so its equations do not hold."""
    with pytest.raises(InvalidInput, match="leaves out most 16-bit elements"):
        InverseUndo(SGD(parameters(0, torch.bfloat16), fused=True), {})


def test_large_tensors_are_solved_in_slices(monkeypatch):
    monkeypatch.setattr("zbsolve.executor.optimizer.inverse._CHUNK", 8)
    own = parameters(0)
    optimizer = AdamW(own, lr=0.01)
    before = [p.detach().clone() for p in own]
    for p, g in zip(own, gradients("small", 0, 0, own), strict=True):
        p.grad = g
    undo = InverseUndo(optimizer, {p: p.grad for p in own})
    optimizer.step()
    error = undo.restore()
    assert all((p.detach() - b).abs().max() <= error.parameter for p, b in zip(own, before, strict=True))
