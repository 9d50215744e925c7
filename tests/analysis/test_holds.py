"""What holds an operation: against the definition, and in a network with more lanes than compute."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.test_idle import fits_before, timetables
from tests.drawn import problem, timed
from zbsolve.analysis import network as networks
from zbsolve.analysis.holds import chain, hold
from zbsolve.analysis.idle import by_cause, idle_times, windows
from zbsolve.analysis.network import Edge, Network
from zbsolve.timetable import TimedOp, Timetable


@given(timetables())
def test_what_holds_an_operation_ends_or_arrives_as_it_starts(table):
    network = Network.of(table)
    for node in range(len(network.timed)):
        found = hold(network, node)
        start, rank = network.start(node), network.rank(node)
        row = network.rows[rank].tolist()
        arrived = [network.end(e.tail) + e.lag_ns for e in network.edges[node] if not e.in_row]
        assert all(time <= start for time in arrived)
        if found.kind == "data":
            assert network.end(found.by) + found.lag_ns == start
        elif found.kind in ("busy", "memory", "order"):
            assert found.by in [edge.tail for edge in network.edges[node] if edge.in_row]  # one a lane
            assert network.end(found.by) == start
            sooner = [n for n in row[: row.index(node)] if network.start(n) >= max(arrived, default=-1)]
            fits = any(fits_before(network, rank, node, n) for n in sooner)
            assert found.kind == ("busy" if not sooner else "order" if fits else "memory")
        elif found.kind == "late":
            raise AssertionError("simulated times are never late")
        else:
            assert row[0] == node
            assert found.kind == ("pace" if network.by_period else "start")
            assert network.by_period or start == windows(network)[rank][0]


@given(timetables(), st.data())
def test_a_chain_ends_where_no_data_is_waited_for(table, data):
    network = Network.of(table)
    links = chain(network, data.draw(st.integers(0, len(network.timed) - 1)))
    assert all(link.kind == "data" for link in links[:-1])
    assert links[-1].kind != "data"
    assert [link.by for link in links[:-1]] == [link.node for link in links[1:]]


def with_lanes(table, moved):
    """The network of a timetable whose nodes of some kinds run on a lane of their own."""
    network = Network.of(table)
    lane = network.graph.lane.copy()
    for node, entry in enumerate(network.timed):
        if entry.op.kind.letter in moved:
            lane[node] = network.ranks + network.rank(node)
    graph = replace(network.graph, lane=lane)
    edges = networks._edges(graph, network.rows)
    return replace(network, graph=graph, edges=edges, sequence=networks._sequence(edges))


def test_what_runs_beside_the_compute_fills_no_idle_time():
    table = timed(problem(1, 2, objective="makespan"), "F0 B0 W0 F1 B1 W1")
    # W0 beside F1 on another lane, W1 after B1: F 0-1, B 1-2, W0 2-3 | F1 2-3, B1 3-4, W1 4-5
    times = [(0, 1), (1, 2), (2, 3), (2, 3), (3, 4), (4, 5)]
    moved = tuple(TimedOp(t.op, a * 1000, b * 1000) for t, (a, b) in zip(table.rows[0], times, strict=True))
    network = with_lanes(Timetable(problem=table.problem, rows=(moved,)), "W")
    row = network.rows[0].tolist()
    assert network.compute_row(0) == [row[0], row[1], row[3], row[4]]
    # a row's operation follows the last compute ahead, and the last of its own lane
    assert Edge(row[1], 0, True) in network.edges[row[3]]
    assert Edge(row[2], 0, True) not in network.edges[row[3]]
    assert {Edge(row[4], 0, True), Edge(row[2], 0, True)} <= set(network.edges[row[5]])
    assert network.lasts(0) == [row[4], row[5]]
    assert sum(by_cause(idle_times(network)).values()) == 1000
    assert int(np.sum(network.graph.duration_ns[network.compute_row(0)])) == 4000
