"""However short the time, no published schedule that fits is better than the answer."""

import os
import signal

import pytest

from tests.solver.instances import instance, unequal
from zbsolve.catalog import baseline, schedules
from zbsolve.check import violations
from zbsolve.errors import ScheduleConditionError
from zbsolve.simulate import simulate
from zbsolve.solution import Bound
from zbsolve.solver import crew, driver, solve
from zbsolve.solver.budget import Budget
from zbsolve.solver.case import Case
from zbsolve.solver.compiled import holds_all, plain
from zbsolve.solver.director import Director
from zbsolve.solver.incumbent import Incumbent
from zbsolve.solver.pool import Pool
from zbsolve.solver.tasks import Done, Publish


def best_published(problem):
    values = []
    for schedule in schedules():
        try:
            timetable = simulate(problem, baseline(schedule.name, problem))
        except ScheduleConditionError:
            continue
        if not violations(problem, timetable):
            values.append(timetable.period_ns if problem.objective == "period" else timetable.makespan_ns)
    return min(values)


@pytest.mark.parametrize("objective", ["period", "makespan"])
def test_many_operations_and_hardly_any_time(objective):
    problem = instance("unit-p8-m24", "1x", microbatches=255, objective=objective)
    assert solve(problem, time_limit_s=0.05, workers=2).value_ns <= best_published(problem)


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_build_published_schedules_without_compiled_kernels(monkeypatch, tmp_path, workers):
    monkeypatch.setattr(driver, "_LARGE_FOR_ONE", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # nothing is compiled yet
    problem = unequal(microbatches=20, memory_limit="1x")
    assert solve(problem, time_limit_s=0.05, workers=workers).value_ns <= best_published(problem)
    assert not list(tmp_path.rglob("*.nbi"))


def test_a_folder_with_some_kernels_does_not_pass_for_one_with_all(tmp_path):
    (tmp_path / "listing.list_schedule-229.py311.nbi").touch()
    assert not holds_all(tmp_path)
    for number in range(len(plain()) - 1):
        (tmp_path / f"{number}.nbi").touch()
    assert holds_all(tmp_path)


def test_a_published_schedule_is_built_again_if_its_worker_dies(monkeypatch):
    killed = []

    class Fatal(crew.Processes):
        def submit(self, task, until):
            number = super().submit(task, until)
            if isinstance(task, Publish) and not killed:
                killed.append(task.name)
                os.kill(self._workers[-1].process.pid, signal.SIGKILL)
            return number

    monkeypatch.setattr(driver, "_LARGE_FOR_ONE", 0)
    monkeypatch.setattr(driver, "Processes", Fatal)
    problem = unequal(microbatches=20, memory_limit="1x")
    assert solve(problem, time_limit_s=0.05, workers=1).value_ns <= best_published(problem)
    assert killed


def test_what_kills_every_worker_is_not_tried_for_ever():
    pool = Pool(Case(unequal(microbatches=4), plain()), Incumbent(Bound(0, "none"), 0.0, 0.0, None))
    director = Director(pool, Budget(1e18, None), size=1, seed=0, gap=0.0)
    director.open_with([Publish("1f1b")])
    for _ in range(20):
        if not director.opening:
            break
        director.absorb(director.next(), Done(why="its worker was ended by SIGKILL"))
    assert not director.opening
