"""The benchmarks measure what they say; how fast anything is, is for them to tell."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra torch is not installed")

import torch
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from benchmarks import cuda
from benchmarks.executor import overhead, plans, sleeping
from zbsolve.metrics import metrics

ROOT = Path(__file__).parents[1]


@pytest.fixture
def sleeps(monkeypatch):
    """What is slept, in units of an operation."""
    slept = []
    monkeypatch.setattr(sleeping, "_sleep", lambda operations=1: slept.append(operations))
    return slept


@pytest.mark.parametrize(
    ("name", "makespan_ms"), [("gpipe", 660), ("1f1b", 660), ("zb-h1", 540), ("interleaved", 1140), ("zb-v", 1020)]
)
def test_predictions_are_the_published_formulas(name, makespan_ms):
    (plan,) = (plan for plan in plans.PLANS if plan.name == name)
    assert metrics(plan.timetable).makespan_ns == makespan_ms * 1_000_000


def test_without_a_barrier_the_last_plan_has_no_bubble():
    figures = metrics(plans.BARRIER.timetable)
    assert (figures.period_ns, figures.makespan_ns) == (480_000_000, 540_000_000)


def test_on_torchs_split_each_half_sleeps_once(sleeps):
    module = sleeping.Sleeping()
    x = torch.ones(1, sleeping.WIDTH, requires_grad=True)
    y = [module(x)]
    assert sleeps == [1]
    groups = stage_backward_input([y.pop()], [torch.ones(1, sleeping.WIDTH)], [x], module.parameters())[1]
    assert sleeps == [1, 1]
    stage_backward_weight(module.parameters(), groups)
    assert sleeps == [1, 1, 1]
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_on_our_split_too(sleeps):
    stage = sleeping.SleepingSplit()
    x = torch.ones(1, sleeping.WIDTH, requires_grad=True)
    stage.forward(0, x)
    stage.backward_input(0, [torch.ones(1, sleeping.WIDTH)])
    assert sleeps == [1, 1]
    stage.backward_weight(0)
    stage.forward(1, x, split=False)
    stage.backward(1, [torch.ones(1, sleeping.WIDTH)])
    assert sleeps == [1, 1, 1, 1, 2]
    assert all(parameter.grad is not None for parameter in stage.module.parameters())


def test_what_the_system_oversleeps_is_taken_off_the_next_sleep(monkeypatch):
    now, asked, late = [0.0], [], [0.0003, 0.5, 0.0]

    def sleep(seconds):
        asked.append(seconds)
        now[0] += seconds + late.pop(0)

    monkeypatch.setattr(sleeping.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(sleeping.time, "sleep", sleep)
    sleeping.set_sleep(0.02)
    try:
        for _ in range(3):
            sleeping._sleep()
    finally:
        sleeping.set_sleep(plans.OPERATION_MS / 1000)
    assert asked == pytest.approx([0.02, 0.0197, 0.019])


def test_the_costs_of_an_action_are_those_of_a_whole_step():
    table = overhead._timetable()
    assert sum(len(op.parts) for op in table.order.rows[0]) >= overhead.ACTIONS
    assert len(table.rows[0]) == overhead.ACTIONS


def test_the_cuda_script_rehearses_and_says_where_there_is_no_device():
    if not torch.cuda.is_available():
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.cuda"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert done.stdout.startswith("no CUDA device")
    cost = cuda.split_cost(cuda.TINY, torch.device("cpu"))
    assert cost["bitwise_as_autograd"]
    json.dumps(cost)
    done = cuda.postvalidation(cuda.TINY, torch.device("cpu"))
    assert done["bitwise"]
    assert done["undone"] > 0
