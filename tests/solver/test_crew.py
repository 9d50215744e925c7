import os
import signal
import time

import pytest

from tests.solver.instances import unequal
from zbsolve.solver import crew as crew_module
from zbsolve.solver.case import Case
from zbsolve.solver.compiled import plain
from zbsolve.solver.crew import InLine, Processes
from zbsolve.solver.tasks import Done, Length, Publish, Scan


def scans(count: int, steps: int = 3000) -> list[Scan]:
    return [Scan(plain=False, length=Length(steps=steps), seed=seed, keep=5, target_ns=0) for seed in range(count)]


def case() -> Case:
    return Case(unequal(microbatches=8, memory_limit="0.7x"), plain())


def heard(crew, count: int):
    out, done = [], 0
    while done < count:
        event = crew.hear(60)
        assert event is not None
        number, find = event
        done += isinstance(find, Done)
        out.append((number, find))
    return out


def told(events):
    return [(n, f if isinstance(f, Done) else (f.value_ns, f.sequence.tolist(), f.fused.tolist())) for n, f in events]


def work(crew, tasks):
    try:
        for task in tasks:
            crew.submit(task, time.perf_counter() + 60)
        return heard(crew, len(tasks))
    finally:
        crew.end()


def test_processes_hand_on_the_same_in_the_same_order():
    here = work(InLine(case(), 2), scans(4))
    there = work(Processes(case(), 2, in_order=True), scans(4))
    assert told(here) == told(there)
    assert [number for number, find in here if isinstance(find, Done)] == [1, 2, 3, 4]


def test_a_worker_that_is_killed_costs_its_task_alone():
    crew = Processes(case(), 2, in_order=False)
    try:
        crew.submit(scans(1, steps=10**9)[0], time.perf_counter() + 60)
        os.kill(crew._workers[0].process.pid, signal.SIGKILL)
        (number, find), *_ = [e for e in heard(crew, 1) if isinstance(e[1], Done)]
        assert number == 1
        assert find.lost
        crew.submit(scans(1)[0], time.perf_counter() + 60)
        assert not heard(crew, 1)[-1][1].lost
    finally:
        crew.end()


def test_a_worker_that_does_not_come_back_is_given_up(monkeypatch):
    monkeypatch.setattr(crew_module, "_GRACE_S", 0.3)
    crew = Processes(case(), 1, in_order=False)
    try:
        worker = crew._workers[0]
        crew.submit(scans(1, steps=10**9)[0], time.perf_counter() + 0.3)
        os.kill(worker.process.pid, signal.SIGSTOP)
        assert heard(crew, 1)[-1][1].lost
        assert worker.process.poll() is not None
    finally:
        crew.end()


def test_where_workers_keep_dying_the_rest_is_lost_and_nothing_hangs(monkeypatch):
    monkeypatch.setattr(crew_module, "_REPLACED", 1)
    crew = Processes(case(), 1, in_order=True)
    try:
        for task in scans(3, steps=10**9):
            crew.submit(task, time.perf_counter() + 60)
        lost = 0
        while lost < 3:
            for worker in crew._workers:
                worker.process.kill()
            event = crew.hear(5)
            lost += event is not None and isinstance(event[1], Done) and event[1].lost
    finally:
        crew.end()


def test_an_unwritable_cache_is_no_obstacle(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert crew_module.cache_folder() is None
    crew = Processes(case(), 1, in_order=True)
    folder = crew._folder
    assert folder.exists()
    crew.end()
    assert not folder.exists()


@pytest.mark.parametrize("crew", [InLine])
def test_nothing_to_do(crew):
    assert crew(case(), 1).hear(0) is None


def test_without_workers_every_task_is_lost_at_once(monkeypatch):
    monkeypatch.setattr(crew_module, "_REPLACED", 0)
    crew = Processes(case(), 1, in_order=False)
    try:
        os.kill(crew._workers[0].process.pid, signal.SIGKILL)
        for task in scans(2):
            crew.submit(task, time.perf_counter() + 60)
        assert [find.lost for _, find in heard(crew, 2)] == [True, True]
        crew.submit(scans(1)[0], time.perf_counter() + 60)
        assert [find.lost for _, find in heard(crew, 1)] == [True]
    finally:
        crew.end()


def test_how_a_worker_ended_is_said():
    crew = Processes(case(), 1, in_order=False)
    try:
        crew.submit(scans(1, steps=10**9)[0], time.perf_counter() + 60)
        os.kill(crew._workers[0].process.pid, signal.SIGKILL)
        assert heard(crew, 1)[-1][1].why == "its worker was ended by SIGKILL"
    finally:
        crew.end()


def test_what_raises_in_a_worker_costs_its_task_alone_and_is_said():
    crew = Processes(case(), 1, in_order=False)
    try:
        worker = crew._workers[0]
        crew.submit(Publish("no such schedule"), time.perf_counter() + 60)
        crew.submit(scans(1)[0], time.perf_counter() + 60)
        raised, fine = (find for _, find in heard(crew, 2) if isinstance(find, Done))
        assert raised.why.startswith("it raised InvalidInput: ")
        assert "no such schedule" in raised.why
        assert not fine.lost
        assert crew._workers == [worker]
    finally:
        crew.end()
