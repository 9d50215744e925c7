"""Orders of every kind on torch's runtime: the gradients of the plain model, on four processes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed")

from tests.strategies import random_order  # noqa: E402
from zbsolve.catalog import baseline  # noqa: E402
from zbsolve.errors import InvalidInput, RunError  # noqa: E402
from zbsolve.executor.gradients import largest_relative_error, plain_gradients, split_batch  # noqa: E402
from zbsolve.executor.target import call_target  # noqa: E402
from zbsolve.executor.torch_pipelining import run_torch_csv  # noqa: E402
from zbsolve.interop.torch import write_torch_csv  # noqa: E402
from zbsolve.ops import Kind, Op  # noqa: E402
from zbsolve.placement import Placement  # noqa: E402
from zbsolve.problem import Problem  # noqa: E402
from zbsolve.profile import Profile  # noqa: E402
from zbsolve.simulate import simulate  # noqa: E402
from zbsolve.timetable import Order  # noqa: E402

MODELS = Path(__file__).with_name("models.py")
MICROBATCHES = 5


def problem_on(placement, backward_ns=-1):
    profile = Profile.uniform(
        placement.stages, forward_ns=10, backward_input_ns=10, backward_weight_ns=10, backward_ns=backward_ns
    )
    return Problem(profile=profile, placement=placement, microbatches=MICROBATCHES)


def numbered_by_the_last_forward(problem, order):
    """Rename the microbatches so that the last stage runs its forwards in order, as torch takes for granted."""
    last = problem.placement.stages - 1
    forwards = [op.microbatch for row in order.rows for op in row if op.kind is Kind.FORWARD and op.stage == last]
    new = {old: j for j, old in enumerate(forwards)}
    return Order(tuple(tuple(Op(op.kind, op.stage, new[op.microbatch]) for op in row) for row in order.rows))


def emitted(folder, placement, orders):
    problem = problem_on(placement)
    paths = []
    for name, order in orders(problem):
        path = folder / f"{placement.name}-{name}.csv"
        write_torch_csv(simulate(problem, order), path)
        paths.append(path)
    return paths


def published(*names):
    return lambda problem: [(name, baseline(name, problem)) for name in names]


def at_random(*seeds, fused=0.3):
    return lambda problem: [
        (f"random-{seed}", numbered_by_the_last_forward(problem, random_order(problem, seed, fused=fused)))
        for seed in seeds
    ]


def assert_same_gradients(paths, stages):
    arguments = {"stages": stages, "microbatches": MICROBATCHES}
    target = f"{MODELS}:tiny"
    runs = run_torch_csv(
        paths,
        target,
        microbatches=MICROBATCHES,
        arguments=arguments,
        blocks=1,
        steps_a_block=2,
        warmup=1,
        timeout_s=240,
    )
    reference, loss = plain_gradients(*call_target(target, arguments), MICROBATCHES)
    assert {stage for stage, _ in reference} == set(range(stages))
    assert [run.path for run in runs] == paths
    for run in runs:
        assert largest_relative_error(run.gradients, reference) <= 1e-10, run.path
        assert math.isclose(run.loss, loss, rel_tol=1e-12)
        assert all(ns > 0 for ns in run.step_ns)


def test_one_stage_a_rank(tmp_path):
    line = Placement.linear(4)
    paths = emitted(tmp_path, line, published("1f1b", "zb-h1")) + emitted(tmp_path, line, at_random(1, 2))
    paths += emitted(tmp_path, line, at_random(3, fused=0))
    assert_same_gradients(paths, stages=4)


def test_two_stages_a_rank_on_every_placement(tmp_path):
    paths = emitted(tmp_path, Placement.v(4), at_random(4, 5))
    paths += emitted(tmp_path, Placement.looped(4, 2), at_random(6))
    # neighbours on one rank, and one rank with more stages than the others
    paths += emitted(tmp_path, Placement.custom([0, 0, 1, 2, 2, 3, 1, 2]), at_random(7))
    assert_same_gradients(paths, stages=8)


def test_a_failing_stage_is_reported_with_its_words(tmp_path):
    path = tmp_path / "two.csv"
    last = [f"{s}F{j}" for j in range(4) for s in (1, 2)] + [f"{s}B{j}" for j in range(4) for s in (2, 1)]
    path.write_text(",".join(f"0{k}{j}" for k in "FB" for j in range(4)) + "\n" + ",".join(last) + "\n")
    with pytest.raises(RunError, match=r"rank 1 failed: in torch's action 1F\d: ValueError: the weights fell over"):
        run_torch_csv([path], f"{MODELS}:falling", microbatches=4, timeout_s=240)


@pytest.mark.parametrize(
    ("rows", "function", "message"),
    [
        # each rank waits for what the other does later
        ("0F0,0B0,0F1,0B1\n1F1,2F1,2B1,1B1,1F0,2F0,2B0,1B0\n", "falling", "can't schedule sends/recvs"),
        ("0F0,0F1,1F0,1F1,2F1,2F0,2B0,2B1,1B0,1B1,0B0,0B1\n", "falling", "out of microbatch order"),
        ("0F0,0F1,1F0,1F1,2F0,2F1,2B0,2B1,1B0,1B1,0B0,0B1\n", "shared", "stages 0 and 2 share a parameter"),
    ],
)
def test_what_torch_would_get_wrong_or_never_finish_is_refused(tmp_path, rows, function, message):
    path = tmp_path / "odd.csv"
    path.write_text(rows)
    with pytest.raises(RunError, match=message):
        run_torch_csv([path], f"{MODELS}:{function}", microbatches=2, timeout_s=240)


def test_what_cannot_be_run_is_refused_before_any_process_starts(tmp_path):
    two, three = tmp_path / "two.csv", tmp_path / "three.csv"
    two.write_text("0F0,0B0\n1F0,1B0\n")
    three.write_text("0F0,0B0\n1F0,1B0\n2F0,2B0\n")
    for paths, options, message in (
        ([], {}, "no schedule"),
        ([two], {"microbatches": 0}, "microbatches"),
        ([two, three], {}, "different numbers of ranks"),
        ([tmp_path / "none.csv"], {}, "cannot read the schedule"),
        ([tmp_path], {}, "cannot read the schedule"),
    ):
        with pytest.raises(InvalidInput, match=message):
            run_torch_csv(paths, f"{MODELS}:tiny", **{"microbatches": 1, **options})


def test_errors_of_gradients_are_found():
    one = {(0, "w"): torch.tensor([1.0, 2.0])}
    assert largest_relative_error(one, one) == 0
    assert largest_relative_error({(0, "w"): torch.tensor([1.0, 2.5])}, one) == 0.25
    assert largest_relative_error({}, one) == math.inf
    assert not largest_relative_error({(0, "w"): torch.tensor([1.0, math.nan])}, one) <= 1
    zero = {(0, "w"): torch.zeros(2)}
    assert largest_relative_error(zero, zero) == 0
    assert largest_relative_error(one, zero) == math.inf


def test_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(InvalidInput, match="a batch of 5 cannot be cut into 2"):
        split_batch((torch.ones(5, 1), torch.ones(5)), 2)
    with pytest.raises(InvalidInput, match="a batch of 0"):
        split_batch((torch.tensor(1.0), torch.ones(2)), 2)
