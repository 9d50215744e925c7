"""The runtime over gloo, one process a rank: the same numbers, and the same words when something breaks."""

from __future__ import annotations

import re
import signal
import time

import pytest

from tests.dist.launch import start

LIMIT_S = 10.0
WAITS = r"rank 2 waits for F\d of stage 1 from rank 1, which failed: "


@pytest.fixture
def launch(tmp_path):
    running = []

    def begin(scenario, ranks, **arguments):
        running.append(start(scenario, ranks, tmp_path, **arguments))
        return running[-1]

    yield begin
    for ranks in running:
        ranks.end()


@pytest.mark.parametrize("scenario", ["equality", "post_validation", "tensors"])
def test_processes_compute_what_one_process_computes(launch, scenario):
    ranks = launch(scenario, 4)
    assert ranks.wait() == [0] * 4, ranks.said()


def assert_all_stop(ranks, since, *, but=()):
    """Every rank ends by itself, within the time promised, with exit code 1."""
    while any(p.is_alive() for r, p in enumerate(ranks.processes) if r not in but):
        assert time.monotonic() - since < LIMIT_S, ranks.said()
        time.sleep(0.05)
    assert [code for r, code in enumerate(ranks.codes()) if r not in but] == [1] * (len(ranks.processes) - len(but))


def test_a_killed_rank_stops_all(launch):
    ranks = launch("trouble", 3, at=1, what="sleep")
    ranks.wait_for("trouble")
    ranks.signal(1, signal.SIGKILL)
    assert_all_stop(ranks, time.monotonic(), but=(1,))
    assert re.search(WAITS + "its process has given no sign", ranks.said(2))
    assert re.search("rank 1,? (which )?failed: its process", ranks.said(0))


def test_a_frozen_rank_stops_all(launch):
    ranks = launch("trouble", 3, at=1, what="sleep")
    ranks.wait_for("trouble")
    ranks.signal(1, signal.SIGSTOP)
    assert_all_stop(ranks, time.monotonic(), but=(1,))
    assert re.search(WAITS + "its process has given no sign", ranks.said(2))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("raise", "F1 of stage 1: ValueError: no such luck"),
        (
            "shape",
            "stage 1 gives tensor 0 of microbatch 1 as float32 (4, 4), wants a gradient; expected float32 (2, 4)",
        ),
    ],
)
def test_a_rank_that_raises_stops_all(launch, what, message):
    ranks = launch("trouble", 3, at=1, what=what)
    ranks.wait_for("trouble")
    assert_all_stop(ranks, time.monotonic())
    assert "rank 1 failed: " in ranks.said(1)
    assert message in ranks.said(1)
    assert re.search(WAITS, ranks.said(2))
    assert message in ranks.said(2)
    assert message in ranks.said(0)


def test_a_stalled_rank_stops_all(launch):
    ranks = launch("trouble", 3, at=1, what="sleep", stall_s=1.0)
    ranks.wait_for("trouble")
    assert_all_stop(ranks, time.monotonic() + 1.0)
    for rank in range(3):
        assert "F1 of stage 1 stalls: it has been running for" in ranks.said(rank)
