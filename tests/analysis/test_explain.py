"""The answers put together, and what changes would gain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.drawn import one_f_one_b, problem, split_1f1b, timed
from zbsolve.analysis.critical import critical_path
from zbsolve.analysis.explain import explain
from zbsolve.analysis.network import Network
from zbsolve.analysis.proof import proof
from zbsolve.analysis.whatif import Effort, ask, questions
from zbsolve.check import violations
from zbsolve.errors import OrderError
from zbsolve.solution import Bound
from zbsolve.timetable import Timetable

EFFORT = Effort(work_limit=2000, workers=1)


def changes(table):
    network = Network.of(table)
    return {q.change: q.problem for q in questions(network, critical_path(network))}


def test_only_questions_that_make_sense_are_asked():
    assert list(changes(one_f_one_b(problem(2, 2)))) == ["as it is", "stage 1 10% lighter"] or list(
        changes(one_f_one_b(problem(2, 2)))
    ) == ["as it is", "stage 0 10% lighter"]
    limited = one_f_one_b(problem(2, 2, memory_limit="1x", costs={"latency_ns": 100}))
    names = list(changes(limited))
    assert names[:3] == ["as it is", "memory for one more microbatch, 2 MiB a rank", "links 2 times as fast"]
    assert names[3].endswith("10% lighter")


def test_each_question_changes_one_thing():
    asked = problem(2, 2, memory_limit="1x", costs={"latency_ns": 101, "output_bytes": 10, "bytes_per_second": 10**9})
    same, memory, link, stage = changes(one_f_one_b(asked)).values()
    assert same == asked
    assert memory.limit_bytes == tuple(limit + (2 << 20) for limit in asked.limit_bytes)
    assert memory.profile == asked.profile
    assert (link.profile.link.latency_ns, link.profile.link.bytes_per_second) == (50, 2 * 10**9)
    assert link.limit_bytes == stage.limit_bytes == asked.limit_bytes
    lighter = [s for s, (a, b) in enumerate(zip(asked.profile.stages, stage.profile.stages, strict=True)) if a != b]
    assert len(lighter) == 1
    cost = stage.profile.stages[lighter[0]]
    assert (cost.forward_ns, cost.backward_input_ns, cost.backward_weight_ns, cost.backward_ns) == (900, 900, 900, 1800)


def test_the_gain_of_memory_is_found_by_solving_again():
    table = timed(problem(2, 4, memory_limit=2 << 20), *("F0 X0 F1 X1 F2 X2 F3 X3",) * 2)
    network = Network.of(table)
    answers = ask(network, questions(network, critical_path(network)), EFFORT)
    same, memory = answers[:2]
    assert same.change == "as it is"
    assert same.value_ns is not None
    assert memory.value_ns is not None
    assert same.gain_ns == network.value_ns - same.value_ns >= 0
    assert memory.gain_ns == same.value_ns - memory.value_ns > 0
    assert all(answer.lower_bound_ns <= answer.value_ns for answer in answers)


def test_an_explanation_holds_everything():
    told = explain(split_1f1b(problem(3, 4)), what_if=EFFORT)
    assert sum(told.causes.values()) == 3 * told.network.value_ns - told.metrics.compute_ns
    assert told.path.value_ns == told.metrics.period_ns
    assert len(told.slack_ns) == len(told.network.timed)
    assert told.bubbles
    assert told.phases
    assert told.what_if[0].change == "as it is"
    assert explain(split_1f1b(problem(3, 4)), most_bubbles=1).what_if == ()


def test_a_recorded_bound_counts_where_it_is_no_weaker():
    network = Network.of(one_f_one_b(problem(2, 3)))
    computed = proof(network)
    assert computed.bound is not None
    assert not computed.recorded
    better = Bound(computed.bound.value_ns + 1, "rank-subset[0,1]")
    assert proof(network, better).bound == better
    assert "constraint solver" in proof(network, better).meaning
    assert proof(network, Bound(1, "load")) == computed
    assert proof(network, Bound(computed.bound.value_ns, "CP-SAT")).recorded


def test_nothing_fits_is_said():
    table = one_f_one_b(problem(2, 2, memory_limit=1))
    told = proof(Network.of(table))
    assert (told.bound, told.gap, told.meaning) == (None, None, "nothing fits the memory limit")


def test_what_is_no_order_is_refused():
    table = one_f_one_b(problem(2, 2))
    with pytest.raises(OrderError):
        explain(Timetable(problem=table.problem, rows=tuple(row[:-1] for row in table.rows)))


def test_a_limit_that_is_kept_stays_kept():
    table = one_f_one_b(problem(3, 4, memory_limit="1x"))
    assert not violations(table.problem, table)
    for changed in changes(table).values():
        assert not violations(replace(table.problem, memory_limit=changed.limit_bytes), table)
