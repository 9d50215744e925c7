"""Settings for all tests: no test may fail because the machine is slow."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("here", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("continuous", settings.get_profile("here"), derandomize=True, database=None, print_blob=True)
settings.load_profile("continuous" if os.environ.get("CI") else "here")


@pytest.fixture
def one_thread():
    """torch on one thread: sums come out the same every time."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
