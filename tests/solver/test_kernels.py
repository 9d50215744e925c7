from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import problems, random_order
from tests.test_simulate import pushing_in_turn
from zbsolve.metrics import peak_bytes
from zbsolve.opgraph import OpGraph
from zbsolve.simulate import Timer
from zbsolve.solver.kernels import Arrays, fits, makespan, period, rows_of, sequence_of


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_light_timing_agrees_with_the_timer(data):
    problem = data.draw(problems())
    order = random_order(problem, data.draw(st.integers(0, 999)))
    graph = OpGraph.build(problem, order.rows)
    arrays = Arrays.of(graph)
    rows = [row.tolist() for row in graph.encode(order)]
    sequence = sequence_of(arrays, rows)
    timer = Timer(graph, graph.encode(order))
    assert rows_of(arrays, sequence) == rows
    assert makespan(arrays, sequence) == timer.makespan().value_ns
    value, release = period(arrays, sequence)
    assert value == timer.period().value_ns
    guess = data.draw(st.lists(st.integers(0, 50), min_size=arrays.ranks, max_size=arrays.ranks))
    assert period(arrays, sequence, guess)[0] == value
    assert period(arrays, sequence, release)[0] == value


def test_ranks_that_push_each_other_on_in_turn_do_not_do_so_for_ever():
    graph, rows = pushing_in_turn()
    arrays = Arrays.of(graph)
    sequence = sequence_of(arrays, [row.tolist() for row in rows])
    assert period(arrays, sequence)[0] == Timer(graph, rows).period().value_ns


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_memory_of_a_sequence_agrees_with_the_peaks(data):
    problem = data.draw(problems(limits=True))
    order = random_order(problem, data.draw(st.integers(0, 999)))
    graph = OpGraph.build(problem, order.rows)
    arrays = Arrays.of(graph)
    rows = graph.encode(order)
    sequence = sequence_of(arrays, [row.tolist() for row in rows])
    within = all(peak <= limit for peak, limit in zip(peak_bytes(graph, rows), arrays.limit, strict=True))
    assert fits(arrays, sequence) == within


def test_rows_that_wait_for_each_other_have_no_sequence():
    from tests.solver.instances import unequal

    graph = OpGraph.build(unequal(microbatches=1))
    arrays = Arrays.of(graph)
    backward_first = [sorted(row, key=lambda n: -n) for row in rows_of(arrays, list(range(len(graph))))]
    assert sequence_of(arrays, backward_first) is None
