"""A store whose keeper is gone raises, and torch prints nothing about it."""

from __future__ import annotations

import threading

import pytest
import torch.distributed as dist

from zbsolve.executor.transports import quiet
from zbsolve.executor.transports.board import Board
from zbsolve.executor.transports.calls import Standing


@pytest.fixture
def board():
    keeper = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", keeper.port, None, is_master=False, wait_for_workers=False)
    made = Board(0, [0, 1], [0, 1], client)
    made.beat(Standing())
    assert list(made.beats([0])) == [(0, 1, Standing())]
    del keeper
    return made


@pytest.mark.skipif(quiet._level is None, reason="this build of torch hides its log level")
def test_a_store_that_is_gone_is_not_told_in_stacks_of_frames(board, capfd):
    before = quiet._level.value
    for ask in (
        board.failure,
        lambda: board.beat(Standing()),
        lambda: board.fail(0, "no such luck"),
        lambda: board.said(["anyone there?"]),
        board.leave,
    ):
        with pytest.raises(dist.DistError):
            ask()
    assert capfd.readouterr().err == ""
    assert quiet._level.value == before


@pytest.mark.skipif(quiet._level is None, reason="this build of torch hides its log level")
def test_whoever_leaves_last_puts_the_level_back():
    before, inside, leave = quiet._level.value, threading.Event(), threading.Event()

    def other():
        with quiet.quiet():
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=other)
    with quiet.quiet():
        thread.start()
        assert inside.wait(30)
    assert quiet._level.value == quiet._ERROR
    leave.set()
    thread.join()
    assert quiet._level.value == before


def test_where_torch_hides_its_level_nothing_is_done(monkeypatch, board):
    monkeypatch.setattr(quiet, "_level", None)
    with pytest.raises(dist.DistError):
        board.failure()
