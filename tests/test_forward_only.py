"""Problems of forwards only, from the model to the solver."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracle import value_within_limits
from tests.strategies import problems, random_order
from zbsolve.bounds import lower_bounds, smallest_limits
from zbsolve.catalog import baseline, schedules
from zbsolve.check import violations
from zbsolve.errors import Infeasible, OrderError, ProblemError, ScheduleConditionError
from zbsolve.files import read_timetable_bytes, timetable_bytes
from zbsolve.interop.torch import write_torch_csv
from zbsolve.lowering import lower, verify
from zbsolve.metrics import metrics
from zbsolve.opgraph import OpGraph
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Profile
from zbsolve.simulate import simulate
from zbsolve.solver import solve
from zbsolve.solver.certificate import verify_bound
from zbsolve.timetable import Order


def asked(placement=None, microbatches=3, **changes) -> Problem:
    placement = placement or Placement.linear(3)
    profile = Profile.uniform(
        placement.stages,
        forward_ns=4,
        backward_input_ns=5,
        backward_weight_ns=6,
        activation_bytes=10,
        workspace_bytes=1,
        static_bytes=100,
        latency_ns=2,
    )
    return Problem(profile=profile, placement=placement, microbatches=microbatches, **{"forward_only": True, **changes})


def test_a_forward_holds_what_it_needs_until_its_end():
    problem = asked(memory_limit=111)
    timetable = simulate(problem, baseline("forward-only", problem))
    assert [str(t.op) for t in timetable.rows[0]] == [f"F{j} of stage 0" for j in range(3)]
    assert timetable.period_ns == 12
    assert metrics(timetable).peak_bytes == (111,) * 3
    assert violations(problem, timetable) == ()
    (found, *_) = violations(replace(problem, memory_limit=110), timetable)
    assert found.code == "memory"


def test_backwards_are_refused_by_graph_and_judge():
    problem = asked()
    trained = baseline("1f1b", replace(problem, forward_only=False))
    assert {v.code for v in violations(problem, trained)} == {"unknown"}
    assert "runs forwards only; it has the kind backward" in violations(problem, trained)[0].message
    with pytest.raises(OrderError, match="not an operation of this problem"):
        OpGraph.build(problem, trained.rows)


def test_it_has_its_own_digest_and_stands_in_the_file():
    problem = asked()
    timetable = simulate(problem, baseline("forward-only", problem))
    assert problem.digest != replace(problem, forward_only=False).digest
    assert read_timetable_bytes(timetable_bytes(timetable), "t.json") == timetable
    training = replace(problem, forward_only=False)
    assert b"forward_only" not in timetable_bytes(simulate(training, baseline("1f1b", training)))


def test_every_other_schedule_says_what_it_is_for():
    for schedule in schedules():
        if schedule.name == "forward-only":
            with pytest.raises(ScheduleConditionError, match="--forward-only"):
                baseline(schedule.name, replace(asked(), forward_only=False))
        else:
            with pytest.raises(ScheduleConditionError, match="use forward-only"):
                baseline(schedule.name, asked())
    with pytest.raises(ProblemError, match="forward_only is True or False"):
        asked(forward_only=1)


def test_torch_takes_no_schedule_without_backwards(tmp_path):
    problem = asked()
    with pytest.raises(ProblemError, match="without backwards"):
        write_torch_csv(simulate(problem, baseline("forward-only", problem)), tmp_path / "t.csv")


@settings(max_examples=60, deadline=None)
@given(problem=problems(), seed=st.integers(0, 2**32))
def test_no_order_beats_a_bound_and_what_is_lowered_never_hangs(problem, seed):
    problem = replace(problem, forward_only=True)
    published = baseline("forward-only", problem)
    for order in (published, random_order(problem, seed)):
        timetable = simulate(problem, order)
        value = timetable.period_ns if problem.objective == "period" else timetable.makespan_ns
        assert max(bound.value_ns for bound in lower_bounds(problem)) <= value
        assert metrics(timetable).peak_bytes == smallest_limits(problem)
        verify(lower(timetable))
    assert violations(problem, published) == ()


@settings(max_examples=60, deadline=None)
@given(problem=problems(placement=st.integers(1, 4).map(Placement.linear), objective="period"))
def test_with_one_stage_a_rank_there_is_no_bubble(problem):
    problem = replace(problem, forward_only=True)
    load = next(bound.value_ns for bound in lower_bounds(problem) if bound.name == "load")
    assert simulate(problem, baseline("forward-only", problem)).period_ns == load


def every_order_of_forwards(problem: Problem) -> int:
    """The least value over all sequences on every rank."""
    rows: list[list[Op]] = [[] for _ in range(problem.placement.ranks)]
    for stage in range(problem.placement.stages):
        for microbatch in range(problem.microbatches):
            rows[problem.rank_of(op := Op(Kind.FORWARD, stage, microbatch))].append(op)
    orders = (Order(choice) for choice in itertools.product(*(itertools.permutations(row) for row in rows)))
    return min(value for order in orders if (value := value_within_limits(problem, order)) is not None)


def test_the_solver_finds_the_best_of_all_orders():
    rng = random.Random(5)
    for placement in (Placement.looped(2, 2), Placement.v(2), Placement.bidirectional(2), Placement.linear(3)):
        for _ in range(3):
            problem = asked(
                placement,
                microbatches=2,
                objective=rng.choice(("period", "makespan")),
                rank_factors=tuple(rng.choice((1, 2, "0.5")) for _ in range(placement.ranks)),
                microbatch_factors=(1, rng.choice((1, 3))),
            )
            solution = solve(problem, work_limit=20_000, workers=1)
            assert violations(problem, solution.timetable, claimed_ns=solution.value_ns) == ()
            assert solution.lower_bound_ns <= every_order_of_forwards(problem) == solution.value_ns
            assert verify_bound(problem, solution.bound, solution.lower_bound_ns, time_limit_s=5).status != "wrong"


def test_a_limit_that_nothing_fits():
    with pytest.raises(Infeasible) as error:
        solve(asked(memory_limit=110), work_limit=100)
    assert error.value.smallest_limit_bytes == (111,) * 3
