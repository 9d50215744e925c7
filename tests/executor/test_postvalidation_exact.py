"""With snapshots every run ends with the bits of the synchronous rule, whatever was injected."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.executor.chain import LIMIT, gradients, in_one_piece, parameters, post_validated, same_bits
from tests.executor.own_optimizers import (
    KeepsObjects,
    MasterWeights,
    ReplacesState,
    Wraps,
    WritesGradients,
    WritesGroups,
)
from zbsolve.executor.optimizer import Verdict, synchronous_step

# a scheduler that moves although the first step was skipped warns, in torch's own scaler loop as well
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step"),
]

OPTIMIZERS = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.1),
    "sgd-momentum": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "sgd-nesterov-foreach": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "sgd-fused": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, maximize=True, fused=True),
    "adam": functools.partial(torch.optim.Adam, lr=0.1, weight_decay=0.01, foreach=False),
    "adam-foreach": functools.partial(torch.optim.Adam, lr=0.1, amsgrad=True, foreach=True),
    "adam-fused": functools.partial(torch.optim.Adam, lr=0.1, fused=True),
    "adam-tensor-lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1)),
    "adamw": functools.partial(torch.optim.AdamW, lr=0.1, weight_decay=0.1),
    "adamw-fused": functools.partial(torch.optim.AdamW, lr=0.1, weight_decay=0.1, fused=True),
    "adagrad": functools.partial(torch.optim.Adagrad, lr=0.1),
    "adagrad-fused": functools.partial(torch.optim.Adagrad, lr=0.1, fused=True),
    "rmsprop": functools.partial(torch.optim.RMSprop, lr=0.1, momentum=0.9, centered=True),
    "adadelta": torch.optim.Adadelta,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "asgd": torch.optim.ASGD,
    "rprop": torch.optim.Rprop,
    "adafactor": torch.optim.Adafactor,
    "writes-gradients": WritesGradients,
    "writes-groups": WritesGroups,
    "replaces-state": ReplacesState,
    "wraps": Wraps,
    "keeps-objects": KeepsObjects,
    "master-weights": MasterWeights,
}

# every way a step can go on three ranks: good, clipped by one or by all together, skipped, at each rank
EVENTFUL = [
    ["small", "small", "large"],
    ["small", "small", "inf"],
    ["small", "small", "small"],
    ["nan", "small", "small"],
    ["large", "small", "small"],
    ["small", "large", "nan"],
    ["small", "small", "large"],
    ["small", "inf", "small"],
]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_ends_with_the_bits_of_the_synchronous_rule(name):
    checks = {"max_grad_norm": LIMIT, "check_overflow": True}
    run = post_validated(EVENTFUL, OPTIMIZERS[name], schedule=True, **checks)
    reference = in_one_piece(EVENTFUL, OPTIMIZERS[name], schedule=True, **checks)
    assert same_bits(run.weights, reference.weights)
    assert same_bits(run.states, reference.states)
    assert [v.verdict for v in run.validations[0]] == [
        Verdict.CLIPPED,
        Verdict.SKIPPED,
        Verdict.KEPT,
        Verdict.SKIPPED,
        Verdict.CLIPPED,
        Verdict.SKIPPED,
        Verdict.CLIPPED,
        Verdict.SKIPPED,
    ]
    assert any(v.undone for v in run.validations[0])


def test_muon_too():
    def make(p):
        return torch.optim.Muon([p[0]], lr=0.1)  # for matrices only

    checks = {"max_grad_norm": LIMIT, "check_overflow": True}
    run, reference = post_validated(EVENTFUL, make, **checks), in_one_piece(EVENTFUL, make, **checks)
    assert same_bits(run.weights, reference.weights)
    assert same_bits(run.states, reference.states)


KINDS = st.sampled_from(["small", "small", "small", "large", "inf", "nan", "zero"])


@st.composite
def patterns(draw):
    ranks, steps = draw(st.integers(1, 5)), draw(st.integers(1, 8))
    return [[draw(KINDS) for _ in range(ranks)] for _ in range(steps)]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kinds=patterns(),
    name=st.sampled_from(sorted(OPTIMIZERS)),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
    max_grad_norm=st.sampled_from([None, LIMIT]),
    check_overflow=st.booleans(),
    schedule=st.booleans(),
    synchronous=st.booleans(),
    shared=st.booleans(),
    late=st.booleans(),
)
def test_any_pattern_ends_with_the_bits_of_the_synchronous_rule(
    kinds, name, dtype, max_grad_norm, check_overflow, schedule, synchronous, shared, late
):
    checks = {"max_grad_norm": max_grad_norm, "check_overflow": check_overflow, "dtype": dtype, "schedule": schedule}
    make = OPTIMIZERS[name]
    if shared:
        # all ranks hold the first parameter, so all have the same gradient of it
        kinds = [[row[0]] * len(row) for row in kinds]
    run = post_validated(kinds, make, synchronous=synchronous, scheduler_after_validation=late, shared=shared, **checks)
    reference = in_one_piece(kinds, make, shared=shared, **checks)
    assert same_bits(run.weights, reference.weights)
    assert same_bits(run.states, reference.states)
    for step, heard in enumerate(zip(*run.validations, strict=True)):
        assert len({(v.step, v.verdict, repr(v.norm), v.overflow, v.wrong_ranks, v.rerun) for v in heard}) == 1
        assert heard[0].step == step
        assert [v.weights_changed for v in heard] == [rank in heard[0].wrong_ranks for rank in range(len(heard))]
        assert not (synchronous and heard[0].rerun)


def test_the_rule_is_torch_clip_and_step_on_the_whole_model():
    """One optimizer over all ranks' parameters, torch's own clipping, the same norm."""
    ranks, steps = 3, 4
    weights = [parameters(rank) for rank in range(ranks)]
    whole = [torch.nn.Parameter(p.detach().clone()) for w in weights for p in w]
    optimizers = [torch.optim.AdamW(w, lr=0.1) for w in weights]
    plain = torch.optim.AdamW(whole, lr=0.1)
    for step in range(steps):
        kind = "large" if step % 2 else "small"
        for rank, own in enumerate(weights):
            for p, g in zip(own, gradients(kind, step, rank, own), strict=True):
                p.grad = g
        for p, q in zip(whole, [p for w in weights for p in w], strict=True):
            p.grad = q.grad.clone()
        verdict, full, _ = synchronous_step(optimizers, max_grad_norm=LIMIT)
        norm = torch.tensor(full.square_sum, dtype=torch.float64).sqrt().float()
        torch.testing.assert_close(norm, torch.nn.utils.get_total_norm([p.grad for p in whole]), rtol=1e-6, atol=0)
        torch.nn.utils.clip_grads_with_norm_(whole, LIMIT, norm)
        plain.step()
        assert verdict is (Verdict.CLIPPED if step % 2 else Verdict.KEPT)
        assert same_bits([p.detach() for p in whole], [p.detach() for w in weights for p in w])


def test_half_precision_gradients_do_not_overflow_in_the_norm():
    """A float16 norm of 300 x 1000 would be infinite; the norm is taken in float64."""
    p = torch.nn.Parameter(torch.zeros(100_000, dtype=torch.float16))
    p.grad = torch.full_like(p, 300.0)
    verdict, full, _ = synchronous_step([torch.optim.SGD([p], lr=0.0)], max_grad_norm=1e6, check_overflow=True)
    assert verdict is Verdict.KEPT
    assert full.square_sum == pytest.approx(100_000 * 300.0**2, rel=1e-12)
