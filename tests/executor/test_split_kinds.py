"""Every kind of module that can be split, in every shape and layout it takes, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.executor.split_reference import run_both
from zbsolve.executor.split import SplitStage

R = torch.randn
LAST = torch.channels_last
LAST3 = torch.channels_last_3d


def lies_by_columns() -> nn.Module:
    layer = nn.Linear(33, 17)
    layer.weight = nn.Parameter(R(33, 17).t())
    return layer


LINEAR = {
    "rows": (lambda: nn.Linear(33, 17), lambda: R(40, 33)),
    "three dimensions": (lambda: nn.Linear(33, 17), lambda: R(4, 40, 33)),
    "four dimensions": (lambda: nn.Linear(33, 17), lambda: R(2, 4, 10, 33)),
    "batch second": (lambda: nn.Linear(33, 17), lambda: R(4, 40, 33).transpose(0, 1)),
    "batch second, no bias": (lambda: nn.Linear(33, 17, bias=False), lambda: R(4, 40, 33).transpose(0, 1)),
    "features first": (lambda: nn.Linear(40, 17), lambda: R(4, 40, 33).transpose(1, 2)),
    "transposed": (lambda: nn.Linear(40, 17), lambda: R(40, 33).t()),
    "transposed, no bias": (lambda: nn.Linear(40, 17, bias=False), lambda: R(40, 33).t()),
    "one position": (lambda: nn.Linear(33, 17), lambda: R(33)),
    "one position, no bias": (lambda: nn.Linear(33, 17, bias=False), lambda: R(33)),
    "one of everything": (lambda: nn.Linear(1, 1), lambda: R(1, 1)),
    "one feature": (lambda: nn.Linear(1, 5), lambda: R(7, 1)),
    "expanded": (lambda: nn.Linear(6, 5), lambda: R(1, 7, 6).expand(4, 7, 6)),
    "a slice": (lambda: nn.Linear(6, 5), lambda: R(4, 7, 18)[..., 6:12]),
    "nothing": (lambda: nn.Linear(6, 5), lambda: R(0, 6)),
    "a weight that lies by columns": (lies_by_columns, lambda: R(4, 10, 33)),
    "double": (lambda: nn.Linear(6, 5, dtype=torch.float64), lambda: R(4, 6, dtype=torch.float64)),
    "bfloat16": (lambda: nn.Linear(32, 16, dtype=torch.bfloat16), lambda: R(4, 8, 32, dtype=torch.bfloat16)),
}
NORMS = {
    "layer": (lambda: nn.LayerNorm(33), lambda: R(4, 40, 33)),
    "layer, batch second": (lambda: nn.LayerNorm(33), lambda: R(4, 40, 33).transpose(0, 1)),
    "layer, no bias": (lambda: nn.LayerNorm((40, 33), bias=False), lambda: R(4, 40, 33)),
    "layer, bfloat16": (lambda: nn.LayerNorm(32), lambda: R(4, 8, 32, dtype=torch.bfloat16)),
    "root mean square": (lambda: nn.RMSNorm(33), lambda: R(4, 40, 33)),
    "root mean square, batch second": (lambda: nn.RMSNorm(33, eps=1e-6), lambda: R(4, 40, 33).transpose(0, 1)),
    "group": (lambda: nn.GroupNorm(3, 6), lambda: R(4, 6, 8, 9)),
    "group, channels last": (lambda: nn.GroupNorm(3, 6), lambda: R(4, 6, 8, 9).to(memory_format=LAST)),
    "group, volumes, channels last": (lambda: nn.GroupNorm(3, 6), lambda: R(2, 6, 3, 4, 5).to(memory_format=LAST3)),
    "group, transposed": (lambda: nn.GroupNorm(3, 6), lambda: R(4, 8, 6).transpose(1, 2)),
    "group, no area": (lambda: nn.GroupNorm(3, 6), lambda: R(4, 6)),
}
CONVOLUTIONS = {
    "1d": (lambda: nn.Conv1d(6, 8, 3, padding=1, stride=2), lambda: R(4, 6, 20)),
    "1d same": (lambda: nn.Conv1d(6, 8, 3, padding="same"), lambda: R(4, 6, 20)),
    "1d valid, no batch": (lambda: nn.Conv1d(6, 8, 3, padding="valid"), lambda: R(6, 20)),
    "2d groups, dilated": (lambda: nn.Conv2d(6, 8, 3, groups=2, dilation=2), lambda: R(4, 6, 12, 12)),
    "2d channels last": (lambda: nn.Conv2d(6, 8, 3), lambda: R(4, 6, 12, 12).to(memory_format=LAST)),
    "2d depthwise, no bias": (lambda: nn.Conv2d(6, 6, 3, groups=6, bias=False), lambda: R(4, 6, 12, 12)),
    "2d circular": (lambda: nn.Conv2d(6, 8, (3, 5), padding=(1, 2), padding_mode="circular"), lambda: R(4, 6, 9, 11)),
    "2d same, unequal": (lambda: nn.Conv2d(6, 8, (3, 5), padding="same"), lambda: R(4, 6, 9, 11)),
    "3d": (lambda: nn.Conv3d(3, 4, 3), lambda: R(2, 3, 6, 7, 8)),
    "1d transposed": (lambda: nn.ConvTranspose1d(6, 8, 3, stride=2, output_padding=1), lambda: R(4, 6, 20)),
    "2d transposed, groups": (lambda: nn.ConvTranspose2d(6, 8, 3, groups=2), lambda: R(4, 6, 10, 9)),
    "3d transposed": (lambda: nn.ConvTranspose3d(3, 4, 3, bias=False), lambda: R(2, 3, 4, 5, 6)),
}
EMBEDDINGS = {
    "plain": (lambda: nn.Embedding(11, 5), lambda: torch.randint(11, (4, 7))),
    "padding": (lambda: nn.Embedding(11, 5, padding_idx=-1), lambda: torch.randint(11, (4, 7))),
    "by frequency": (lambda: nn.Embedding(11, 5, scale_grad_by_freq=True), lambda: torch.randint(11, (4, 7))),
    "int32": (lambda: nn.Embedding(11, 5), lambda: torch.randint(11, (9,), dtype=torch.int32)),
}


@pytest.mark.parametrize("wants", [False, True], ids=["data", "activations"])
@pytest.mark.parametrize(("make", "draw"), [*LINEAR.values(), *CONVOLUTIONS.values()], ids=[*LINEAR, *CONVOLUTIONS])
def test_products_are_weighed_later(make, draw, wants):
    torch.manual_seed(1)
    stage = run_both(make, [[draw()] for _ in range(3)], [wants])
    assert stage.report().share == 1.0
    assert stage.report().fallback == ()


@pytest.mark.parametrize("wants", [False, True], ids=["data", "activations"])
@pytest.mark.parametrize("wait", [False, True], ids=["pieces", "wait"])
@pytest.mark.parametrize(("make", "draw"), NORMS.values(), ids=NORMS)
def test_norms_hand_over_pieces_or_wait(make, draw, wait, wants):
    torch.manual_seed(2)
    if not wants and not draw().is_contiguous() and isinstance(make(), nn.GroupNorm):
        pytest.skip("plain autograd crashes: see below")
    report = run_both(make, [[draw()] for _ in range(3)], [wants], norms_wait=wait).report()
    assert report.fallback == ()
    # torch scales an RMSNorm's input as it lies before it puts the result into order, so B has to do both
    waits = wait and (not isinstance(make(), nn.RMSNorm) or draw().is_contiguous())
    assert (report.deferred_flops > 0, report.norm_flops > 0) == (waits, not waits)


@pytest.mark.parametrize(("make", "draw"), EMBEDDINGS.values(), ids=EMBEDDINGS)
def test_embeddings_are_weighed_later(make, draw):
    torch.manual_seed(3)
    assert run_both(make, [[draw()] for _ in range(3)], [False]).report().share == 1.0


def test_group_norm_that_waits_needs_no_input_gradient():
    # plain autograd crashes here (torch 2.13 writes to an input gradient that nobody asked for)
    x = R(4, 6, 8, 9).to(memory_format=LAST)
    norm, twin = nn.GroupNorm(3, 6), nn.GroupNorm(3, 6)
    stage = SplitStage(norm, norms_wait=True)
    (y,) = stage.forward(0, x)
    assert stage.backward_input(0, [torch.ones_like(y)]) == (None,)
    stage.backward_weight(0)
    twin(x.clone().requires_grad_()).sum().backward()
    assert torch.equal(norm.bias.grad, twin.bias.grad)
    torch.testing.assert_close(norm.weight.grad, twin.weight.grad)


@pytest.mark.parametrize(
    ("make", "draw", "why"),
    [
        (lambda: nn.Embedding(11, 5, max_norm=1.0), lambda: torch.randint(11, (4, 7)), "by a call"),
        (lambda: nn.Conv1d(6, 8, 4, padding="same"), lambda: R(4, 6, 20), "by a call"),
        (lambda: nn.BatchNorm1d(6), lambda: R(4, 6), "BatchNorm1d.weight is used by code unknown here"),
        (lambda: nn.PReLU(6), lambda: R(4, 6), "PReLU.weight"),
        (lambda: nn.GRU(6, 5), lambda: R(3, 4, 6), "GRU.weight_ih_l0"),
        (lambda: nn.Bilinear(6, 6, 3), None, "Bilinear.weight"),
    ],
    ids=["renormalised embedding", "lopsided padding", "batch norm", "prelu", "gru", "bilinear"],
)
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_what_cannot_be_split_falls_back_and_says_so(make, draw, why):
    torch.manual_seed(4)
    batches = [[R(4, 6), R(4, 6)] if draw is None else [draw()] for _ in range(3)]
    wants = [x.is_floating_point() for x in batches[0]]
    report = run_both(make, batches, wants).report()
    assert report.share == 0.0
    assert {f.name for f in report.fallback} == {n for n, _ in make().named_parameters()}
    assert why in report.fallback[0].reason
