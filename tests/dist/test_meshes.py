"""Pipelines in a mesh of four processes over gloo: replicas, tensor parallelism, sharded weights."""

from __future__ import annotations

import signal
import time

import pytest

from tests.dist.test_pipeline_processes import assert_all_stop, launch  # noqa: F401 - a fixture


@pytest.mark.parametrize(
    "scenario",
    [
        "data_parallel",
        "buckets",
        "accumulation",
        "data_parallel_training",
        "data_parallel_trap",
        "tensor_parallel",
        "ending_in_a_collective",
        "handing_on_shards",
        "replicas_of_tensor_parallel",
        "fully_sharded",
        "agreement",
        "refused",
    ],
)
def test_meshes_compute_what_one_process_computes(launch, scenario):  # noqa: F811
    ranks = launch(f"meshes.{scenario}", 4)
    assert ranks.wait() == [0] * 4, ranks.said()


@pytest.mark.parametrize("dims", [{"pp": 2, "dp": 2}, {"pp": 1, "dp": 4}], ids=["pp2-dp2", "dp4"])
def test_a_process_that_raises_stops_the_other_replicas(launch, dims):  # noqa: F811
    ranks = launch("meshes.trouble", 4, what="raise", dims=dims)
    ranks.wait_for("trouble")
    assert_all_stop(ranks, time.monotonic())
    for rank in range(4):
        assert "ValueError: no such luck" in ranks.said(rank)
    assert "process 1, of another replica or group, failed: F1 of stage 0" in ranks.said(0)


@pytest.mark.parametrize("what", ["raise", "kill"])
def test_a_broken_group_of_devices_names_who_broke_it(launch, what):  # noqa: F811
    """The other half of rank 0 is inside a collective of its own module; it must not take the blame."""
    ranks = launch("meshes.trouble", 4, what="raise" if what == "raise" else "sleep", dims={"pp": 2, "tp": 2})
    ranks.wait_for("trouble")
    if what == "kill":
        ranks.signal(1, signal.SIGKILL)
    assert_all_stop(ranks, time.monotonic(), but=() if what == "raise" else (1,))
    why = "F1 of stage 0: ValueError" if what == "raise" else "its process has given no sign of life"
    for rank in (0, 2):
        assert f"process 1, of another replica or group, failed: {why}" in ranks.said(rank)


@pytest.mark.parametrize("dims", [{"pp": 2, "dp": 2}, {"pp": 1, "dp": 4}], ids=["pp2-dp2", "dp4"])
def test_a_killed_process_stops_the_other_replicas(launch, dims):  # noqa: F811
    ranks = launch("meshes.trouble", 4, what="sleep", dims=dims)
    ranks.wait_for("trouble")
    ranks.signal(1, signal.SIGKILL)
    assert_all_stop(ranks, time.monotonic(), but=(1,))
    assert "process 1, of another replica or group, failed: its process has given no sign of life" in ranks.said(0)
