"""The fuzz tool notices what it is there to notice, and its oracle agrees with the other one."""

from __future__ import annotations

import dataclasses
import json
import random
import sys

import pytest

from benchmarks.fuzz import __main__ as fuzz
from benchmarks.fuzz.judge import judge
from benchmarks.fuzz.oracle import Reading, best_within
from benchmarks.fuzz.shapes import KINDS, draw
from tests.oracle import objective_of, optimum, tiny_problem
from tests.strategies import random_order
from zbsolve import bounds
from zbsolve.check import violations
from zbsolve.metrics import metrics
from zbsolve.simulate import simulate
from zbsolve.solver import windows


def faults(kind, seed, count, deep=0.0):
    found = []
    for number in range(count):
        rng = random.Random(f"{kind} {seed} {number}")
        found += judge(draw(kind, rng), rng, seconds=20.0, deep=deep).faults
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_judged_without_a_fault(kind):
    assert faults(kind, 0, 2) == []


def test_all_parts_are_looked_at_by_themselves():
    assert faults("tight and long", 0, 2, deep=1.0) == []


def test_a_formula_that_is_too_high_is_noticed(monkeypatch):
    true = bounds.two_phase
    monkeypatch.setattr(bounds, "two_phase", lambda rank: true(rank) + 2)
    found = faults("any", 1, 8)
    assert any(fault.startswith("holds: two-phase") for fault in found)
    assert any("above what is attained" in fault or fault.startswith("the bound of the answer") for fault in found)


def test_a_prefix_or_suffix_that_is_too_high_is_noticed(monkeypatch):
    true = windows.refute

    def too_high(*given):
        answer, step = true(*given)
        return dataclasses.replace(answer, least=answer.least + 1), step

    monkeypatch.setattr(windows, "refute", too_high)
    found = faults("tight and long", 1, 4, deep=1.0)
    assert any("by itself" in fault for fault in found)


def test_an_answer_that_is_called_infeasible_is_noticed(monkeypatch):
    monkeypatch.setattr(bounds, "refuse_infeasible", lambda costs: None)
    assert faults("nothing fits", 0, 6)


def test_both_oracles_agree():
    rng = random.Random("oracles")
    agreed = 0
    while agreed < 40:
        problem = tiny_problem(rng, rng.choice((None, -1, 0, 2, 4)), sizes=((1, 3), (2, 2), (2, 2), (3, 2)))
        if len(problem.allow) == 2 and problem.microbatches > 2:
            continue
        true, reading = optimum(problem), Reading(problem)
        found = best_within(reading, 10**6, seconds=60.0, any_turn=bool(agreed % 2))
        assert found.certain
        assert (found.rows is None) == (true is None)
        if true is not None:
            assert reading.value(found.rows) == true[0] == found.value_ns
            assert objective_of(problem, reading.order(found.rows)) == true[0]
            assert not reading.fault(found.rows)
        agreed += 1


@pytest.mark.parametrize("kind", ["several chunks", "several routes", "links", "workspace"])
def test_the_third_statement_of_the_rules_agrees_with_the_other_two(kind):
    for seed in range(15):
        problem = draw(kind, random.Random(seed))
        problem = dataclasses.replace(problem, allow=frozenset({"split", "fused"}))
        reading, order = Reading(problem), random_order(problem, seed)
        rows = reading.rows(order)
        timetable = simulate(problem, order)
        value = timetable.period_ns if problem.objective == "period" else timetable.makespan_ns
        assert reading.value(rows) == value
        assert reading.peaks(rows) == list(metrics(timetable).peak_bytes)
        assert bool(reading.fault(rows)) == bool(violations(problem, order))
        assert reading.order(rows) == order


def test_a_log_is_gone_on_with(tmp_path, monkeypatch, capsys):
    log = tmp_path / "log"

    def run(problems):
        monkeypatch.setattr(sys, "argv", ["fuzz", "--problems", str(problems), "--only", "one rank", "--log", str(log)])
        assert fuzz.main() == 0
        return capsys.readouterr().out

    run(2)
    first = log.read_text()
    assert "3 problems, 0 with faults" in run(3)
    assert log.read_text().startswith(first)
    assert [json.loads(line)["number"] for line in log.read_text().splitlines()] == [0, 1, 2]
