"""What is held, what is saved, and how the loss scale moves."""

from __future__ import annotations

import functools
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.executor.chain import LIMIT, gradients, in_one_piece, parameters, post_validated, same_bits, together
from tests.executor.own_optimizers import KeepsObjects, MasterWeights, WritesGradients
from zbsolve.errors import InvalidInput
from zbsolve.executor.optimizer import HeldBytes, LossScale, PostValidatedOptimizer, Verdict, queue_channels

ADAM = functools.partial(torch.optim.Adam, lr=0.1)
SIZE = sum(p.numel() for p in parameters(0)) * 4
CHECKS = {"max_grad_norm": LIMIT, "check_overflow": True}


def begun(kind, *, make=ADAM, rank=0, ranks=3, steps=1, **options):
    """A rank after its last `step_begin`, the steps before it kept; and weak references to its gradients."""
    channels = queue_channels(ranks)
    own = parameters(0)
    stepper = PostValidatedOptimizer(make(own), rank=rank, ranks=ranks, channel=channels[rank], **options)
    for step in range(steps):
        last = step == steps - 1
        for p, g in zip(own, gradients(kind if last else "small", step, 0, own), strict=True):
            p.grad = g
        alive = [weakref.ref(p.grad) for p in own]
        if rank:
            channels[rank - 1].send(rank, (float(step), 0.0, 0.0, 0.0, -1.0))
        stepper.step_begin()
        del g
        if not last:
            if rank < ranks - 1 and not stepper.rule.off:
                words = channels[rank + 1].receive(rank)
                channels[rank + 1].send(rank, words)
            stepper.validate()
    return stepper, alive


def test_the_first_snapshot_of_adam_is_its_parameters_alone():
    stepper, alive = begun("small", **CHECKS)
    assert stepper.held_bytes() == HeldBytes(parameters=SIZE, state=0, gradients=SIZE)
    assert all(ref() is not None for ref in alive)


def test_later_ones_have_both_averages_and_the_counters():
    stepper, _ = begun("small", steps=2, **CHECKS)
    assert stepper.held_bytes() == HeldBytes(parameters=SIZE, state=2 * SIZE + 2 * 4, gradients=SIZE)
    assert stepper.held_bytes().total == 4 * SIZE + 8


def test_a_skip_needs_no_gradients():
    stepper, alive = begun("small", check_overflow=True)
    assert stepper.held_bytes() == HeldBytes(parameters=SIZE)
    assert all(ref() is None for ref in alive)


def test_a_rank_that_holds_back_keeps_its_gradients_alone():
    stepper, _ = begun("large", **CHECKS)
    assert stepper.held_bytes() == HeldBytes(gradients=SIZE)


def test_certain_skips_and_the_last_rank_hold_nothing():
    for stepper, alive in (begun("inf", **CHECKS), begun("small", rank=2, **CHECKS)):
        assert stepper.held_bytes() == HeldBytes()
        assert all(ref() is None for ref in alive)


@pytest.mark.parametrize("undo", ["snapshot", "inverse"])
def test_nothing_is_held_and_nothing_sent_when_nothing_is_checked(undo):
    own = parameters(0)
    reference = parameters(0)
    plain = ADAM(reference)
    stepper = PostValidatedOptimizer(ADAM(own), rank=0, ranks=4, channel=None, undo=undo)
    for step in range(3):
        for p, q, g in zip(own, reference, gradients("large", step, 0, own), strict=True):
            p.grad, q.grad = g, g.clone()
        alive = [weakref.ref(p.grad) for p in own]
        del g
        stepper.step_begin()
        plain.step()
        assert stepper.held_bytes() == HeldBytes()
        assert all(ref() is None for ref in alive)
        validation = stepper.validate()
        assert (validation.verdict, validation.norm, validation.overflow) == (Verdict.KEPT, None, None)
        assert not validation.rerun
    assert same_bits([p.detach() for p in own], [p.detach() for p in reference])


def test_copies_of_gradients_count_as_well():
    stepper, alive = begun("small", make=WritesGradients, **CHECKS)
    assert stepper.held_bytes() == HeldBytes(parameters=SIZE, gradients=SIZE)
    assert all(ref() is None for ref in alive)


def test_tensors_inside_objects_and_inner_optimizers_count_too():
    stepper, _ = begun("small", make=KeepsObjects, steps=2, check_overflow=True)
    assert stepper.held_bytes() == HeldBytes(parameters=SIZE, state=SIZE)
    stepper, _ = begun("small", make=MasterWeights, steps=2, check_overflow=True)
    # float32 masters, two averages and a counter each
    assert stepper.held_bytes() == HeldBytes(parameters=SIZE, state=3 * SIZE + 2 * 4)


def test_a_next_gradient_that_has_begun_to_gather_survives_a_repair():
    channels = queue_channels(2)
    own = parameters(0)
    stepper = PostValidatedOptimizer(ADAM(own), rank=0, ranks=2, channel=channels[0], **CHECKS)
    for p in own:
        p.grad = torch.full_like(p, 0.01)
    stepper.step_begin()
    early = [torch.ones_like(p) for p in own]
    for p, g in zip(own, early, strict=True):
        p.grad = g
    step, overflow, _, wide, _ = channels[1].receive(0)
    channels[1].send(0, (step, overflow, 100.0, wide, 1.0))
    assert stepper.validate().verdict is Verdict.CLIPPED
    assert all(p.grad is g and bool((g == 1).all()) for p, g in zip(own, early, strict=True))


def test_a_repair_uses_the_settings_of_its_step_and_keeps_what_was_set_since():
    """Also a learning rate that is a tensor and set in place, and a group that was added."""
    kinds = [["small", "large"]]

    def run(change):
        channels = queue_channels(2)
        weights = [parameters(0), parameters(1)]
        optimizers = [torch.optim.Adam(w, lr=torch.tensor(0.1)) for w in weights]

        def work(rank):
            stepper = PostValidatedOptimizer(optimizers[rank], rank=rank, ranks=2, channel=channels[rank], **CHECKS)
            for p, g in zip(weights[rank], gradients(kinds[0][rank], 0, rank, weights[rank]), strict=True):
                p.grad = g
            stepper.step_begin()
            if change:
                optimizers[rank].param_groups[0]["lr"].fill_(77.0)
                optimizers[rank].param_groups[0]["betas"] = (0.1, 0.2)
                optimizers[rank].add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))], "lr": 3.0})
            stepper.validate()

        together(2, work)
        return [p.detach() for w in weights for p in w], optimizers[0]

    plain, _ = run(change=False)
    changed, optimizer = run(change=True)
    assert same_bits(plain, changed)
    assert float(optimizer.param_groups[0]["lr"]) == 77.0
    assert optimizer.param_groups[0]["betas"] == (0.1, 0.2)
    assert optimizer.param_groups[1]["lr"] == 3.0


def test_undoing_writes_into_the_tensors_that_were_there():
    """Flat buffers and compiled code look at parameters by address."""
    flat = torch.zeros(6)
    p = torch.nn.Parameter(flat[1:5])
    channels = queue_channels(2)
    stepper = PostValidatedOptimizer(ADAM([p]), rank=0, ranks=2, channel=channels[0], check_overflow=True)
    p.grad = torch.ones(4)
    stepper.step_begin()
    assert bool((flat[1:5] != 0).all())
    step, _, squares, wide, _ = channels[1].receive(0)
    channels[1].send(0, (step, 1.0, squares, wide, 1.0))
    assert stepper.validate().undone
    assert p.data_ptr() == flat[1:].data_ptr()
    assert bool((flat == 0).all())
    assert not stepper.optimizer.state


def test_a_checkpoint_goes_on_with_the_same_bits():
    kinds = ["small", "large", "inf", "small", "small", "large"]
    scale = LossScale(scale=1024.0, growth_interval=2)

    def steps(stepper, own, some, first):
        for step, kind in enumerate(some, start=first):
            for p, g in zip(own, gradients(kind, step, 0, own, stepper.loss_scale), strict=True):
                p.grad = g
            stepper.step_begin()
            stepper.validate()

    through = parameters(0)
    whole = PostValidatedOptimizer(ADAM(through), loss_scale=scale, **CHECKS)
    steps(whole, through, kinds, 0)

    own = parameters(0)
    first = PostValidatedOptimizer(ADAM(own), loss_scale=scale, **CHECKS)
    steps(first, own, kinds[:3], 0)
    saved = first.state_dict()
    copy = [torch.nn.Parameter(p.detach().clone()) for p in own]
    second = PostValidatedOptimizer(ADAM(copy), loss_scale=scale, **CHECKS)
    second.load_state_dict(saved)
    steps(second, copy, kinds[3:], 3)
    assert same_bits([p.detach() for p in copy], [p.detach() for p in through])
    assert same_bits(second.state_dict(), whole.state_dict())
    with pytest.raises(InvalidInput, match="the state has a loss scale and this optimizer has none"):
        PostValidatedOptimizer(ADAM(copy), **CHECKS).load_state_dict(saved)


# the loss scale


@settings(max_examples=50, deadline=None)
@given(
    overflows=st.lists(st.booleans(), min_size=1, max_size=12),
    interval=st.integers(1, 4),
    start=st.sampled_from([1.0, 1024.0, 2.0**127, 3.1e38]),
    growth=st.sampled_from([2.0, 1.7]),
    backoff=st.sampled_from([0.5, 0.3]),
)
def test_the_scale_moves_as_the_gradient_scaler_s(overflows, interval, start, growth, backoff):
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=start, growth_factor=growth, backoff_factor=backoff, growth_interval=interval
    )
    scale = LossScale(scale=start, growth_factor=growth, backoff_factor=backoff, growth_interval=interval)
    p = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([p], lr=1.0)
    scaler.scale(torch.zeros(1))
    for overflow in overflows:
        p.grad = torch.full((1,), float("inf") if overflow else 0.0)
        scaler.step(optimizer)
        scaler.update()
        scale = scale.after(overflow)
        assert scale.scale == scaler.get_scale()


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 4).flatmap(
        lambda n: st.lists(
            st.lists(st.sampled_from(["small", "small", "large", "inf"]), min_size=n, max_size=n),
            min_size=1,
            max_size=8,
        )
    ),
    st.sampled_from([torch.float32, torch.float16]),
)
def test_scaled_runs_equal_a_single_process_with_torch_s_scaler(kinds, dtype):
    """Weights bit by bit, and the scale, against `GradScaler` itself around one optimizer."""
    ranks = len(kinds[0])
    make = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    run = post_validated(kinds, make, dtype=dtype, loss_scale=LossScale(scale=256.0, growth_interval=2), **CHECKS)
    single = in_one_piece(kinds, make, dtype=dtype, loss_scale=LossScale(scale=256.0, growth_interval=2), **CHECKS)
    assert same_bits(run.weights, single.weights)
    assert run.scale == single.scale
    if dtype is torch.float16:
        return  # torch's scaler refuses gradients in float16

    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
    weights = [p for r in range(ranks) for p in parameters(r)]
    optimizer = make(weights)
    scaler.scale(torch.zeros(1))
    for step, row in enumerate(kinds):
        found = [g for r in range(ranks) for g in gradients(row[r], step, r, parameters(r), scaler.get_scale())]
        for p, g in zip(weights, found, strict=True):
            p.grad = g
        scaler.unscale_(optimizer)
        norm = run.validations[0][step].norm
        torch.nn.utils.clip_grads_with_norm_(weights, LIMIT, torch.tensor(norm))
        scaler.step(optimizer)
        scaler.update()
        assert run.validations[0][step].loss_scale == scaler.get_scale()
    assert same_bits([p for w in run.weights for p in w], [p.detach() for p in weights])


def test_a_scale_that_never_changes_and_one_that_cannot_vanish():
    fixed = LossScale(scale=8.0, growth_interval=None)
    assert fixed.after(True) is fixed
    assert fixed.after(False) is fixed
    tiny = LossScale(scale=1e-45)
    assert tiny.after(True).scale == tiny.scale


@pytest.mark.parametrize(
    "wrong",
    [
        {"scale": 0.0},
        {"scale": float("inf")},
        {"growth_factor": 1.0},
        {"backoff_factor": 1.0},
        {"growth_interval": 0},
    ],
)
def test_scales_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InvalidInput):
        LossScale(**wrong)


def test_a_loss_scale_needs_overflow_checks():
    with pytest.raises(InvalidInput, match="check_overflow=True"):
        PostValidatedOptimizer(ADAM(parameters(0)), loss_scale=LossScale())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("device", [None, "cpu"])
def test_snapshots_of_device_tensors(device):
    """On the device, and in pinned host memory."""
    own = [torch.nn.Parameter(p.detach().cuda()) for p in parameters(0)]
    before = [p.detach().clone() for p in own]
    channels = queue_channels(2)
    stepper = PostValidatedOptimizer(
        ADAM(own), rank=0, ranks=2, channel=channels[0], check_overflow=True, snapshot_device=device
    )
    for p, g in zip(own, gradients("small", 0, 0, own), strict=True):
        p.grad = g.to(p.device)
    stepper.step_begin()
    assert stepper.held_bytes() == HeldBytes(parameters=SIZE, host=SIZE if device else 0)
    step, _, squares, wide, _ = channels[1].receive(0)
    channels[1].send(0, (step, 1.0, squares, wide, 1.0))
    assert stepper.validate().undone
    assert all(torch.equal(p, b) for p, b in zip(own, before, strict=True))
