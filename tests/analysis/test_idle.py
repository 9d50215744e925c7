"""Causes of idle time against a second statement of them, moment by moment, and on cases to check by eye."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drawn import problem, timed
from tests.strategies import orders, problems
from zbsolve.analysis.idle import Cause, by_cause, idle_times, windows
from zbsolve.analysis.network import Network
from zbsolve.analysis.phases import phases
from zbsolve.analysis.words import bubbles
from zbsolve.metrics import metrics
from zbsolve.simulate import simulate
from zbsolve.timetable import TimedOp, Timetable


@st.composite
def timetables(draw, **more):
    """Random timetables, half of them with a limit that they just keep."""
    asked = draw(problems(most_microbatches=3, variants=True, **more))
    table = simulate(asked, draw(orders(asked)))
    if draw(st.booleans()):
        asked = replace(asked, memory_limit=metrics(table).peak_bytes)
        table = replace(table, problem=asked)
    return table


def cause_at(network, rank, time):
    """The definition, asked of one moment in which a rank idles; None where it is busy."""
    row = network.compute_row(rank)
    if any(network.start(n) <= time < network.end(n) for n in row):
        return None
    left = [n for n in row if network.start(n) > time]
    shift = 0
    if not left:
        if not network.by_period or not row:
            return Cause.DONE
        left, shift = row, network.value_ns

    def missing(node):
        """Data of a node that is not there yet: (when it is sent, when it arrives)."""
        data = [
            (network.end(e.tail) + shift, network.end(e.tail) + shift + e.lag_ns)
            for e in network.edges[node]
            if not e.in_row
        ]
        return [pair for pair in data if pair[1] > time]

    following = left[0]
    if not missing(following):
        return Cause.PACE if shift else Cause.LATE
    ready = [n for n in left if not missing(n)]
    if any(fits_before(network, rank, n, following) for n in ready):
        return Cause.ORDER
    if ready:
        return Cause.MEMORY
    last = max(missing(following), key=lambda pair: pair[1])
    return Cause.LINK if last[0] <= time else Cause.DATA


def fits_before(network, rank, node, following):
    row = network.rows[rank].tolist()
    moved = [n for n in row if n != node]
    moved.insert(row.index(following), node)
    held = int(network.graph.base_bytes[rank])
    for n in moved:
        if held + int(network.graph.start_bytes[n]) > int(network.graph.limit_bytes[rank]):
            return False
        held += int(network.graph.start_bytes[n] + network.graph.end_bytes[n])
    return True


@settings(max_examples=60)
@given(timetables())
def test_every_moment_has_the_cause_that_the_definition_gives_it(table):
    network = Network.of(table)
    pieces = idle_times(network)
    for rank, (start, end) in enumerate(windows(network)):
        expected = Counter(cause_at(network, rank, t) for t in range(start, end))
        del expected[None]
        assert by_cause(pieces, rank) == dict(expected)


@given(timetables())
def test_causes_bubbles_and_phases_all_add_up_to_the_idle_time(table):
    network = Network.of(table)
    pieces = idle_times(network)
    computing = network.graph.duration_ns[network.graph.lane < network.ranks]
    idle = network.ranks * network.value_ns - int(computing.sum())
    assert sum(by_cause(pieces).values()) == idle
    assert sum(by_cause(pieces, rank).get(c, 0) for rank in range(network.ranks) for c in Cause) == idle
    assert sum(bubble.length_ns for bubble in bubbles(network, pieces, most=10_000)) == idle
    without = sum(piece.length_ns for piece in pieces if not network.compute_row(piece.rank))
    assert sum(phase.idle_ns for phase in phases(network, pieces)) == idle - without
    if idle:
        assert abs(idle / (network.ranks * network.value_ns) - metrics(table).bubble) < 1e-12


@given(timetables())
def test_pieces_fill_exactly_what_no_operation_fills(table):
    network = Network.of(table)
    spans = {rank: list(window) for rank, window in enumerate(windows(network))}
    for rank, (start, end) in spans.items():
        parts = [(p.start_ns, p.end_ns) for p in idle_times(network) if p.rank == rank]
        parts += [
            (network.start(n), network.end(n)) for n in network.compute_row(rank) if network.end(n) > network.start(n)
        ]
        parts.sort()
        assert [a for a, _ in parts[1:]] == [b for _, b in parts[:-1]]
        assert not parts or (parts[0][0], parts[-1][1]) == (start, end)


def told(table):
    network = Network.of(table)
    return [bubble.text for bubble in bubbles(network, idle_times(network), most=100)]


def causes(table, rank):
    return by_cause(idle_times(Network.of(table)), rank)


ONE_BY_ONE = ("F0 X0 F1 X1", "F0 X0 F1 X1")


def test_an_order_that_waits_although_it_need_not():
    table = timed(problem(2, 2, objective="makespan"), *ONE_BY_ONE)
    # rank 0: F0 0-1, idle to 4, BW0 to 6, F1 to 7, idle to 10, BW1 to 12; rank 1: F0 1-2, BW0 to 4, F1 7-8, BW1 to 10
    assert causes(table, 0) == {Cause.ORDER: 3000, Cause.DATA: 3000}
    assert causes(table, 1) == {Cause.DATA: 4000, Cause.DONE: 2000}
    assert told(table) == [
        "rank 0 idles 3 us before BW0: keeps to its order: F1, ready and within memory, comes after BW0",
        "rank 0 idles 3 us before BW1: waits for BW1 of stage 1 on rank 1, which waits for F1 of stage 1 on rank 1, "
        "which waits for F1 of stage 0 on rank 0, which the order puts behind BW0",
        "rank 1 idles 3 us before F1: waits for F1 of stage 0 on rank 0, which the order puts behind BW0",
        "rank 1 idles 2 us at the end: nothing is left for it to do",
        "rank 1 idles 1 us before F0: waits for F0 of stage 0 on rank 0, which begins the iteration",
    ]


def test_the_same_order_where_memory_allows_no_other():
    table = timed(problem(2, 2, objective="makespan", memory_limit=2 << 20), *ONE_BY_ONE)
    assert causes(table, 0) == {Cause.MEMORY: 3000, Cause.DATA: 3000}
    assert (
        told(table)[0]
        == "rank 0 idles 3 us before BW0: waits for memory until BW0 ends: F1 is ready, but its 2 MiB do not fit"
    )
    assert (
        "rank 1 idles 3 us before F1: waits for F1 of stage 0 on rank 0, which waits for memory until BW0 ends"
        in told(table)
    )


def test_a_link_is_told_apart_from_what_is_sent_over_it():
    asked = problem(2, 1, objective="makespan", costs={"latency_ns": 300})
    table = timed(asked, "F0 X0", "F0 X0")
    assert causes(table, 1) == {Cause.DATA: 1000, Cause.LINK: 300, Cause.DONE: 2300}
    assert causes(table, 0) == {Cause.DATA: 3300, Cause.LINK: 300}
    assert told(table)[0].endswith("(300 ns of it on the link)")


def test_times_later_than_they_must_be_are_told_so():
    table = timed(problem(1, 1, objective="makespan"), "F0 X0")
    (forward, backward) = table.rows[0]
    late = Timetable(problem=table.problem, rows=((forward, TimedOp(backward.op, 1700, 3700)),))
    assert causes(late, 0) == {Cause.LATE: 700}
    assert told(late) == ["rank 0 idles 700 ns before BW0: could go on, but is planned to do so later"]


def test_a_period_wraps_around():
    # rank 1 has twice the work: rank 0 is ready for the next iteration and waits for its pace
    asked = problem(2, 2)
    stages = asked.profile.stages
    slow = replace(stages[1], forward_ns=2000, backward_input_ns=2000, backward_weight_ns=2000, backward_ns=4000)
    asked = replace(asked, profile=replace(asked.profile, stages=(stages[0], slow)))
    table = timed(asked, "F0 F1 B0 W0 B1 W1", "F0 B0 F1 B1 W0 W1")
    network = Network.of(table)
    assert network.value_ns == 12000
    last = [piece for piece in idle_times(network) if piece.wraps]
    assert {(piece.rank, piece.cause) for piece in last} == {(0, Cause.PACE)}
    assert last[0].end_ns == table.rows[0][0].start_ns + 12000
    assert any("is ready for it, but the period is longer" in text for text in told(table))


def test_phases_of_one_forward_one_backward():
    table = timed(problem(2, 3), "F0 F1 X0 F2 X1 X2", "F0 X0 F1 X1 F2 X2")
    network = Network.of(table)
    found = [(p.rank, p.name, sum(p.counts.values())) for p in phases(network, idle_times(network))]
    assert found == [
        (0, "warm-up", 2),
        (0, "steady state", 2),
        (0, "cool-down", 2),
        (1, "warm-up", 1),
        (1, "steady state", 4),
        (1, "cool-down", 1),
    ]
