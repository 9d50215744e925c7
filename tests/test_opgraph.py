from __future__ import annotations

import pickle

import networkx as nx
import numpy as np
import pytest
from hypothesis import given

from tests.strategies import problems, random_order
from zbsolve.errors import OrderError, ProblemError
from zbsolve.opgraph import KINDS, OpGraph
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Link, LinkOverride, Profile, StageCost
from zbsolve.timetable import Order

F, B, W, BW = Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT, Kind.BACKWARD


def two_stages(**kwargs):
    stages = (
        StageCost(
            forward_ns=3, backward_input_ns=4, backward_weight_ns=5, activation_bytes=10, backward_weight_bytes=6,
            workspace_bytes=1, static_bytes=100, output_bytes=7,
        ),
        StageCost(forward_ns=2, backward_input_ns=1, backward_weight_ns=1, activation_bytes=4, backward_weight_bytes=9),
    )  # fmt: skip
    link = Link(latency_ns=2, bytes_per_second=10**9, overrides=(LinkOverride(sender=1, receiver=0, latency_ns=20),))
    return Problem(
        **({"profile": Profile(stages=stages, link=link), "placement": Placement.linear(2), "microbatches": 2} | kwargs)
    )


def arcs_of(graph):
    columns = (graph.arc_tail, graph.arc_head, graph.arc_lag_ns, graph.arc_bytes)
    return {
        (graph.op(t), graph.op(h)): (lag, size) for t, h, lag, size in zip(*(c.tolist() for c in columns), strict=True)
    }


def test_arcs_carry_transfers_and_what_is_order_alone():
    graph = OpGraph.build(two_stages())
    arcs = arcs_of(graph)
    assert arcs[Op(F, 0, 1), Op(F, 1, 1)] == (2 + 7, 7)
    assert arcs[Op(B, 1, 1), Op(B, 0, 1)] == (20, 7)
    assert arcs[Op(F, 1, 0), Op(B, 1, 0)] == (0, -1)
    assert arcs[Op(B, 0, 0), Op(W, 0, 0)] == (0, -1)
    assert len(arcs) == 2 * (1 + 1 + 2 + 2)


def test_a_transfer_on_one_rank_costs_nothing_but_is_still_handed_over():
    plain = Profile(stages=two_stages().profile.stages, link=Link(latency_ns=5))
    graph = OpGraph.build(two_stages(profile=plain, placement=Placement.custom([0, 0])))
    assert arcs_of(graph)[Op(F, 0, 0), Op(F, 1, 0)] == (0, 7)


def test_transfers_round_up():
    slow = two_stages(profile=Profile(stages=two_stages().profile.stages, link=Link(bytes_per_second=3 * 10**9)))
    assert arcs_of(OpGraph.build(slow))[Op(F, 0, 0), Op(F, 1, 0)] == (3, 7)


def test_effects_follow_the_memory_rule():
    split = OpGraph.build(two_stages())

    def effect(graph, op):
        node = graph.index(op.stage, op)
        return int(graph.duration_ns[node]), int(graph.start_bytes[node]), int(graph.end_bytes[node])

    assert effect(split, Op(F, 0, 0)) == (3, 11, -1)
    assert effect(split, Op(B, 0, 0)) == (4, 1, -4 - 1)
    assert effect(split, Op(W, 0, 0)) == (5, 1, -6 - 1)
    assert effect(split, Op(B, 1, 0)) == (1, 5, 0), "what W needs beyond the activation comes at the start"
    fused = OpGraph.build(two_stages(allow={"fused"}))
    assert effect(fused, Op(BW, 0, 0)) == (9, 1, -11)
    assert split.base_bytes.tolist() == [100, 0]
    assert split.limit_bytes.tolist() == [2**62, 2**62]


@given(problems())
def test_pointers_agree_with_the_arcs(problem):
    graph = OpGraph.build(problem, random_order(problem, 1).rows)
    assert np.all(np.diff(graph.arc_head) >= 0)
    for node in range(len(graph)):
        into = range(graph.pred_ptr[node], graph.pred_ptr[node + 1])
        assert all(graph.arc_head[a] == node for a in into)
        out = graph.succ_arc[graph.succ_ptr[node] : graph.succ_ptr[node + 1]]
        assert all(graph.arc_tail[a] == node for a in out)
    assert graph.pred_ptr[-1] == graph.succ_ptr[-1] == len(graph.arc_tail)
    assert nx.is_directed_acyclic_graph(graph.to_networkx())


@given(problems())
def test_an_order_survives_encoding(problem):
    order = random_order(problem, 7)
    graph = OpGraph.build(problem, order.rows)
    assert graph.decode(graph.encode(order)) == order


@given(problems())
def test_nothing_is_lost_when_built_from_the_default_operations(problem):
    graph, same = OpGraph.build(problem), OpGraph.build(problem, problem.operations())
    rows = problem.operations()
    order = Order(rows)
    for field in ("duration_ns", "start_bytes", "end_bytes", "rank"):
        for a, b in zip(graph.encode(order), same.encode(order), strict=True):
            assert getattr(graph, field)[a].tolist() == getattr(same, field)[b].tolist()
    assert arcs_of(graph) == arcs_of(same)


def test_twins_are_alike_in_route_and_in_what_is_fused():
    order = random_order(two_stages(microbatches=6), 3, fused=0.5)
    graph = OpGraph.build(two_stages(microbatches=6), order.rows)
    fused = {(s, j) for row in order.rows for op in row if op.kind is BW for s, j in [(op.stage, op.microbatch)]}
    for a in range(len(graph)):
        for b in range(len(graph)):
            x, y = graph.op(a), graph.op(b)
            same = (x.kind, x.stage) == (y.kind, y.stage) and all(
                ((s, x.microbatch) in fused) == ((s, y.microbatch) in fused) for s in range(2)
            )
            assert (graph.twin[a] == graph.twin[b]) == same
    routes = OpGraph.build(two_stages(placement=Placement.bidirectional(2)))
    assert routes.twin[routes.index(0, Op(F, 0, 0))] != routes.twin[routes.index(1, Op(F, 0, 1))]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: [rows[0][1:], rows[1]], "no times"),
        (lambda rows: [[*rows[0], rows[0][0]], rows[1]], "2 times"),
        (lambda rows: [[*rows[0], Op(BW, 0, 0)], rows[1]], "2 times"),
        (lambda rows: [rows[1], rows[0]], "does not lie"),
        (lambda rows: [rows[0]], "1 rows"),
        (lambda rows: [[*rows[0], Op(F, 5, 0)], rows[1]], "not an operation"),
        (lambda rows: [[*rows[0], Op(F, 0, None)], rows[1]], "not an operation"),
        (lambda rows: [[*rows[0], Op(F, -1, 0)], rows[1]], "not an operation"),
    ],
)
def test_rows_that_are_no_order_are_refused(change, said):
    problem = two_stages()
    with pytest.raises(OrderError, match=said):
        OpGraph.build(problem, change([list(row) for row in problem.operations()]))


def test_encode_refuses_another_set_of_operations():
    graph = OpGraph.build(two_stages())
    for rows in (two_stages(allow={"fused"}).operations(), two_stages(microbatches=1).operations(), ((),)):
        with pytest.raises(OrderError):
            graph.encode(Order(rows))


@pytest.mark.parametrize("field", ["forward_ns", "activation_bytes", "static_bytes", "workspace_bytes"])
def test_sums_beyond_2_to_the_62_are_refused(field):
    big = {"forward_ns": 1, "backward_input_ns": 1, "backward_weight_ns": 1, "backward_ns": 2} | {field: 2**61 + 1}
    profile = Profile.uniform(2, **big)
    placement = Placement.custom([0, 0])
    with pytest.raises(ProblemError, match="2\\^62"):
        OpGraph.build(Problem(profile=profile, placement=placement, microbatches=2))


def test_endless_transfers_are_refused():
    profile = Profile.uniform(
        2, forward_ns=1, backward_input_ns=1, backward_weight_ns=1, output_bytes=2**62, bytes_per_second=1
    )
    with pytest.raises(ProblemError, match="rank 0 to rank 1"):
        OpGraph.build(Problem(profile=profile, placement=Placement.linear(2), microbatches=1))


def test_arrays_are_read_only_and_picklable():
    graph = OpGraph.build(two_stages())
    with pytest.raises(ValueError, match="read-only"):
        graph.duration_ns[0] = 1
    again = pickle.loads(pickle.dumps(graph))
    assert again.arc_tail.tolist() == graph.arc_tail.tolist()
    assert [KINDS[k] for k in graph.kind[:2]] == [F, F]
