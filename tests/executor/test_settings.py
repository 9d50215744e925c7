"""What a pipeline is asked for that it cannot do is refused where it is made, and after its end."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.executor import pipes
from zbsolve.errors import InvalidInput, RunError
from zbsolve.executor.optimizer import LossScale
from zbsolve.executor.runtime import Pipeline
from zbsolve.executor.story import blamed, told
from zbsolve.placement import Placement

pytestmark = pytest.mark.usefixtures("one_thread")


def pipeline(stages=None, **options):
    table = pipes.timetable(Placement.linear(2), 4)
    return Pipeline(table, pipes.model(2) if stages is None else stages, pipes.square_loss, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)}, "optimizer is a SGD, but every rank"),
        ({"optimizer": "adam"}, "optimizer is a str; give a function of a list of parameters"),
        ({"optimizer": lambda p: None}, "optimizer returned nothing for the parameters of rank 0"),
        ({"optimizer": lambda p: p}, "optimizer returned a list for the parameters of rank 0"),
        ({"max_grad_norm": 1.0}, "max_grad_norm would do nothing, as the pipeline has no optimizer"),
        ({"check_overflow": True, "loss_scale": LossScale()}, "check_overflow and loss_scale would do nothing"),
        ({"stall_s": "x"}, "stall_s is a number of seconds, got 'x'"),
        ({"away_s": [1]}, r"away_s is a number of seconds, got \[1\]"),
        ({"stall_s": float("nan")}, "stall_s must be above 0, got nan"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, message):
    with pytest.raises(InvalidInput, match=message):
        pipeline(**options)


def test_a_closed_pipeline_makes_no_more_calls():
    with pipeline() as pipe:
        pipe.step(*pipes.batch(4))
    for call in (lambda: pipe.step(*pipes.batch(4)), lambda: pipe.eval(pipes.batch(4)[0])):
        with pytest.raises(RunError, match="the pipeline is closed"):
            call()
    # what needs no other rank can still be asked
    assert pipe.state_dict()["steps"] == 1
    assert pipe.trace() is not None
    pipe.close()


class Speechless(Exception):
    def __str__(self):
        raise LookupError("no words")


def test_an_error_that_cannot_be_read_is_placed_all_the_same():
    def fails(*_):
        raise Speechless

    stages = pipes.model(2)
    stages[1].register_forward_pre_hook(fails)
    pipe = pipeline(stages)
    with pytest.raises(RunError) as caught:
        pipe.step(*pipes.batch(4))
    assert "rank 1 failed: F0 of stage 1: Speechless: (nothing to read: its __str__ raised LookupError)" in str(
        caught.value
    )


def test_errors_of_many_lines_begin_with_words_and_others_tell_the_first():
    assert told(ValueError("\n\n  one\ntwo\n")) == "ValueError: one\ntwo"
    assert told(ValueError()) == "ValueError"
    assert blamed("rank 2 waits for F0 of stage 1 from rank 1", 1, told(ValueError("one\ntwo"))) == (
        "rank 2 waits for F0 of stage 1 from rank 1, which failed: ValueError: one ..."
    )
