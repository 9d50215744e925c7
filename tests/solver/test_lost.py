"""A piece of the search that is lost is told: as it happens, in the solution and in its file."""

import os
import signal

from tests.solver.instances import unequal
from zbsolve.cli._output import Output
from zbsolve.cli._progress import progress_on_stderr
from zbsolve.files import read_solution_record, write_timetable
from zbsolve.solver import crew, driver, solve
from zbsolve.solver.tasks import Scan


def killing(monkeypatch):
    """Kill the worker of the first random list schedules."""
    killed = []

    class Fatal(crew.Processes):
        def submit(self, task, until):
            number = super().submit(task, until)
            if isinstance(task, Scan) and not killed:
                (worker,) = (each for each in self._workers if each.task == number)
                os.kill(worker.process.pid, signal.SIGKILL)
                killed.append(number)
            return number

    monkeypatch.setattr(driver, "Processes", Fatal)
    return killed


def test_a_killed_worker_is_told_and_stands_in_the_file(monkeypatch, tmp_path, capsys):
    killed = killing(monkeypatch)
    problem = unequal(microbatches=12, memory_limit="0.75x")
    with progress_on_stderr(Output()) as listener:
        solution = solve(problem, work_limit=30_000, time_limit_s=100, workers=2, on_progress=listener)
    told = "list scheduler, random rule: its worker was ended by SIGKILL"
    assert killed
    assert solution.lost == (told,)
    assert told in str(solution)
    assert [line.split("  ")[1] for line in capsys.readouterr().err.splitlines() if "lost" in line] == [
        f"lost: {told}; the search goes on"
    ]
    write_timetable(tmp_path / "t.json", solution)
    assert read_solution_record(tmp_path / "t.json").lost == (told,)


def test_where_nothing_is_lost_the_file_does_not_speak_of_it(tmp_path):
    solution = solve(unequal(microbatches=4), work_limit=100, time_limit_s=100, workers=1)
    write_timetable(tmp_path / "t.json", solution)
    assert solution.lost == ()
    assert b'"lost"' not in (tmp_path / "t.json").read_bytes()
