import math
import random
import time

import numpy as np

from benchmarks.fuzz.shapes import draw
from tests.oracle import optimum, tiny_problem
from tests.solver.instances import instance, unequal
from tests.solver.test_listing import judged
from zbsolve.check import violations
from zbsolve.opgraph import OpGraph
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Profile, StageCost
from zbsolve.solver import solve
from zbsolve.solver.case import Case
from zbsolve.solver.compiled import plain
from zbsolve.solver.cpsat import Limits, improve
from zbsolve.solver.cpsat_window import improve_part
from zbsolve.solver.forms import Forms
from zbsolve.solver.kernels import Arrays, fits, makespan, period, rows_of, sequence_of
from zbsolve.solver.network import build_network
from zbsolve.solver.running import run
from zbsolve.solver.tasks import Bounded, Found, Length, Prove, Rearrange, Scan

LIMITS = Limits(seconds=60, deterministic=0.3, workers=1, seed=0)


def first_order(problem):
    """The split graph, or the fused one where nothing else is allowed, and one microbatch after the other."""
    graph = OpGraph.build(problem)
    arrays = Arrays.of(graph)
    turn = np.lexsort((graph.stage * np.where(graph.kind == 0, 1, -1), graph.kind > 0, graph.microbatch))
    rows = [[n for n in turn.tolist() if graph.rank[n] == r] for r in range(graph.ranks)]
    return arrays, sequence_of(arrays, rows)


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
        if not fits(arrays, sequence):
            continue
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
        if Forms(problem, build_network(problem)).speaks_for_all(arrays.graph.kind == 3):
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


def test_runs_as_a_task():
    problem = unequal(microbatches=2, memory_limit="0.7x")
    case = Case(problem, plain())
    heard = []
    run(Scan(plain=False, length=Length(steps=100), seed=0, keep=1, target_ns=0), case, math.inf, heard.append)
    start = heard[0]
    heard.clear()
    task = Prove(
        sequence=start.sequence,
        fused=start.fused,
        value_ns=start.value_ns,
        bound_ns=1,
        length=Length(steps=60_000),
        seed=3,
    )
    run(task, case, time.perf_counter() + 60, heard.append)
    bounds = [find.bound.value_ns for find in heard if isinstance(find, Bounded)]
    assert max(bounds) > 1
    found = [find for find in heard if isinstance(find, Found)]
    assert all(judged(problem, find) == find.value_ns for find in found)
    assert min([start.value_ns, *(find.value_ns for find in found)]) >= max(bounds)


def test_a_part_set_free_is_rearranged_within_memory_and_the_rest_keeps_its_order():
    better = 0
    for seed in range(4):
        problem = unequal(microbatches=4, memory_limit="0.9x", objective=("period", "makespan")[seed % 2])
        case = Case(problem, plain())
        heard = []
        run(Scan(plain=False, length=Length(steps=100), seed=seed, keep=1, target_ns=0), case, math.inf, heard.append)
        start = heard.pop()
        task = Rearrange(
            sequence=start.sequence,
            fused=start.fused,
            value_ns=start.value_ns,
            length=Length(steps=30_000),
            seed=seed,
        )
        run(task, case, time.perf_counter() + 60, heard.append)
        for find in heard:
            assert find.value_ns < start.value_ns
            assert judged(problem, find) == find.value_ns
        better += bool(heard)
    assert better >= 2


def test_only_what_is_free_changes_places():
    problem = unequal(microbatches=5, memory_limit="0.8x")
    arrays, sequence = first_order(problem)
    rng = random.Random(1)
    for _ in range(4):
        free = set(sequence[10:24]) if rng.random() < 0.7 else set(sequence)
        found = []
        improve_part(
            arrays,
            sequence,
            free,
            objective="period",
            value_ns=exact(problem, arrays, sequence),
            limits=LIMITS,
            on_sequence=found.append,
        )
        assert found, "the order itself is a solution"
        for order in found:
            again = sequence_of(arrays, rows_of(arrays, order))
            assert fits(arrays, again)
            for old, new in zip(rows_of(arrays, sequence), rows_of(arrays, order), strict=True):
                assert [n for n in old if n not in free] == [n for n in new if n not in free]


def test_forwards_alone_hold_memory_only_while_they_run():
    """The largest microbatch comes first, which is the worst sequence; the limit is just what it needs."""
    stages = [StageCost(forward_ns=ns, backward_input_ns=1, backward_weight_ns=1, activation_bytes=3) for ns in (1, 4)]
    problem = Problem(
        profile=Profile(stages=tuple(stages)),
        placement=Placement.linear(2),
        microbatches=3,
        memory_limit=6,
        objective="makespan",
        forward_only=True,
        microbatch_factors=(2, 1, "0.5"),
    )
    arrays, sequence = first_order(problem)
    assert exact(problem, arrays, sequence) == 2 + 8 + 4 + 2
    best = 1 + 2 + 4 + 8
    found = []
    outcome = improve(
        arrays,
        sequence,
        objective="makespan",
        value_ns=16,
        bound_ns=0,
        limits=LIMITS,
        on_sequence=lambda order: found.append(exact(problem, arrays, order)),
    )
    assert outcome.bound_ns == min([16, *found]) == best
    improve_part(
        arrays,
        sequence,
        set(sequence),
        objective="makespan",
        value_ns=16,
        limits=LIMITS,
        on_sequence=lambda order: found.append(exact(problem, arrays, order)),
    )
    assert min([16, *found]) == best


def test_a_solve_of_forwards_alone_within_a_limit_ends_by_itself():
    """Every arm in this process, so that one which fails is not just lost."""
    for seed in range(6):
        rng = random.Random(seed)
        problem = draw("forwards alone", rng)
        if any(limit is not None for limit in problem.limit_bytes):
            solution = solve(problem, work_limit=19_000, workers=1, seed=seed, time_limit_s=60.0)
            assert not violations(problem, solution.timetable, claimed_ns=solution.value_ns)
