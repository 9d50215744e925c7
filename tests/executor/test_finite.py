"""A loss that is no number is told, with where it came from, and never hangs."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from tests.executor import pipes
from zbsolve.errors import InvalidInput, RunError
from zbsolve.executor import finite
from zbsolve.executor.finite import FiniteWatch, NonFinite, NonFiniteWarning
from zbsolve.executor.runtime import Pipeline
from zbsolve.placement import Placement


class Spoils(nn.Module):
    """Gives NaN at some of its calls."""

    def __init__(self, inner, at):
        super().__init__()
        self.inner, self.at, self.calls = inner, at, 0

    def forward(self, x):
        self.calls += 1
        y = self.inner(x)
        return y * float("nan") if self.calls - 1 in self.at else y


def pipeline(at, stage=1, **options):
    stages = pipes.model(3)
    stages[stage] = Spoils(stages[stage], at)
    options.setdefault("optimizer", lambda p: torch.optim.SGD(p, lr=0.1))
    return Pipeline(pipes.timetable(Placement.linear(3), 4), stages, pipes.square_loss, **options)


def test_step_microbatch_and_stage_are_named():
    pipe = pipeline({5, 6}, check_overflow=True)
    pipe.step(*pipes.batch(4))
    assert pipe.nonfinite == ()
    with pytest.warns(NonFiniteWarning) as told:
        assert pipe.step(*pipes.batch(4)).isnan()
    said = sorted(str(one.message) for one in told)
    assert said[0].startswith(
        "step 1: the first value that is not finite came out of stage 1 in microbatches 1, 2 (the"
    )
    assert said[1].startswith("step 1: the loss of microbatches 1, 2 is not finite (the optimizer skips this update")
    assert set(pipe.nonfinite) == {
        *(NonFinite(step=1, microbatch=j, stage=1, loss=False, first=True) for j in (1, 2)),
        *(NonFinite(step=1, microbatch=j, stage=2, loss=True, first=False) for j in (1, 2)),
    }
    pipe.flush()
    assert [v.overflow for v in pipe.validations] == [False, True]


def test_without_checks_the_warning_says_what_would_skip_it():
    with pytest.warns(NonFiniteWarning, match="check_overflow=True would skip such updates"):
        pipeline({1}).step(*pipes.batch(4))


def test_raising_names_the_operation_and_stops_everyone():
    pipe = pipeline({2}, nonfinite="raise", optimizer=None)
    message = r"rank 1 failed: F2 of stage 1: the output of stage 1 for microbatch 2 is not finite, though its input is"
    with pytest.raises(RunError, match=message):
        pipe.step(*pipes.batch(4))
    pipe.zero_grad()
    assert pipe.step(*pipes.batch(4)).isfinite()


def test_ignoring_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pipe = pipeline({2}, nonfinite="ignore")
        assert pipe.step(*pipes.batch(4)).isnan()
        assert pipe.nonfinite == ()
    with pytest.raises(InvalidInput, match="nonfinite is 'warn', 'raise' or 'ignore'"):
        pipeline({2}, nonfinite="shout")


def test_a_run_that_has_diverged_does_not_say_it_in_every_step():
    pipe = pipeline(range(1000))
    with pytest.warns(NonFiniteWarning) as told:
        pipe.steps([pipes.batch(4)] * 17)
    losses = [str(one.message) for one in told if "the loss of" in str(one.message)]
    assert [int(text.split(":")[0].removeprefix("step ")) for text in losses] == [0, 1, 3, 7, 15]
    assert {one.step for one in pipe.nonfinite} == set(range(17))


def test_forwards_that_run_again_are_judged_by_their_last_run():
    watch = FiniteWatch("warn", torch.device("cpu"))
    check = watch.after_forward(1)
    bad = torch.full((2,), float("nan"), requires_grad=True)
    check(0, [torch.ones(2)], [bad], False)
    watch.forget()
    check(0, [torch.ones(2)], [torch.ones(2, requires_grad=True)], False)
    watch.end_step(0)
    assert not watch.found


def test_masks_with_infinities_and_large_sums_are_no_fault():
    watch = FiniteWatch("raise", torch.device("cpu"))
    check = watch.after_forward(0)
    mask = torch.full((4,), float("-inf"))
    large = torch.full((4,), 3e38, requires_grad=True)
    half = torch.full((1000,), 6e4, dtype=torch.float16, requires_grad=True)
    check(0, [], [mask, large, half, torch.ones(3, dtype=torch.int64)], False)
    check(0, [], [torch.ones(2, dtype=torch.complex64, requires_grad=True)], False)
    with pytest.raises(RunError, match="the loss of stage 0 for microbatch 1 is not finite"):
        check(1, [], [torch.tensor(float("inf"))], True)


def test_a_loss_that_only_the_scale_makes_infinite_is_left_to_the_optimizer():
    from zbsolve.executor.optimizer import LossScale

    with warnings.catch_warnings():
        warnings.simplefilter("error", NonFiniteWarning)
        pipe = pipeline((), check_overflow=True, loss_scale=LossScale(scale=3e38))
        pipe.step(*pipes.batch(4))
        pipe.flush()
    assert pipe.validations[-1].overflow


def test_where_the_device_answers_late_each_step_is_told_after_the_next(monkeypatch):
    arrived = []
    monkeypatch.setattr(finite, "_sent_to_host", lambda tensor: (tensor, lambda: arrived.append(1)))
    watch = FiniteWatch("warn", torch.device("cpu"))
    watch._late = True
    early, late = watch.after_forward(1), watch.after_forward(2)
    for step in range(2):
        bad = step == 0
        early(3, [torch.ones(2)], [torch.full((2,), float("nan") if bad else 1.0, requires_grad=True)], False)
        late(3, [torch.full((2,), float("nan") if bad else 1.0)], [torch.tensor(float("inf") if bad else 1.0)], True)
        if bad:
            watch.end_step(step)
            assert not arrived
            assert not watch.found
        else:
            with pytest.warns(
                NonFiniteWarning, match=r"step 0: .* out of stage 1 in microbatch 3; the loss of microbatch 3"
            ):
                watch.end_step(step)
    watch.settle()
    assert len(arrived) == 2
    assert list(watch.found) == [
        NonFinite(step=0, microbatch=3, stage=1, loss=False, first=True),
        NonFinite(step=0, microbatch=3, stage=2, loss=True, first=False),
    ]
