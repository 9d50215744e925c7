import random
import time

import pytest

from tests.oracle import optimum, tiny_problem
from tests.solver.instances import instance, unequal
from zbsolve.opgraph import OpGraph
from zbsolve.solver.cpsat import Limits, improve
from zbsolve.solver.crew import run_tasks
from zbsolve.solver.kernels import Arrays, makespan, period
from zbsolve.solver.list_scheduler import NEVER, Rule, list_schedule
from zbsolve.solver.node_sets import NodeSets
from zbsolve.solver.pattern import Pattern
from zbsolve.solver.pool import fits
from zbsolve.solver.tasks import Bounded, Found, Proof, Prove

LIMITS = Limits(seconds=60, deterministic=0.3, workers=1, seed=0)


def first_order(problem):
    graph = OpGraph.build(problem) if len(problem.allow) == 1 else NodeSets(problem).get(frozenset()).graph
    pattern = Pattern.fold(graph)
    rule = Rule(penalty=[0.0] * pattern.classes, in_flight=[NEVER] * pattern.classes)
    return Arrays.of(graph), list_schedule(pattern, rule).sequence


def exact(problem, arrays, sequence):
    return makespan(arrays, sequence) if problem.objective == "makespan" else period(arrays, sequence)[0]


def test_proves_the_optimum_of_tiny_problems():
    proven = 0
    for seed in range(12):
        rng = random.Random(seed)
        problem = tiny_problem(rng, rng.choice([None, 0, 1, 2, 4]), sizes=((2, 2), (2, 3), (3, 2)))
        best = optimum(problem)
        if best is None:
            continue
        arrays, sequence = first_order(problem)
        found = [exact(problem, arrays, sequence)]

        def hand(order, arrays=arrays, found=found, problem=problem):
            assert fits(arrays, order)
            found.append(exact(problem, arrays, order))

        outcome = improve(
            arrays,
            sequence,
            objective=problem.objective,
            value_ns=found[0],
            bound_ns=1,
            limits=LIMITS,
            on_sequence=hand,
        )
        assert min(found) >= best[0]
        if NodeSets(problem).speaks_for_all(arrays.graph):
            assert outcome.bound_ns <= best[0]
            assert outcome.exact
            if outcome.bound_ns == best[0]:
                assert min(found) == best[0]
                proven += 1
    assert proven >= 3


def test_rounded_times_give_a_valid_bound():
    problem = instance("random25pct_s0_p4", "1x", microbatches=3)
    problem_in_odd_units = unequal(microbatches=3, scale=1_000_003)
    for case in (problem, problem_in_odd_units):
        arrays, sequence = first_order(case)
        found = [exact(case, arrays, sequence)]
        outcome = improve(
            arrays,
            sequence,
            objective="period",
            value_ns=found[0],
            bound_ns=max(arrays.work),
            limits=LIMITS,
            on_sequence=lambda order, case=case, arrays=arrays, found=found: found.append(exact(case, arrays, order)),
        )
        assert max(arrays.work) <= outcome.bound_ns <= min(found)


@pytest.mark.parametrize("isolated", [False, True])
def test_runs_as_a_task_here_and_elsewhere(isolated):
    problem = unequal(microbatches=2, memory_limit="0.7x")
    arrays, sequence = first_order(problem)
    task = Prove(
        arrays=arrays,
        sequence=sequence,
        objective="period",
        value_ns=exact(problem, arrays, sequence),
        bound_ns=1,
        seconds=None,
        deterministic=0.2,
        workers=1,
        seed=3,
        method="CP-SAT",
    )
    heard = []
    run_tasks(
        [task],
        lambda _, find: heard.append(find),
        workers=1,
        deadline=time.perf_counter() + 60,
        in_order=True,
        isolated=isolated,
    )
    assert isinstance(heard[-1], Proof)
    assert heard[-1].bound_ns > 1
    assert all(isinstance(find, Found | Bounded) for find in heard[:-1])
