"""What goes wrong is told, stops everything, and leaves nothing behind: one process."""

from __future__ import annotations

import math
import re
import threading
import time

import pytest
import torch
from torch import nn

from tests.executor import pipes
from zbsolve.errors import InvalidInput, OrderError, RunError
from zbsolve.executor.runtime import Pipeline
from zbsolve.executor.transports import InProcess
from zbsolve.ops import Op
from zbsolve.placement import Placement
from zbsolve.timetable import TimedOp, Timetable


class Wrapped(nn.Module):
    """A stage that does something at one of its calls."""

    def __init__(self, inner, at, what):
        super().__init__()
        self.inner, self.at, self.what, self.calls = inner, at, what, 0

    def forward(self, x):
        self.calls += 1
        return self.what(self.inner(x)) if self.calls == self.at else self.inner(x)


def fails(_):
    raise ValueError("no such luck")


def pipeline(stage, at, what, **options):
    stages = pipes.model(3)
    stages[stage] = Wrapped(stages[stage], at, what)
    return Pipeline(pipes.timetable(Placement.linear(3), 4), stages, pipes.square_loss, **options), stages


@pytest.fixture
def ours():
    """The threads of this test's pipelines; those of other tests may wait to be collected."""
    others = set(threading.enumerate())
    return lambda: [t for t in threading.enumerate() if t.name.startswith("zbsolve") and t not in others]


def test_a_stage_that_raises_is_named_and_everyone_stops(ours):
    pipe, _ = pipeline(1, 3, fails)
    with pytest.raises(RunError) as caught:
        pipe.step(*pipes.batch(4))
    assert str(caught.value).startswith("rank 1 failed: F2 of stage 1: ValueError: no such luck")
    # rank 2 may still have been at work when it heard of it
    told = r"rank 2 (waits for F2 of stage 1 from rank 1, which|is in \w+ of stage 2; rank 1) failed: F2 of stage 1"
    assert re.search(told, str(caught.value))
    assert isinstance(caught.value.__cause__, ValueError)
    assert not ours()


def test_a_pipeline_goes_on_after_a_failure():
    pipe, stages = pipeline(1, 3, fails)
    with pytest.raises(RunError):
        pipe.step(*pipes.batch(4))
    pipe.zero_grad()
    from zbsolve.executor.gradients import plain_gradients

    data = pipes.batch(4, seed=5)
    pipe.step(*data)
    reference, _ = plain_gradients(pipes.clones(stages), data, pipes.square_loss, 4)
    for key, (gradient,) in pipes.gradients(pipe).items():
        assert torch.equal(gradient, reference[key])


def test_a_failing_backward_is_named(ours):
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            raise ArithmeticError("backwards")

    pipe, _ = pipeline(1, 1, Bad.apply)
    with pytest.raises(RunError, match=r"rank 1 failed: BW?0 of stage 1: ArithmeticError: backwards"):
        pipe.step(*pipes.batch(4))
    assert not ours()


def test_a_stalled_rank_stops_everyone(ours):
    release = threading.Event()

    def stalls(x):
        release.wait(30)
        return x

    pipe, _ = pipeline(1, 2, stalls, stall_s=0.3)
    start = time.monotonic()
    with pytest.raises(RunError, match=r"rank 1 failed: F1 of stage 1 stalls: it has been running for") as caught:
        pipe.step(*pipes.batch(4))
    assert time.monotonic() - start < 10
    assert "rank 2 waits for F1 of stage 1 from rank 1, which failed" in str(caught.value)
    with pytest.raises(RunError, match="zbsolve rank 1 is still stuck"):
        pipe.step(*pipes.batch(4))
    release.set()
    for thread in ours():
        thread.join(10)
    pipe.zero_grad()
    assert pipe.step(*pipes.batch(4)).isfinite()


def test_waiting_is_no_stalling():
    def slow(x):
        time.sleep(0.5)
        return x

    pipe, _ = pipeline(0, 1, slow, stall_s=10)
    assert pipe.step(*pipes.batch(4)).isfinite()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda x: torch.cat([x, x]), r"stage 1 gives tensor 0 of microbatch 2 as float32 \(4, 4\), wants a gradient; "
         r"expected float32 \(2, 4\), wants a gradient"),
        (lambda x: x.double(), r"stage 1 gives tensor 0 of microbatch 2 as float64 .* expected float32"),
        (lambda x: x.detach(), r"as float32 \(2, 4\); expected float32 \(2, 4\), wants a gradient"),
        (lambda x: (x, x), r"stage 1 gives 2 tensors for microbatch 2, expected 1: float32 \(2, 4\)"),
        (lambda x: "text", r"stage 1 returned a str"),
    ],
)  # fmt: skip
def test_tensors_that_change_between_microbatches_are_refused_on_both_sides(what, message):
    pipe, _ = pipeline(1, 3, what)
    with pytest.raises(RunError, match=message) as caught:
        pipe.step(*pipes.batch(4))
    receiver = [line for line in str(caught.value).splitlines() if line.strip().startswith("rank 2")]
    assert "failed" in receiver[0]
    assert "stage 1" in receiver[0]


def test_stages_that_do_not_fit_together_say_what_came():
    stages = pipes.model(2)
    stages[1] = nn.Linear(7, 4)
    pipe = Pipeline(pipes.timetable(Placement.linear(2), 2), stages, pipes.square_loss)
    with pytest.raises(RunError, match=r"rank 1 failed: F0 of stage 1: .*\(it was called with float32 \(2, 4\)"):
        pipe.step(*pipes.batch(2))


def test_a_nan_loss_ends_the_step_in_good_order():
    stages = pipes.model(2)
    pipe = Pipeline(
        pipes.timetable(Placement.linear(2), 2),
        stages,
        lambda o, t: pipes.square_loss(o, t) * float("nan"),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        check_overflow=True,
    )
    before = [p.detach().clone() for stage in stages for p in stage.parameters()]
    assert pipe.step(*pipes.batch(2)).isnan()
    pipe.flush()
    assert pipe.validations[-1].overflow
    after = [p for stage in stages for p in stage.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("synchronous", [False, True])
def test_a_nan_in_one_microbatch_voids_its_step_everywhere_and_no_other(synchronous):
    clean, spoilt = [pipes.batch(4, seed=seed) for seed in (1, 2)], pipes.batch(4, seed=3)
    spoilt[1][5, 0] = float("nan")

    def run(batches):
        stages = pipes.model(3)
        pipe = Pipeline(
            pipes.timetable(Placement.linear(3), 4),
            stages,
            pipes.square_loss,
            optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
            check_overflow=True,
            synchronous=synchronous,
        )
        losses = []
        for data in batches:
            pipe.zero_grad()
            losses.append(float(pipe.step(*data)))
        pipe.flush()
        return losses, [p.detach() for stage in stages for p in stage.parameters()]

    losses, weights = run([clean[0], spoilt, clean[1]])
    expected, untouched = run(clean)
    assert math.isnan(losses.pop(1))
    assert losses == expected
    assert all(torch.equal(a, b) for a, b in zip(weights, untouched, strict=True))


def test_a_loss_that_is_no_number_is_refused():
    pipe = Pipeline(pipes.timetable(Placement.linear(2), 2), pipes.model(2), lambda o, t: o)
    with pytest.raises(RunError, match=r"the loss function must return one number, got a tensor of shape \(2, 4\)"):
        pipe.step(*pipes.batch(2))


def test_an_interrupt_stops_everyone(monkeypatch, ours):
    pipe, _ = pipeline(0, 1, lambda x: x)
    monkeypatch.setattr(pipe._crew, "_watch", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        pipe.step(*pipes.batch(4))
    assert not ours()
    monkeypatch.undo()
    pipe.zero_grad()
    assert pipe.step(*pipes.batch(4)).isfinite()


def test_batches_that_do_not_fit_are_refused():
    pipe = Pipeline(pipes.timetable(Placement.linear(2), 4), pipes.model(2), pipes.square_loss)
    inputs, target = pipes.batch(4)
    for arguments, message in (
        ((inputs[:6], target), "the batch has 6 rows, which cannot be cut into 4 equal microbatches"),
        (((inputs, "x"), target), "tensor 1 of the batch is a str"),
        ((None, target), "rank 0 holds stage 0, so it needs the batch"),
        ((inputs, None), "rank 1 holds the last stage, so it needs the target"),
        (((), target), "the batch holds no tensor"),
    ):
        with pytest.raises(RunError, match=message):
            pipe.step(*arguments)
    assert pipe.step(inputs, target).isfinite()


def test_stages_that_do_not_fit_the_timetable_are_refused():
    table = pipes.timetable(Placement.linear(3), 2)
    for stages, message in (
        (pipes.model(2), "the timetable has 3 stages, but 2 modules were given"),
        ([*pipes.model(2), "x"], "stage 2 is a str; give a torch.nn.Module"),
        (dict(enumerate(pipes.model(2))), r"the module of stage 2 is missing; this process was given \[0, 1\]"),
    ):
        with pytest.raises(InvalidInput, match=message):
            Pipeline(table, stages, pipes.square_loss)
    shared = pipes.model(3)
    shared[2][0].weight = shared[0][0].weight
    with pytest.raises(InvalidInput, match=r"stage 0 \(0.weight\) and stage 2 \(0.weight\) share a parameter"):
        Pipeline(table, shared, pipes.square_loss)
    with pytest.raises(InvalidInput, match="is for 3 ranks, but the transport connects 2"):
        Pipeline(table, pipes.model(3), pipes.square_loss, transport=InProcess(2))
    with pytest.raises(InvalidInput, match="loss_reduction is 'mean' or 'sum'"):
        Pipeline(table, pipes.model(3), pipes.square_loss, loss_reduction="median")
    with pytest.raises(InvalidInput, match="loss_fn is a int"):
        Pipeline(table, pipes.model(3), 3)
    with pytest.raises(InvalidInput, match="stall_s must be above 0"):
        Pipeline(table, pipes.model(3), pipes.square_loss, stall_s=0)


def test_a_timetable_that_cannot_run_is_refused_before_anything_runs():
    table = pipes.timetable(Placement.linear(2), 1)
    rows = [list(row) for row in table.rows]
    rows[1][0] = TimedOp(Op(rows[1][0].op.kind, 1, 0), 0, 1)
    with pytest.raises(OrderError, match="is planned to start at 0 ns"):
        Pipeline(Timetable(problem=table.problem, rows=tuple(rows)), pipes.model(2), pipes.square_loss)


def test_a_trace_needs_a_step():
    pipe = Pipeline(pipes.timetable(Placement.linear(2), 2), pipes.model(2), pipes.square_loss)
    with pytest.raises(RunError, match="no step has been measured yet"):
        pipe.trace()
