"""The runtime in one process: exact gradients on every placement, and what passes between stages."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.executor import pipes
from tests.strategies import placements
from zbsolve.catalog import baseline, schedules
from zbsolve.check import check
from zbsolve.errors import InvalidInput, ScheduleConditionError
from zbsolve.executor.gradients import plain_gradients
from zbsolve.executor.optimizer import LossScale
from zbsolve.executor.runtime import Pipeline
from zbsolve.ops import Kind
from zbsolve.placement import Placement
from zbsolve.simulate import simulate

pytestmark = pytest.mark.usefixtures("one_thread")


def assert_equal_to_plain(pipe, stages, data, microbatches, *, bitwise):
    reference, loss = plain_gradients(pipes.clones(stages), data, pipes.square_loss, microbatches)
    pipe.zero_grad()
    found = pipe.step(*data)
    assert float(found) == pytest.approx(loss, rel=1e-6)
    for key, copies in pipes.gradients(pipe).items():
        for gradient in copies:
            if bitwise:
                assert torch.equal(gradient, reference[key]), key
            else:
                torch.testing.assert_close(gradient, reference[key])
        assert all(torch.equal(gradient, copies[0]) for gradient in copies)


@settings(max_examples=200, deadline=None)
@given(placements(), st.integers(1, 5), st.integers(0, 2**32))
def test_gradients_are_bitwise_those_of_one_process(placement, microbatches, seed):
    stages, data = pipes.model(placement.stages, seed=seed % 7), pipes.batch(microbatches, seed=seed % 11)
    pipe = Pipeline(pipes.timetable(placement, microbatches, seed), stages, pipes.square_loss)
    # two routes add up in another order
    assert_equal_to_plain(pipe, stages, data, microbatches, bitwise=len(placement.routes) == 1)


@settings(max_examples=30, deadline=None)
@given(placements(), st.integers(1, 5), st.integers(0, 2**32))
def test_microbatches_in_any_order_are_right_within_rounding(placement, microbatches, seed):
    stages, data = pipes.model(placement.stages), pipes.batch(microbatches)
    table = pipes.timetable(placement, microbatches, seed, keeps_order=False)
    assert_equal_to_plain(Pipeline(table, stages, pipes.square_loss), stages, data, microbatches, bitwise=False)


def keeps_order(order):
    """Whether every stage adds up its weight gradients microbatch by microbatch."""
    added: dict[int, list[int]] = {}
    for row in order.rows:
        for op in row:
            if op.kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT):
                added.setdefault(op.stage, []).append(op.microbatch)
    return all(numbers == sorted(numbers) for numbers in added.values())


# what recomputes needs other costs, and is in test_recompute.py; slices need other batches: test_carrying.py
TRAINING = [
    schedule.name
    for schedule in schedules()
    if schedule.name not in ("forward-only", "gpipe-recompute") and schedule.family != "sequence-slices"
]


@pytest.mark.parametrize("name", TRAINING)
def test_every_published_schedule_is_right_and_bitwise_where_it_keeps_the_order_of_microbatches(name):
    ran = 0
    for placement in (Placement.linear(3), Placement.looped(2, 2), Placement.v(2), Placement.bidirectional(2)):
        asked = pipes.problem(placement, 4)
        try:
            order = baseline(name, asked)
        except ScheduleConditionError:
            continue
        stages, data = pipes.model(placement.stages), pipes.batch(4)
        pipe = Pipeline(simulate(asked, order), stages, pipes.square_loss)
        bitwise = len(placement.routes) == 1 and keeps_order(order)
        assert_equal_to_plain(pipe, stages, data, 4, bitwise=bitwise)
        ran += 1
    assert ran


@settings(max_examples=30, deadline=None)
@given(placements(), st.integers(1, 4), st.integers(0, 2**32))
def test_evaluation_runs_on_every_placement(placement, microbatches, seed):
    stages, (inputs, _) = pipes.model(placement.stages), pipes.batch(microbatches)
    pipe = Pipeline(pipes.timetable(placement, microbatches, seed, keeps_order=False), stages, pipes.square_loss)
    expected = inputs
    with torch.no_grad():
        for stage in stages:
            expected = stage(expected)
    torch.testing.assert_close(pipe.eval(inputs), expected)
    assert all(p.grad is None for stage in stages for p in stage.parameters())


@pytest.mark.parametrize("placement", [Placement.linear(3), Placement.v(2), Placement.bidirectional(2)])
def test_a_timetable_of_forwards_only_evaluates_and_refuses_to_train(placement):
    stages, (inputs, target) = pipes.model(placement.stages), pipes.batch(3)
    asked = replace(pipes.problem(placement, 3), forward_only=True)
    pipe = Pipeline(simulate(asked, baseline("forward-only", asked)), stages, pipes.square_loss)
    expected = inputs
    with torch.no_grad():
        for stage in stages:
            expected = stage(expected)
    torch.testing.assert_close(pipe.eval(inputs), expected)
    with pytest.raises(InvalidInput, match="can evaluate but not train"):
        pipe.step(inputs, target)


@pytest.mark.parametrize("placement", [Placement.linear(3), Placement.v(2), Placement.bidirectional(2)])
def test_reductions_and_optimizers_of_the_plan_are_the_executors_own(placement):
    asked = pipes.problem(placement, 4)
    stages = tuple(replace(cost, grad_reduce_ns=500, optimizer_ns=200) for cost in asked.profile.stages)
    asked = replace(asked, profile=replace(asked.profile, stages=stages))
    planned = simulate(asked, baseline("gpipe", asked))
    stages, data = pipes.model(placement.stages), pipes.batch(4)
    pipe = Pipeline(planned, stages, pipes.square_loss)
    assert_equal_to_plain(pipe, stages, data, 4, bitwise=False)
    trace = pipe.trace()
    assert all(op.microbatch is not None for row in trace.order.rows for op in row)
    assert len(trace.beside(planned)) == sum(map(len, trace.order.rows))
    assert trace.profile().stages[0].optimizer_ns == 200


def test_evaluation_uses_evaluation_mode_and_puts_the_mode_back():
    stages = [nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), nn.BatchNorm1d(4)]
    stages[1].eval()
    pipe = Pipeline(pipes.timetable(Placement.linear(2), 2), stages, pipes.square_loss)
    inputs, _ = pipes.batch(2)
    torch.testing.assert_close(pipe.eval(inputs), stages[1](stages[0][0](inputs)))
    assert stages[0].training
    assert stages[0][1].training
    assert not stages[1].training


def test_a_sum_is_a_sum_and_steps_accumulate():
    stages, table = pipes.model(2), pipes.timetable(Placement.linear(2), 2)
    data, more = pipes.batch(2, seed=1), pipes.batch(2, seed=2)
    both = [torch.cat(pair) for pair in zip(data, more, strict=True)]
    reference, mean = plain_gradients(pipes.clones(stages), tuple(both), pipes.square_loss, 4)
    pipe = Pipeline(table, stages, pipes.square_loss, loss_reduction="sum")
    losses = [float(loss) for loss in pipe.steps([data, more])]
    assert sum(losses) == pytest.approx(4 * mean, rel=1e-5)
    for key, (gradient,) in pipes.gradients(pipe).items():
        torch.testing.assert_close(gradient, 4 * reference[key])
    pipe = Pipeline(table, pipes.clones(stages), pipes.square_loss, accumulation_steps=2)
    pipe.zero_grad()
    pipe.steps([data, more])
    for key, (gradient,) in pipes.gradients(pipe).items():
        assert torch.equal(gradient, reference[key])


def test_replicas_accumulate_over_steps_and_stay_equal():
    stages, table = pipes.model(2), pipes.timetable(Placement.bidirectional(2), 2)
    data, more = pipes.batch(2, seed=1), pipes.batch(2, seed=2)
    both = [torch.cat(pair) for pair in zip(data, more, strict=True)]
    reference, _ = plain_gradients(pipes.clones(stages), tuple(both), pipes.square_loss, 4)
    pipe = Pipeline(table, stages, pipes.square_loss, accumulation_steps=2)
    pipe.steps([data, more])
    for key, (first, second) in pipes.gradients(pipe).items():
        assert torch.equal(first, second)
        torch.testing.assert_close(first, reference[key])


class Several(nn.Module):
    """Passes a float that wants a gradient, an integer and a float that wants none."""

    def __init__(self, *, first: bool = False, last: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.first, self.last = first, last

    def forward(self, x, mask=None, scale=None):
        if self.first:
            mask, scale = (x > 0).to(torch.int8), x.abs().mean(-1, keepdim=True)
        y = torch.tanh(self.linear(x * mask)) * scale + x
        return y if self.last else (y, mask, scale)


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x):
        return self.linear(x)


def test_tensors_of_any_kind_pass_between_stages():
    torch.manual_seed(0)
    stages = [Several(first=True), Several(), Several(), Several(last=True)]
    data = pipes.batch(4)
    for placement in (Placement.linear(4), Placement.v(2), Placement.custom([0, 0, 1, 0])):
        pipe = Pipeline(pipes.timetable(placement, 4, seed=3), stages, pipes.square_loss)
        assert_equal_to_plain(pipe, stages, data, 4, bitwise=True)


def test_frozen_stages_in_front_need_no_gradient():
    torch.manual_seed(0)
    stages = [Frozen(), Frozen(), nn.Linear(4, 4)]
    pipe = Pipeline(pipes.timetable(Placement.linear(3), 3), stages, pipes.square_loss)
    pipe.step(*pipes.batch(3))
    assert stages[0].linear.weight.grad is None
    assert stages[2].weight.grad is not None


def test_stages_of_one_rank_may_share_parameters():
    stages = pipes.model(2)
    stages[1][0].weight = stages[0][0].weight
    data = pipes.batch(3)
    pipe = Pipeline(pipes.timetable(Placement.custom([0, 0]), 3), stages, pipes.square_loss)
    reference, _ = plain_gradients(pipes.clones(stages), data, pipes.square_loss, 3)
    pipe.step(*data)
    assert torch.equal(stages[0][0].weight.grad, reference[0, "0.weight"])


def test_autocast_of_the_caller_reaches_the_ranks():
    seen = []

    class Sees(nn.Linear):
        def forward(self, x):
            result = super().forward(x)
            seen.append(result.dtype)
            return result

    pipe = Pipeline(pipes.timetable(Placement.linear(2), 2), [Sees(4, 4), Sees(4, 4)], pipes.square_loss)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pipe.step(*pipes.batch(2))
    assert set(seen) == {torch.bfloat16}
    seen.clear()
    pipe = Pipeline(pipes.timetable(Placement.linear(2), 2), [Sees(4, 4), Sees(4, 4)], pipes.square_loss)
    pipe.step(*pipes.batch(2))
    assert set(seen) == {torch.float32}


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=0.02)


@settings(max_examples=40, deadline=None)
@given(placements(most_ranks=3), st.integers(1, 4), st.integers(0, 2**32), st.integers(0, 2**8 - 1))
def test_post_validation_gives_bitwise_the_weights_of_the_synchronous_rule(placement, microbatches, seed, bad):
    """Whatever steps are clipped or overflow: also where forwards have to run again."""
    table = pipes.timetable(placement, microbatches, seed, keeps_order=False)
    batches = []
    for step in range(5):
        inputs, target = pipes.batch(microbatches, seed=step)
        factor = (1.0, 1.0, 1000.0, float("inf"))[bad >> (2 * step) & 3] if step < 4 else 1.0
        batches.append((inputs, target * factor))
    results = []
    for synchronous in (True, False):
        stages = pipes.model(placement.stages)
        pipe = Pipeline(
            table,
            stages,
            pipes.square_loss,
            optimizer=adam,
            max_grad_norm=1.0,
            check_overflow=True,
            synchronous=synchronous,
        )
        losses = pipe.steps(batches)
        state = pipe.state_dict()
        weights = [t for rank in state["stages"].values() for stage in rank.values() for t in stage.values()]
        results.append((torch.stack(losses), weights))
    assert torch.equal(results[0][0].nan_to_num(-1.0), results[1][0].nan_to_num(-1.0))
    assert all(torch.equal(a, b) for a, b in zip(results[0][1], results[1][1], strict=True))


def test_forwards_run_again_only_where_a_step_was_wrong():
    ran = []

    class Counts(nn.Linear):
        def forward(self, x):
            ran.append(1)
            return super().forward(x)

    placement, microbatches = Placement.linear(3), 6
    asked = pipes.problem(placement, microbatches)
    table = simulate(asked, baseline("zb-h2", asked))
    stages = [Counts(4, 4), Counts(4, 4), Counts(4, 4)]
    pipe = Pipeline(table, stages, pipes.square_loss, optimizer=adam, max_grad_norm=5.0)
    good, large = pipes.batch(microbatches), [t * 1000 for t in pipes.batch(microbatches)]
    pipe.steps([good, large, good])
    early = sum(rank.training.ops[:3].count for rank in []) + sum(_early(rank) for rank in pipe.ranks)
    assert [validation.rerun for validation in pipe.validations] == [False, True]
    assert early > 0
    assert len(ran) == 3 * 3 * microbatches + early


def _early(rank) -> int:
    return sum(action.message < 0 for action in rank.training.actions[: rank.training.cut])


def test_a_loss_scale_leaves_the_gradients_as_they_are():
    table = pipes.timetable(Placement.linear(2), 2)
    weights = []
    for scale in (None, LossScale(scale=2.0**10, growth_interval=None)):
        stages = pipes.model(2)
        pipe = Pipeline(
            table, stages, pipes.square_loss, optimizer=adam, check_overflow=True, loss_scale=scale, synchronous=True
        )
        pipe.steps([pipes.batch(2)] * 3)
        weights.append([p.detach().clone() for stage in stages for p in stage.parameters()])
    for a, b in zip(*weights, strict=True):
        torch.testing.assert_close(a, b)


def test_training_goes_on_bitwise_from_a_saved_state():
    table = pipes.timetable(Placement.v(2), 3)
    batches = [pipes.batch(3, seed=k) for k in range(4)]
    options = {"optimizer": adam, "max_grad_norm": 0.5}
    whole = Pipeline(table, pipes.model(4), pipes.square_loss, **options)
    whole.steps(batches)
    half = Pipeline(table, pipes.model(4), pipes.square_loss, **options)
    half.steps(batches[:2])
    saved = pipes.clones([half.state_dict()])[0]
    resumed = Pipeline(table, pipes.model(4, seed=9), pipes.square_loss, **options)
    resumed.load_state_dict(saved)
    resumed.steps(batches[2:])
    first, second = whole.state_dict(), resumed.state_dict()
    assert first["steps"] == second["steps"] == 4
    for rank, stages in first["stages"].items():
        for stage, tensors in stages.items():
            for name, tensor in tensors.items():
                assert torch.equal(tensor, second["stages"][rank][stage][name])


def test_a_state_of_other_stages_is_refused():
    one = Pipeline(pipes.timetable(Placement.linear(2), 2), pipes.model(2), pipes.square_loss)
    two = Pipeline(pipes.timetable(Placement.v(1), 2), pipes.model(2), pipes.square_loss)
    with pytest.raises(InvalidInput, match=r"holds stages \[0\] for rank 0, not \[0, 1\]"):
        two.load_state_dict(one.state_dict())
    three = Pipeline(pipes.timetable(Placement.linear(2), 2), pipes.model(2), pipes.square_loss, optimizer=adam)
    with pytest.raises(InvalidInput, match="the pipeline has an optimizer for rank 0 and the state has none"):
        three.load_state_dict(one.state_dict())


@settings(max_examples=25, deadline=None)
@given(placements(), st.integers(1, 4), st.integers(0, 2**32))
def test_a_trace_has_the_rows_of_the_timetable_in_an_order_that_can_be(placement, microbatches, seed):
    table = pipes.timetable(placement, microbatches, seed)
    pipe = Pipeline(table, pipes.model(placement.stages), pipes.square_loss)
    pipe.steps([pipes.batch(microbatches)] * 2)
    trace = pipe.trace()
    assert trace.order == table.order
    assert len(trace.steps) == 2
    check(table.problem, trace)
    starts = {timed.op: timed.start_ns for row in trace.steps[-1] for timed in row}
    ends = {timed.op: timed.end_ns for row in trace.steps[-1] for timed in row}
    for transfer in trace.transfers[-1]:
        assert ends[transfer.tail] <= transfer.sent_ns <= transfer.taken_ns <= starts[transfer.head]
        assert transfer.waited_ns <= transfer.taken_ns
    assert all(stage.forward_ns > 0 for stage in trace.profile().stages)
    assert [p.planned.op for p in trace.beside(table)] == [op for row in table.order.rows for op in row]


def test_profiler_ranges_carry_the_names_of_operations():
    from torch.profiler import ProfilerActivity, profile

    pipe = Pipeline(pipes.timetable(Placement.custom([0, 0]), 2), pipes.model(2), pipes.square_loss)
    pipe.step(*pipes.batch(2))
    options = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=options) as profiler:
        pipe.step(*pipes.batch(2))
    names = {event.key for event in profiler.key_averages()}
    assert {"F0 of stage 0", "F1 of stage 1"} <= names
