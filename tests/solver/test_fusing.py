import random
import time
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.solver.instances import unequal
from tests.strategies import problems, random_order
from zbsolve.check import violations
from zbsolve.metrics import metrics
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Profile
from zbsolve.simulate import simulate
from zbsolve.solver import solve
from zbsolve.solver.budget import Budget
from zbsolve.solver.fusing import fuse
from zbsolve.timetable import Order


def plain(problem):
    """Nothing moved away: the search sees that folded."""
    return replace(problem, allow=problem.allow - {"offload", "paired"})


def free() -> Budget:
    return Budget(time.perf_counter() + 60, None)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_fusing_is_never_worse_and_always_valid(data):
    problem = plain(data.draw(problems(variants=True)))
    order = random_order(problem, data.draw(st.integers(0, 999)))
    before = simulate(problem, order)
    value, fused = fuse(problem, order, free())
    after = simulate(problem, fused)
    assert not violations(problem, after)
    assert value == (after.period_ns if problem.objective == "period" else after.makespan_ns)
    assert value <= (before.period_ns if problem.objective == "period" else before.makespan_ns)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_fusing_keeps_the_memory_limit(data):
    problem = plain(data.draw(problems(variants=True)))
    order = random_order(problem, data.draw(st.integers(0, 999)))
    peaks = metrics(simulate(problem, order)).peak_bytes
    limited = replace(problem, memory_limit=peaks)
    _, fused = fuse(limited, order, free())
    assert not violations(limited, fused)


def test_pairs_that_nobody_waits_for_become_one():
    profile = Profile.uniform(1, forward_ns=3, backward_input_ns=4, backward_weight_ns=2)
    problem = Problem(profile=profile, placement=Placement.linear(1), microbatches=2)
    f, b, w = (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
    order = Order(((Op(f, 0, 0), Op(b, 0, 0), Op(f, 0, 1), Op(b, 0, 1), Op(w, 0, 0), Op(w, 0, 1)),))
    _, fused = fuse(problem, order, free())
    # W0 and W1 are twins: W1 may stand behind its own B, and W0 last
    assert [str(op) for op in fused.rows[0]] == [
        "F0 of stage 0",
        "B0 of stage 0",
        "F1 of stage 0",
        "BW1 of stage 0",
        "W0 of stage 0",
    ]


def test_a_gradient_that_is_waited_for_is_not_kept_back():
    problem = unequal()
    solution = solve(problem, work_limit=10_000, workers=1)
    split = solve(Problem(**{**unequal_fields(problem), "allow": frozenset({"split"})}), work_limit=10_000, workers=1)
    assert solution.value_ns <= split.value_ns


def unequal_fields(problem: Problem) -> dict:
    return {
        "profile": problem.profile,
        "placement": problem.placement,
        "microbatches": problem.microbatches,
        "memory_limit": problem.memory_limit,
    }


def test_a_cheaper_fused_backward_is_used():
    profile = Profile.uniform(
        3, forward_ns=10, backward_input_ns=10, backward_weight_ns=10, backward_ns=12, activation_bytes=1
    )
    problem = Problem(profile=profile, placement=Placement.linear(3), microbatches=6, memory_limit="1x")
    solution = solve(problem, work_limit=1000, workers=1)
    kinds = [timed.op.kind for row in solution.timetable.rows for timed in row]
    assert kinds.count(Kind.BACKWARD) > 9
    only_split = solve(
        Problem(**{**unequal_fields(problem), "allow": frozenset({"split"})}), work_limit=1000, workers=1
    )
    assert solution.value_ns < only_split.value_ns


def test_without_split_there_are_only_fused_backwards():
    rng = random.Random(0)
    problem = Problem(**{**unequal_fields(unequal()), "allow": frozenset({"fused"})})
    solution = solve(problem, work_limit=200, workers=1, seed=rng.randrange(100))
    assert {timed.op.kind for row in solution.timetable.rows for timed in row} == {Kind.FORWARD, Kind.BACKWARD}
