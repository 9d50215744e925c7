import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.solver.instances import one_chunk, unequal
from tests.strategies import placements, problems
from zbsolve.opgraph import OpGraph
from zbsolve.solver.annealing import Cooling, anneal
from zbsolve.solver.budget import Budget
from zbsolve.solver.kernels import Arrays, makespan, period, rows_of, sequence_of
from zbsolve.solver.list_scheduler import list_schedule
from zbsolve.solver.neighbourhood import LiveOrder
from zbsolve.solver.pattern import Pattern
from zbsolve.solver.pool import fits
from zbsolve.solver.portfolio import random_rule


def some_order(problem, seed):
    graph = OpGraph.build(problem)
    pattern = Pattern.fold(graph)
    draft = list_schedule(pattern, random_rule(pattern, random.Random(seed)))
    return Arrays.of(graph), None if draft is None else draft.sequence


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_moves_keep_an_order_an_order(data):
    problem = data.draw(problems(placement=placements(), limits=True))
    seed = data.draw(st.integers(0, 999))
    arrays, sequence = some_order(problem, seed)
    if sequence is None:
        return
    live, rng = LiveOrder(arrays, sequence), random.Random(seed)
    nodes = len(sequence)
    for _ in range(60):
        node, steps = rng.randrange(nodes), rng.randint(1, 6)
        rows = rows_of(arrays, live.sequence)
        row = rows[arrays.rank[node]]
        at = row.index(node)
        move = live.earlier(node, steps) if rng.random() < 0.5 else live.later(node, steps)
        if move is None:
            continue
        ahead = live.link(node, move[4])
        if rng.random() < 0.3:
            live.link(node, ahead)
            assert chained(live) == rows
            continue
        live.commit(move)
        now = rows_of(arrays, live.sequence)
        assert chained(live) == now
        assert sequence_of(arrays, now) is not None
        assert fits(arrays, live.sequence)
        fresh = LiveOrder(arrays, live.sequence)
        assert (fresh.level, fresh.place, fresh.last) == (live.level, live.place, live.last)
        moved = now[arrays.rank[node]].index(node)
        assert 1 <= abs(moved - at) <= steps


def chained(live: LiveOrder) -> list[list[int]]:
    """The rows as the links tell them."""
    nodes = len(live.sequence)
    rows = []
    for r in range(live.arrays.ranks):
        row, node = [], live.after[nodes + r]
        while node >= 0:
            row.append(node)
            node = live.after[node]
        rows.append(row)
    return rows


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_every_single_swap_that_is_legal_is_offered(data):
    problem = data.draw(problems(placement=one_chunk(), limits=True, most_microbatches=3))
    arrays, sequence = some_order(problem, data.draw(st.integers(0, 99)))
    if sequence is None:
        return
    live = LiveOrder(arrays, sequence)
    rows = rows_of(arrays, sequence)
    for r, row in enumerate(rows):
        for at in range(1, len(row)):
            swapped = [list(other) for other in rows]
            swapped[r][at - 1], swapped[r][at] = row[at], row[at - 1]
            legal = sequence_of(arrays, swapped)
            expected = legal is not None and fits(arrays, legal) and arrays.twin[row[at]] != arrays.twin[row[at - 1]]
            assert (live.earlier(row[at], 1) is not None) == expected
            assert (live.later(row[at - 1], 1) is not None) == expected


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_annealing_reports_true_values_and_never_gets_worse(data):
    problem = data.draw(problems(placement=placements(), limits=True))
    seed = data.draw(st.integers(0, 999))
    arrays, sequence = some_order(problem, seed)
    if sequence is None:
        return
    exact = makespan if problem.objective == "makespan" else lambda a, s: period(a, s)[0]
    before = exact(arrays, sequence)
    heard = []
    value, best = anneal(
        arrays,
        sequence,
        objective=problem.objective,
        cooling=Cooling(first_ns=0.02 * before),
        budget=Budget(float("inf"), 400),
        rng=random.Random(seed),
        on_better=lambda value, sequence: heard.append((value, exact(arrays, sequence))),
    )
    assert value <= before
    assert exact(arrays, best) == value
    assert fits(arrays, best)
    assert all(told == true for told, true in heard)
    assert [told for told, _ in heard] == sorted({told for told, _ in heard}, reverse=True)


def test_annealing_finds_what_one_swap_hides():
    problem = unequal()
    arrays, sequence = some_order(problem, 3)
    value, _ = anneal(
        arrays,
        sequence,
        objective="period",
        cooling=Cooling(first_ns=5),
        budget=Budget(float("inf"), 4000),
        rng=random.Random(0),
    )
    assert value < period(arrays, sequence)[0]
