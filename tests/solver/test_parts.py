"""Parts of an order as networks of their own."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.solver.instances import instance, one_chunk, unequal
from tests.strategies import placements, problems
from zbsolve.check import violations
from zbsolve.solver.budget import Budget
from zbsolve.solver.case import Case
from zbsolve.solver.compiled import plain, ready_to_move
from zbsolve.solver.network import WAIT_LAG, WAIT_PTR, WAIT_TAIL, order_of
from zbsolve.solver.parts import anneal_parts, in_time, take_out
from zbsolve.solver.portfolio import plain_drafts
from zbsolve.solver.state import BEFORE, DURATION, END, PART, REG, SEQUENCE, VALUE, new_state
from zbsolve.solver.tasks import AnnealParts, Length
from zbsolve.timetable import Order


def first_draft(case):
    return next(plain_drafts(case, Budget(1e18, 1)))


def timed(case, sequence, fused):
    state = new_state(case.network, sequence, fused, 0)
    assert case.kernels.load(case.network, state, case.periodic) >= 0
    return state


def standing_in_time(case, found):
    """The state of an order whose sequence is that of its times."""
    sequence = in_time(timed(case, found.sequence, found.fused), found.sequence.astype(np.int64))
    assert sorted(sequence.tolist()) == list(range(case.nodes))
    return timed(case, sequence, found.fused)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_a_part_has_the_value_of_the_whole(data):
    placement = data.draw(st.sampled_from([one_chunk(), placements()]))
    problem = data.draw(problems(placement=placement, most_microbatches=8))
    case = Case(problem, plain())
    state = standing_in_time(case, first_draft(case))
    low = data.draw(st.integers(0, case.nodes - 1))
    high = data.draw(st.integers(low + 1, case.nodes))
    piece = take_out(case, state, low, high)
    own = ready_to_move(case.kernels, piece.net.tolist(), piece.sequence.tolist(), piece.fused.tolist(), 0, 0)
    # some path that makes the value may lie beside a part; never is a part worth more
    assert own is not None
    assert own[REG][VALUE] - piece.over <= state[REG][VALUE]
    if high - low == case.nodes and not case.periodic:
        assert own[REG][VALUE] - piece.over == state[REG][VALUE]


@pytest.mark.parametrize("memory", ["0.5x", "0.75x", "1x"])
def test_what_follows_a_node_is_its_longest_path(memory):
    case = Case(unequal(microbatches=6, memory_limit=memory, objective="makespan"), plain())
    state = standing_in_time(case, first_draft(case))
    case.kernels.tails(case.network, state, 0)
    graph = nx.DiGraph()
    for node in range(case.nodes):
        net = case.network
        for k in range(net[WAIT_PTR][node], net[WAIT_PTR][node + 1]):
            graph.add_edge(net[WAIT_TAIL][k], node, weight=net[WAIT_LAG][k] + state[DURATION][node])
        if state[BEFORE][node] < case.nodes:
            graph.add_edge(state[BEFORE][node], node, weight=state[DURATION][node])
    longest: dict[int, int] = {}
    for node in reversed(list(nx.topological_sort(graph))):
        ways = [longest[head] + data["weight"] for _, head, data in graph.out_edges(node, data=True)]
        longest[node] = max(ways, default=0)
    assert {node: state[PART][node] for node in longest} == longest
    assert max(state[END][n] + state[PART][n] for n in state[SEQUENCE][: case.nodes]) == state[REG][VALUE]


def test_annealed_parts_give_better_orders_that_fit_and_the_same_for_a_seed():
    problem = instance("paper-1.5B-p8-m24", "0.75x")
    case = Case(problem, plain())
    found = max(plain_drafts(case, Budget(1e18, 100)), key=lambda each: each.value_ns)
    heard = []
    for _ in range(2):
        finds = []
        task = AnnealParts(sequence=found.sequence, fused=found.fused, target_ns=0, length=Length(steps=12_000), seed=2)
        anneal_parts(task, case, Budget(1e18, 12_000), finds.append)
        heard.append([find.value_ns for find in finds])
    assert heard[0] == heard[1]
    assert heard[0]
    assert heard[0] == sorted(heard[0], reverse=True)
    assert heard[0][0] < found.value_ns
    order: Order = order_of(problem, finds[-1].sequence.tolist(), finds[-1].fused.tolist())
    assert not violations(problem, order)
