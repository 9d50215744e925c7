import ast
import inspect
import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.solver.instances import instance, one_chunk, unequal
from tests.solver.test_listing import judged
from tests.strategies import placements, problems
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Profile, StageCost
from zbsolve.solver import compiled as compiled_kernels
from zbsolve.solver import moves, timing, walks
from zbsolve.solver.budget import Budget
from zbsolve.solver.case import Case
from zbsolve.solver.compiled import compiled, plain, ready_to_move
from zbsolve.solver.network import MATE, NEED, NEED_PTR, RANK, TWIN, nodes_of, order_of
from zbsolve.solver.portfolio import random_drafts
from zbsolve.solver.running import run
from zbsolve.solver.state import (
    AFTER,
    BEFORE,
    BEST,
    BEST_FUSED,
    BEST_SEQUENCE,
    DURATION,
    END,
    FUSED,
    LAST,
    LEVEL,
    PLACE,
    REG,
    SEQUENCE,
    VALUE,
    new_state,
)
from zbsolve.solver.tasks import Anneal, Found, Length, Scan, Tabu

FAR = 2**60


def some_state(problem, seed):
    """A case and a random order in motion; None where there is none."""
    case = Case(problem, plain())
    found = next(random_drafts(case, Budget(float("inf"), 500), random.Random(seed)), None)
    if found is None:
        return case, None
    state = ready_to_move(case.kernels, case.network, found.sequence, found.fused, seed, case.periodic)
    return case, state


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_tabu_search_keeps_an_order_an_order_and_never_loses_the_best(data):
    case, state = some_state(data.draw(problems(placement=placements(), limits=True)), data.draw(st.integers(0, 999)))
    if state is None:
        return
    best = state[REG][BEST]
    for _ in range(4):
        tried = case.kernels.tabu_moves(case.network, state, 100, 3, 0, case.periodic)
        assert tried >= 100 or state[REG][BEST] == 0
        assert_sound(case, state)
        assert state[REG][BEST] <= best
        best = state[REG][BEST]
    nodes = case.nodes
    fresh = new_state(case.network, state[BEST_SEQUENCE][:nodes], state[BEST_FUSED][:nodes], 0)
    assert timing.load(case.network, fresh, case.periodic) == best


def test_steps_stay_within_the_row_so_that_each_can_be_undone():
    case, state = some_state(unequal(), 3)
    row = rows(case, state)[1]
    for at, node in enumerate(row):
        assert walks.within_row(state, case.nodes, node, 4) == min(4, at)
        assert walks.within_row(state, case.nodes, node, -4) == -min(4, len(row) - 1 - at)


def rows(case, state):
    """The rows as the links tell them."""
    nodes, told = case.nodes, []
    for r in range(case.problem.placement.ranks):
        row, node = [], state[AFTER][nodes + r] if state[LAST][r] < nodes else -1
        while node >= 0:
            row.append(node)
            node = state[AFTER][node]
        told.append(row)
    return told


def assert_sound(case, state):
    """What is kept up move by move is what loading the order anew gives."""
    nodes = case.nodes
    fresh = new_state(case.network, state[SEQUENCE][:nodes], state[FUSED][:nodes], 0)
    exact = timing.load(case.network, fresh, case.periodic)
    assert 0 <= exact <= state[REG][VALUE]
    for row in (PLACE, BEFORE, LEVEL, DURATION):
        assert fresh[row][:nodes] == state[row][:nodes]
    assert fresh[LAST] == state[LAST]
    assert rows(case, fresh) == rows(case, state)
    ends = list(state[END])
    timing.sweep(case.network, state)
    assert ends == state[END], "timing what is due must equal timing everything"


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_moves_keep_an_order_an_order_and_its_times_exact(data):
    problem = data.draw(problems(placement=placements(), limits=True))
    seed = data.draw(st.integers(0, 999))
    case, state = some_state(problem, seed)
    if state is None:
        return
    rng = random.Random(seed)
    for _ in range(40):
        threshold = rng.choice((state[REG][VALUE] - 1, state[REG][VALUE], state[REG][VALUE] * 2 + 2, FAR))
        before = [list(row) for row in state]
        if rng.random() < 0.3 and case.forms.matters:
            taken = moves.try_switch(case.network, state, rng.randrange(case.nodes), threshold, case.periodic)
        else:
            steps = rng.choice((-1, 1)) * rng.randint(1, 6)
            node = rng.randrange(case.nodes)
            taken = moves.try_shift(case.network, state, node, steps, threshold, case.periodic)
        if taken:
            assert state[REG][VALUE] <= threshold
            assert_sound(case, state)
        else:
            for row in (SEQUENCE, PLACE, BEFORE, AFTER, LEVEL, DURATION, FUSED, END, LAST):
                assert state[row] == before[row]
    order = order_of(problem, state[SEQUENCE][: case.nodes], state[FUSED][: case.nodes])
    found = Found(0, np.asarray(state[SEQUENCE][: case.nodes]), np.asarray(state[FUSED][: case.nodes]))
    assert judged(problem, found) <= state[REG][VALUE]
    again, fused = nodes_of(problem, order)
    assert sorted(itertools.chain(*again)) == list(range(case.nodes))
    assert fused == state[FUSED][: case.nodes]


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_a_b_and_its_w_move_together_or_stay_where_they_were(data):
    problem = data.draw(problems(placement=placements(), limits=True))
    seed = data.draw(st.integers(0, 999))
    case, state = some_state(problem, seed)
    if state is None:
        return
    rng = random.Random(seed)
    for _ in range(40):
        threshold = rng.choice((state[REG][VALUE] - 1, state[REG][VALUE], state[REG][VALUE] * 2 + 2, FAR))
        before, value = rows(case, state), state[REG][VALUE]
        node, steps = rng.randrange(case.nodes), rng.choice((-1, 1)) * rng.randint(1, 6)
        taken = moves.try_pair(case.network, state, node, steps, threshold, case.periodic)
        assert_sound(case, state)
        if taken:
            assert state[REG][VALUE] <= threshold
            mate = case.network[MATE][node]
            both = sorted((node, mate), key=state[PLACE].__getitem__)
            assert state[AFTER][both[0]] == both[1]
            rest = [[other for other in row if other not in both] for row in before]
            assert [[other for other in row if other not in both] for row in rows(case, state)] == rest
        else:
            assert rows(case, state) == before
            assert state[REG][VALUE] <= value


def test_a_b_and_its_w_pass_what_either_alone_has_no_room_to_pass():
    # both F hold 3 bytes, and a B raises its own to 6 until W; 11 are all there is
    stage = StageCost(
        forward_ns=100,
        backward_input_ns=200,
        backward_weight_ns=300,
        activation_bytes=3,
        backward_weight_bytes=6,
        workspace_bytes=2,
    )
    problem = Problem(
        profile=Profile(stages=(stage,)),
        placement=Placement.custom((0,)),
        microbatches=2,
        microbatch_factors=("1", "1.05"),
        memory_limit=11,
        allow=frozenset({"split"}),
    )
    case = Case(problem, plain())
    f, b, w = ((k * 2, k * 2 + 1) for k in range(3))
    state = ready_to_move(case.kernels, case.network, [f[0], f[1], b[0], w[0], b[1], w[1]], [0] * 6, 0, 1)
    assert moves.try_shift(case.network, state, b[1], 1, FAR, 1) == 0
    assert moves.try_shift(case.network, state, b[1], 2, FAR, 1) == 0
    assert moves.try_pair(case.network, state, b[1], 2, FAR, 1) == 1
    assert rows(case, state) == [[f[0], f[1], b[1], w[1], b[0], w[0]]]
    assert_sound(case, state)


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_every_single_swap_that_is_legal_is_offered(data):
    problem = data.draw(problems(placement=one_chunk(), limits=True, most_microbatches=3))
    case, state = some_state(problem, data.draw(st.integers(0, 99)))
    if state is None:
        return
    net = case.network
    for row in rows(case, state):
        for ahead, node in itertools.pairwise(row):
            kept = [list(r) for r in state]
            swapped = bool(moves.try_shift(net, state, node, 1, FAR, case.periodic))
            for r, old in zip(state, kept, strict=True):
                r[:] = old
            assert bool(moves.try_shift(net, state, ahead, -1, FAR, case.periodic)) == swapped
            for r, old in zip(state, kept, strict=True):
                r[:] = old
            if net[TWIN][ahead] == net[TWIN][node]:
                assert not swapped
            elif net[RANK][ahead] == net[RANK][node]:
                changed = [list(r) for r in rows(case, state)]
                own = changed[net[RANK][node]]
                at = own.index(node)
                own[at - 1 : at + 1] = [node, ahead]
                assert swapped == legal(case, state, changed)


def legal(case, state, changed) -> bool:
    """Whether rows can finish and fit, by brute force."""
    net, nodes = case.network, case.nodes
    needs = [set(net[NEED][net[NEED_PTR][n] : net[NEED_PTR][n + 1]]) for n in range(nodes)]
    at, done, sequence = [0] * len(changed), set(), []
    while len(sequence) < nodes:
        ready = [r for r, row in enumerate(changed) if at[r] < len(row) and needs[row[at[r]]] <= done]
        if not ready:
            return False
        node = changed[ready[0]][at[ready[0]]]
        at[ready[0]] += 1
        done.add(node)
        sequence.append(node)
    fresh = new_state(net, sequence, state[FUSED][:nodes], 0)
    return timing.load(net, fresh, case.periodic) >= 0


@pytest.mark.parametrize("objective", ["period", "makespan"])
def test_annealing_reports_true_values_and_gets_better(objective):
    problem = unequal(objective=objective, microbatches=8, memory_limit="0.8x")
    case = Case(problem, plain())
    start = next(random_drafts(case, Budget(float("inf"), 500), random.Random(3)))
    heard = []
    task = Anneal(
        sequence=start.sequence,
        fused=start.fused,
        first=0.02,
        ratio=0.1,
        target_ns=0,
        length=Length(steps=8000),
        seed=1,
    )
    done = run(task, case, float("inf"), heard.append)
    assert done.steps == 8000
    values = [found.value_ns for found in heard]
    assert values
    assert values == sorted(set(values), reverse=True)
    assert values[0] < start.value_ns
    assert all(judged(problem, found) == found.value_ns for found in heard)


def test_the_folder_of_compiled_kernels_is_named_after_all_that_they_are_compiled_from():
    sources = {module.__name__ for module in compiled_kernels._SOURCES}
    for module in compiled_kernels._MODULES:
        tree = ast.parse(inspect.getsource(module))
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert {name for name in imported if name.startswith("zbsolve")} <= sources, module.__name__


def test_compiled_and_plain_kernels_do_the_same():
    for problem in (instance("random25pct_s0_p4", "0.75x"), unequal(objective="makespan")):
        told = []
        for kernels in (plain(), compiled()):
            case = Case(problem, kernels)
            heard = []
            run(
                Scan(plain=False, length=Length(steps=1000), seed=3, keep=20, target_ns=0),
                case,
                float("inf"),
                heard.append,
            )
            task = Anneal(
                sequence=heard[0].sequence,
                fused=heard[0].fused,
                first=0.02,
                ratio=0.1,
                target_ns=0,
                length=Length(steps=3000),
                seed=1,
            )
            run(task, case, float("inf"), heard.append)
            told.append([(f.value_ns, f.sequence.tolist(), f.fused.tolist()) for f in heard])
        assert told[0] == told[1]


def test_tabu_search_is_the_same_compiled_and_plain():
    problem = unequal(microbatches=8, memory_limit="0.7x")
    ends = []
    for kernels in (plain(), compiled()):
        case = Case(problem, kernels)
        start = next(random_drafts(Case(problem, plain()), Budget(float("inf"), 500), random.Random(1)))
        found = []
        task = Tabu(
            sequence=start.sequence,
            fused=start.fused,
            slack=0.02,
            target_ns=0,
            length=Length(steps=3_000),
            seed=4,
        )
        done = run(task, case, float("inf"), found.append)
        ends.append((done.steps, [f.value_ns for f in found]))
    assert ends[0] == ends[1]
    assert ends[0][1], "it finds something better than a random list schedule"
