"""Tensor-parallel weights (DTensors) under post-validation, in two processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_sharded_replicated_and_plain_weights_together(tmp_path):
    """The norm counts each element once, an overflow in one shard stops all, memory is that of the own part."""
    command = [sys.executable, "-m", "tests.dist.sharded_steps", str(tmp_path / "store")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=250)
    assert run.stdout.strip() == "fine", run.stdout + run.stderr
