"""Sweeps: monotone, the same however many jobs, resumable, and honest where nothing fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zbsolve.analysis.processes import Crew
from zbsolve.analysis.sweep import SweepOutcome, SweepPoint, chains, neighbours_help, sweep
from zbsolve.analysis.whatif import Effort
from zbsolve.check import violations
from zbsolve.errors import InvalidInput, RunError
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Profile, StageCost

EFFORT = Effort(time_limit_s=60, work_limit=300, seed=1)

STAGES = tuple(
    StageCost(
        forward_ns=1000 + 130 * s,
        backward_input_ns=1100,
        backward_weight_ns=900 - 60 * s,
        activation_bytes=10,
        backward_weight_bytes=6,
    )
    for s in range(4)
)


def point(memory: str, microbatches: int = 6, placement: Placement | None = None, name: str = "linear") -> SweepPoint:
    limit = None if memory == "unlimited" else memory
    problem = Problem(
        profile=Profile(stages=STAGES),
        placement=placement or Placement.linear(4),
        microbatches=microbatches,
        memory_limit=limit,
    )
    return SweepPoint(placement=name, memory=memory, problem=problem)


GRID = [point(memory) for memory in ("1x", "0.1x", "0.5x", "0.75x", "unlimited")]
GRID += [point(memory, placement=Placement.v(2), name="v") for memory in ("0.5x", "1x")]


def facts(outcomes: tuple[SweepOutcome, ...]) -> list[object]:
    return [(o.point.memory, o.status, o.solution and replace(o.solution, seconds=0.0)) for o in outcomes]


def test_more_memory_is_never_worse_and_bounds_hold_downwards():
    outcomes = sweep(GRID, EFFORT)
    assert [o.point for o in outcomes] == GRID
    for o in outcomes:
        if o.solution is not None:
            assert violations(o.point.problem, o.solution.timetable, claimed_ns=o.solution.value_ns) == ()
            assert o.solution.lower_bound_ns <= o.solution.value_ns
    linear = {o.point.memory: o for o in outcomes[:5]}
    assert linear["0.1x"].status == "infeasible"
    line = [linear[m].solution for m in ("0.5x", "0.75x", "1x", "unlimited")]
    values, bounds = [s.value_ns for s in line], [s.lower_bound_ns for s in line]
    assert values == sorted(values, reverse=True)
    assert bounds == sorted(bounds, reverse=True)


def test_jobs_change_nothing():
    assert facts(sweep(GRID, EFFORT, jobs=2)) == facts(sweep(GRID, EFFORT, jobs=1))


@pytest.mark.parametrize("after", [0, 1, 3, 5])
def test_interrupted_and_continued_gives_the_same(after):
    whole = facts(sweep(GRID, EFFORT))
    kept = {}

    def note(outcome: SweepOutcome) -> None:
        if len(kept) == after:
            raise KeyboardInterrupt
        if outcome.solution is not None:
            kept[outcome.solution.digest] = outcome.solution

    with pytest.raises(KeyboardInterrupt):
        sweep(GRID, EFFORT, on_outcome=note)
    assert len(kept) == after
    assert facts(sweep(GRID, EFFORT, known=kept)) == whole


def test_what_is_known_is_not_solved_again(monkeypatch):
    known = {o.solution.digest: o.solution for o in sweep(GRID, EFFORT) if o.solution is not None}
    monkeypatch.setattr("zbsolve.solver.solve", None)
    feasible = [p for p in GRID if p.memory != "0.1x"]
    assert len(sweep(feasible, EFFORT, known=known)) == len(feasible)


def test_chains_run_over_memory_or_else_over_microbatches():
    several = chains([point(memory, m) for m in (8, 4) for memory in ("2x", "1x", "unlimited")])
    assert [[p.memory for p in chain] for chain in several] == [["1x", "2x", "unlimited"]] * 2
    single = chains([point("1x", m) for m in (8, 4, 6)])
    assert [[p.problem.microbatches for p in chain] for chain in single] == [[4, 6, 8]]


def test_over_microbatches():
    outcomes = sweep([point("0.75x", m) for m in (4, 6, 8)], EFFORT)
    values = [o.solution.value_ns for o in outcomes]
    assert values == sorted(values)


def test_the_same_point_twice_is_refused():
    with pytest.raises(InvalidInput, match="are the same: linear, 6 microbatches, memory 1x"):
        chains([point("1x"), replace(point("1x"), memory="1.0x")])


def test_a_timetable_found_with_more_memory_counts_where_it_fits_less():
    less, more = sweep([point("0.75x"), point("1x")], EFFORT)
    bad = replace(less.solution, value_ns=10 * less.solution.value_ns)
    small = replace(more.solution, metrics=replace(more.solution.metrics, peak_bytes=less.solution.metrics.peak_bytes))
    helped = neighbours_help([replace(less, solution=bad), replace(more, solution=small)])[0]
    assert helped.solution.value_ns == more.solution.value_ns
    assert helped.solution.timetable.problem == less.point.problem
    large = replace(more, solution=replace(more.solution, metrics=replace(small.metrics, peak_bytes=(99,) * 4)))
    assert neighbours_help([replace(less, solution=bad), large])[0].solution.value_ns == bad.value_ns


def test_a_process_that_dies_is_an_error():
    with Crew(2) as crew:
        crew.submit(1, _die)
        with pytest.raises(RunError, match="has died"):
            crew.hear()


def test_what_a_call_raises_comes_back():
    with Crew(2) as crew:
        crew.submit(7, max, 3, 4)
        assert crew.hear() == (7, 4)
        crew.submit(8, int, "x")
        with pytest.raises(ValueError, match="invalid literal"):
            crew.hear()


def _die() -> None:
    import os

    os._exit(1)
