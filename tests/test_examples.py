"""The examples do what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra torch is not installed")

from zbsolve.executor.measure import load_target
from zbsolve.interop.torch import write_torch_csv
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Profile
from zbsolve.simulate import simulate
from zbsolve.timetable import Order

ROOT = Path(__file__).parents[1]


def test_the_small_transformer_is_a_target(monkeypatch):
    monkeypatch.chdir(ROOT)
    stages, (inputs, target), loss_fn = load_target("examples/small_transformer.py:stages")
    output = inputs
    for stage in stages:
        output = stage(output)
    assert 5 < loss_fn(output, target).item() < 6.5


def test_training_by_a_csv_under_torchrun_lowers_the_loss(tmp_path):
    """All four stages on one rank, so that one process does."""
    profile = Profile.uniform(4, forward_ns=1, backward_input_ns=1, backward_weight_ns=1)
    problem = Problem(profile=profile, placement=Placement.custom([0, 0, 0, 0]), microbatches=2)
    row = [Op(Kind.FORWARD, s, j) for j in range(2) for s in range(4)]
    for j in range(2):
        row += [Op(Kind.BACKWARD_INPUT, s, j) for s in (3, 2, 1, 0)] + [
            Op(Kind.BACKWARD_WEIGHT, s, j) for s in range(4)
        ]
    write_torch_csv(simulate(problem, Order((tuple(row),))), tmp_path / "one.csv")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    done = subprocess.run(
        [*command, "examples/train_with_csv.py", str(tmp_path / "one.csv")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    losses = [float(line.rpartition(" ")[2]) for line in done.stdout.splitlines() if line.startswith("step")]
    assert len(losses) == 10
    assert losses[-1] < losses[0] - 0.5


def test_the_language_model_resumes_and_equals_one_process_bit_by_bit(tmp_path):
    """With a rank a thread, in 8 steps; the script fails if a loss has other bits."""
    done = subprocess.run(
        [sys.executable, "examples/train_small_lm.py", "--steps", "8", "--directory", str(tmp_path / "new")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count("have the same bits") == 2
    assert "8 steps 0 were clipped" in done.stdout
    assert (tmp_path / "new" / "checkpoint-0.pt").stat().st_size > 1000
    first, last = (float(line.rpartition(" ")[2]) for line in done.stdout.splitlines() if "loss " in line)
    assert last < first - 1
