"""The same equality on a CUDA device, where autograd runs backwards in a thread of its own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.executor.split_reference import Checkpointed, run_both

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wait", [False, True], ids=["pieces", "wait"])
@pytest.mark.parametrize("reentrant", [None, False, True])
def test_a_stack_in_any_precision(dtype, wait, reentrant):
    def make() -> nn.Module:
        inner: nn.Module = nn.Sequential(
            nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.RMSNorm(64), nn.Dropout(0.2)
        )
        if reentrant is not None:
            inner = Checkpointed(inner, reentrant)
        return nn.Sequential(nn.Linear(64, 64), inner, nn.Linear(64, 64, bias=False)).to("cuda", dtype)

    torch.manual_seed(0)
    batches = [[torch.randn(4, 16, 64, device="cuda", dtype=dtype)] for _ in range(3)]
    plan = [("F", 0), ("F", 1), ("B", 0), ("F", 2), ("W", 0), ("B", 1), ("B", 2), ("W", 1), ("W", 2)]
    stage = run_both(make, batches, [True], plan=plan, norms_wait=wait)
    assert stage.report().fallback == ()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.RMSNorm(64)).cuda()

    torch.manual_seed(0)
    batches = [[torch.randn(4, 16, 64, device="cuda")] for _ in range(3)]
    for wait in (False, True):
        with torch.autocast("cuda", dtype):
            run_both(make, batches, [True], norms_wait=wait)


def test_images():
    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(inplace=True), nn.ConvTranspose2d(16, 3, 3)
        ).cuda()

    torch.manual_seed(0)
    torch.backends.cudnn.deterministic = True
    try:
        for layout in (torch.contiguous_format, torch.channels_last):
            batches = [[torch.randn(4, 3, 16, 16, device="cuda").to(memory_format=layout)] for _ in range(3)]
            for wait in (False, True):
                run_both(make, batches, [True], norms_wait=wait)
    finally:
        torch.backends.cudnn.deterministic = False
