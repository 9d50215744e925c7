"""Published schedules beside the solved one, and what those that do not fit would need."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from tests.strategies import problems, random_order
from zbsolve.analysis.compare import SOLVED, compare, needed_factor, published, row_of
from zbsolve.errors import InvalidInput
from zbsolve.metrics import metrics
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Profile
from zbsolve.simulate import simulate
from zbsolve.solver import solve


def asked(limit="0.75x", **sizes) -> Problem:
    costs = {"activation_bytes": 8, "backward_weight_bytes": 4, "static_bytes": 5, **sizes}
    profile = Profile.uniform(4, forward_ns=1000, backward_input_ns=1000, backward_weight_ns=1000, **costs)
    return Problem(profile=profile, placement=Placement.linear(4), microbatches=8, memory_limit=limit)


def test_what_does_not_fit_says_what_it_needs():
    rows = {row.schedule: row for row in compare(asked())}
    assert rows["naive"].fit_text == "yes"
    assert rows["1f1b"].fit_text == "does not fit: needs 1x"
    assert rows["gpipe"].fit_text == "does not fit: needs 2x"
    assert rows["1f1b"].gap is None
    assert rows["naive"].gap > 0


def test_where_no_factor_helps_bytes_are_told():
    rows = {row.schedule: row for row in compare(asked("1x", activation_bytes=0, workspace_bytes=2**20))}
    assert rows["1f1b"].fit_text == "does not fit: needs 1 MiB"


def test_a_limit_in_bytes_is_answered_in_bytes():
    rows = {row.schedule: row for row in compare(asked("29B"))}
    assert rows["1f1b"].fit_text == "does not fit: needs 37 B (1x)"
    apart = {row.schedule: row.needs for row in compare(asked((28, 100, 100, None)), names=["1f1b", "gpipe"])}
    assert apart == {"1f1b": "37 B (1x)", "gpipe": "69 B (2x)"}
    close = {row.schedule: row.needs for row in compare(asked(4 * 2**20 + 4, activation_bytes=2**20), names=["1f1b"])}
    assert close == {"1f1b": "4194309 bytes (1x)"}
    mixed = {row.schedule: row.needs for row in compare(asked(("0.5x", 100, 100, 100)), names=["1f1b"])}
    assert mixed == {"1f1b": "1x"}


@given(problems())
def test_the_factor_holds_the_peaks_and_a_hundredth_less_does_not(problem):
    timetable = simulate(problem, random_order(problem, 3))
    found = metrics(timetable)
    factor = needed_factor(problem, found)
    if factor is None:
        return

    def holds(times):
        return row_of("it", replace(timetable, problem=replace(problem, memory_limit=f"{times}x"))).fits

    assert holds(factor)
    hundredth = type(factor)("0.01")
    assert factor == 0 or not holds(factor - hundredth)


def test_what_the_solver_found_comes_last_and_gives_the_bound():
    problem = asked()
    solution = solve(problem, work_limit=500, workers=1)
    rows = compare(problem, solution, names=["1f1b", "zb-h1"])
    assert [row.schedule for row in rows] == ["1f1b", "zb-h1", SOLVED]
    assert {row.bound.value_ns for row in rows} == {solution.lower_bound_ns}
    assert rows[-1].gap == pytest.approx(solution.gap)


def test_conditions_that_fail_are_told_by_name():
    _, left_out = published(asked())
    assert "zb-v" in left_out
    with pytest.raises(InvalidInput, match="no schedule 'nonesuch'"):
        published(asked(), ["nonesuch"])
