"""Waiting for a busy link is told, and links are part of what sets the value."""

from __future__ import annotations

import json

from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import problems, random_order
from tests.test_queueing import forwards, in_turn
from zbsolve.analysis.critical import critical_path
from zbsolve.analysis.explain import explain
from zbsolve.analysis.idle import Cause, by_cause, idle_times, windows
from zbsolve.analysis.jitter import under_jitter
from zbsolve.analysis.network import Network
from zbsolve.analysis.slack import slacks
from zbsolve.analysis.whatif import questions
from zbsolve.cli import main
from zbsolve.files import write_timetable
from zbsolve.interop.perfetto import perfetto_bytes
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Link, Profile, StageCost
from zbsolve.simulate import simulate
from zbsolve.timetable import Order


@given(problems(queueing=True, variants=True, recompute=True), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_the_path_is_the_value_and_idle_times_add_up(problem, seed):
    network = Network.of(simulate(problem, random_order(problem, seed)))
    path = critical_path(network)
    assert path.value_ns == network.value_ns
    taken = sum(int(network.duration[step.node]) + step.lag_ns for step in path.steps)
    assert taken == path.length_ns
    pieces = idle_times(network)
    for rank, (start, end) in enumerate(windows(network)):
        busy = sum(network.end(node) - network.start(node) for node in network.compute_row(rank))
        assert sum(by_cause(pieces, rank).values()) == end - start - busy
    assert min(slacks(network)) in range(path.iterations + 1)


@given(problems(queueing=True, variants=True), st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_without_jitter_a_run_takes_the_period(problem, seed):
    timetable = simulate(problem, random_order(problem, seed))
    value = timetable.period_ns if problem.objective == "period" else timetable.makespan_ns
    assert set(under_jitter(timetable, 0.0, trials=2, iterations=4).values_ns) == {value}


def test_a_link_that_is_busy_without_a_pause_sets_the_period():
    problem = forwards(objective="period", microbatches=4)
    told = explain(simulate(problem, in_turn(problem)))
    assert told.path_text == ("link 0 -> 1: what comes from F0 to F3, 4 transfers, 20 ns",)
    assert told.proof.bound is not None
    assert (told.proof.bound.name, told.proof.gap) == ("link-load", 0.0)
    assert Cause.PACE in told.causes


def crossing() -> Problem:
    """The last rank of three is short of work while outputs of the middle one wait for each other."""
    stages = [StageCost(forward_ns=f, backward_input_ns=0, backward_weight_ns=0, output_bytes=b) for f, b in SHAPES]
    link = Link(latency_ns=1, bytes_per_second=10**9, queueing="sender")
    return Problem(
        profile=Profile(stages=tuple(stages), link=link),
        placement=Placement.custom((0, 1, 0, 2)),
        microbatches=2,
        objective="makespan",
        forward_only=True,
    )


SHAPES = ((1, 8), (1, 1), (1, 2), (1, 0))


def test_a_rank_that_waits_for_a_busy_link_is_told_what_the_link_is_busy_with():
    problem = crossing()
    rows = ([(0, 0), (2, 0), (0, 1), (2, 1)], [(1, 0), (1, 1)], [(3, 0), (3, 1)])
    order = Order(tuple(tuple(Op(Kind.FORWARD, s, j) for s, j in row) for row in rows))
    # F0 of stage 2 ends at 14 and has the way out of rank 0 until 16; F1 of stage 0 ends at 15
    network = Network.of(simulate(problem, order))
    told = explain(network.timetable)
    assert told.causes[Cause.QUEUE] == 1
    [bubble] = [b for b in told.bubbles if any(piece.cause is Cause.QUEUE for piece in b.pieces)]
    assert "waits for link out of rank 0, busy with what F0 of stage 2 on rank 0 hands over" in bubble.text
    assert any(q.change == "links that serve all at once" for q in questions(network, told.path))


def test_files_and_other_tools_take_it(tmp_path):
    problem = forwards(objective="period", microbatches=4)
    timetable = simulate(problem, in_turn(problem))
    write_timetable(tmp_path / "t.json", timetable)
    run = CliRunner().invoke(main, ["check", str(tmp_path / "t.json"), "--json"])
    assert run.exit_code == 0, run.output
    run = CliRunner().invoke(main, ["explain", str(tmp_path / "t.json"), "--no-what-if", "--json"])
    steps = json.loads(run.stdout)["critical"]["steps"]
    assert [step["link"] for step in steps] == ["0 -> 1"] * 4
    arrows = [event for event in json.loads(perfetto_bytes(timetable))["traceEvents"] if event["ph"] in "sf"]
    assert len(arrows) >= 8
