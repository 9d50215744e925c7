"""Ranks over gloo that do not make the same calls, or fail outside of them: one clear message on all, in time."""

from __future__ import annotations

import re
import time

import pytest

from tests.dist.conduct import RANKS
from tests.dist.launch import start

LIMIT_S = 10.0
SAME = "all ranks must make the same calls"


@pytest.fixture
def launch(tmp_path):
    running = []

    def begin(scenario, count=RANKS, **arguments):
        running.append(start(f"conduct.{scenario}", count, tmp_path, **arguments))
        return running[-1]

    yield begin
    for ranks in running:
        ranks.end()


def ended(ranks):
    """The exit codes, once all have ended by themselves within the time promised."""
    ranks.wait_for("trouble")
    since = time.monotonic()
    while any(process.is_alive() for process in ranks.processes):
        assert time.monotonic() - since < LIMIT_S, ranks.said()
        time.sleep(0.05)
    return ranks.codes()


def assert_all_say(ranks, pattern, but=()):
    for rank in range(len(ranks.processes)):
        if rank not in but:
            assert re.search(pattern, ranks.said(rank)), ranks.said(rank)


@pytest.mark.parametrize(
    ("scenario", "odd", "message"),
    [
        ("fewer_steps_then_close", 0, rf"rank \d is in call 4 \(step 3\), but rank 0 has closed .* after 3 calls: {SAME}"),
        ("fewer_batches", 1, rf"call 4 is (step 3|eval 1) on rank \d, but (step 3|eval 1) on rank \d: {SAME}"),
        ("other_kind", 2, rf"call 3 is (step 2|eval 1) on rank \d, but (step 2|eval 1) on rank \d: {SAME}"),
        ("other_timetable", 1, r"the timetable is not the same on all ranks: one of 3 ranks, 3 stages, 4 microbatches"),
        ("no_pipeline", 1, r"the module of stage 1 is missing; this process was given \[\]"),
        ("tied", 0, r"stage 0 \(0.weight\) and stage 2 \(0.weight\) share a parameter but lie on different ranks"),
        ("optimizer_raises", 1, "ArithmeticError: no step"),
        ("stays_away", 1, r"waiting in call 3 \(step 2\) for \d s; rank 1 is between calls, 2 calls made: .*away_s = 1"),
    ],
)
def test_every_rank_ends_and_says_why(launch, scenario, odd, message):
    ranks = launch(scenario, odd=odd)
    assert ended(ranks) == [1] * RANKS
    assert_all_say(ranks, message)


def test_a_process_that_ends_early_is_told_to_those_that_go_on(launch):
    ranks = launch("fewer_steps_then_end", odd=1)
    assert ended(ranks) == [1, 0, 1]
    assert_all_say(ranks, r"rank 1 (has|failed: it has) dropped its pipeline", but=(1,))


def test_a_pipeline_that_is_dropped_is_told_while_its_process_lives(launch):
    ranks = launch("drops_it", odd=0)
    assert ended(ranks) == [0, 1, 1]
    assert_all_say(ranks, r"rank 0 has dropped its pipeline after 2 calls", but=(0,))


def test_a_failure_in_ones_own_code_between_steps_stops_all(launch):
    ranks = launch("raises_between", odd=1, guarded=True)
    assert ended(ranks) == [1] * RANKS
    assert_all_say(ranks, "LookupError: no such file")


def test_a_process_that_is_gone_between_steps_is_named(launch):
    ranks = launch("dies_between", odd=1)
    assert ended(ranks) == [1, 9, 1]
    assert_all_say(ranks, "rank 1 failed: its process has given no sign of life", but=(1,))


@pytest.mark.parametrize("scenario", ["late_but_comes", "state_without_messages", "nan_loss", "taking_turns", "steps_once_closed"])
def test_what_is_allowed_stops_nobody(launch, scenario):
    ranks = launch(scenario)
    assert ranks.wait() == [0] * RANKS, ranks.said()


def test_a_loss_that_is_no_number_can_stop_all(launch):
    ranks = launch("nan_raises")
    assert ended(ranks) == [1] * RANKS
    assert_all_say(ranks, "F1 of stage 0: the output of stage 0 for microbatch 1 is not finite, and neither is its input")


@pytest.mark.parametrize(("closes", "message"), [(True, f"(has closed|closed the pipeline) .*{SAME}"), (False, SAME)])
def test_a_replica_that_makes_fewer_steps_stops_all(launch, closes, message):
    ranks = launch("replica_makes_fewer", 4, closes=closes)
    assert ended(ranks) == [1] * 4
    assert_all_say(ranks, message)
