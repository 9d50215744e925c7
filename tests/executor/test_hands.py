"""Threads of ranks stay from call to call, and go with their pipeline."""

from __future__ import annotations

import gc
import threading
import weakref

import torch
from torch import nn

from tests.executor import pipes
from zbsolve.executor.hands import Hands
from zbsolve.executor.runtime import Pipeline
from zbsolve.placement import Placement


class Notes(nn.Module):
    """Notes which thread runs it."""

    def __init__(self, inner, seen):
        super().__init__()
        self.inner, self.seen = inner, seen

    def forward(self, x):
        self.seen.append(threading.current_thread())
        return self.inner(x)


def pipeline():
    seen = [[], []]
    stages = [Notes(stage, at) for stage, at in zip(pipes.model(2), seen, strict=True)]
    return Pipeline(pipes.timetable(Placement.linear(2), 3), stages, pipes.square_loss), seen


def gone(threads):
    for thread in threads:
        thread.join(10)
    return not any(thread.is_alive() for thread in threads)


def test_a_rank_keeps_its_thread_from_step_to_step():
    pipe, seen = pipeline()
    for _ in range(3):
        pipe.step(*pipes.batch(3))
    pipe.eval(pipes.batch(3)[0])
    first, second = ({id(thread) for thread in at} for at in seen)
    assert len(first) == len(second) == 1
    assert first != second


def test_threads_end_with_close():
    pipe, seen = pipeline()
    pipe.step(*pipes.batch(3))
    pipe.close()
    assert gone({at[0] for at in seen})


def test_an_idle_thread_keeps_no_pipeline_alive():
    pipe, seen = pipeline()
    pipe.step(*pipes.batch(3))
    watched = weakref.ref(pipe)
    del pipe
    gc.collect()
    assert watched() is None
    assert gone({at[0] for at in seen})


def test_what_a_caller_has_set_holds_for_its_call_alone():
    """Precision and number of threads of an operation are the caller's at each call, not those of the thread before."""
    told = []
    stages = pipes.model(2)
    stages[0].register_forward_hook(lambda *_: told.append((torch.is_autocast_enabled("cpu"), torch.get_num_threads())))
    pipe = Pipeline(pipes.timetable(Placement.linear(2), 1), stages, lambda o, t: (o.float() - t).square().mean())
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            pipe.step(*pipes.batch(1))
        torch.set_num_threads(2)
        pipe.eval(pipes.batch(1)[0])
    finally:
        torch.set_num_threads(before)
    assert told == [(True, 1), (False, 2)]


def test_a_thread_that_is_gone_is_started_anew():
    hands, done = Hands(), []
    hands.start("one", lambda: done.append(threading.current_thread())).join(10)
    hands.close()
    assert gone(done)
    task = hands.start("one", lambda: done.append(threading.current_thread()))
    task.join(10)
    assert not task.is_alive()
    assert len(set(done)) == 2
    hands.close([task])
    assert not done[1].is_alive()
