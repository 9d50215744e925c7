import time

from tests.solver.instances import unequal
from zbsolve.opgraph import OpGraph
from zbsolve.solver.annealing import Cooling
from zbsolve.solver.crew import run_tasks
from zbsolve.solver.kernels import Arrays, period
from zbsolve.solver.list_scheduler import NEVER, Rule, list_schedule
from zbsolve.solver.pattern import Pattern
from zbsolve.solver.tasks import Anneal, Proof


def tasks(count: int, steps: int = 300) -> list[Anneal]:
    graph = OpGraph.build(unequal(microbatches=8, memory_limit="0.7x"))
    pattern = Pattern.fold(graph)
    rule = Rule(penalty=[0.0] * pattern.classes, in_flight=[NEVER] * pattern.classes)
    sequence, arrays = list_schedule(pattern, rule).sequence, Arrays.of(graph)
    return [
        Anneal(
            arrays=arrays,
            sequence=sequence,
            objective="period",
            cooling=Cooling(first_ns=0.01 * period(arrays, sequence)[0]),
            target_ns=0,
            seconds=None,
            steps=steps,
            seed=seed,
            method="annealing",
        )
        for seed in range(count)
    ]


def heard(work, workers, **given):
    out = []
    run_tasks(
        work,
        lambda number, find: out.append((number, find)),
        workers=workers,
        deadline=time.perf_counter() + 60,
        in_order=True,
        **given,
    )
    return out


def test_processes_hand_on_the_same_in_the_same_order():
    work = tasks(3)
    here, there = heard(work, 1), heard(work, 2)
    assert here == there
    assert [number for number, find in here if isinstance(find, Proof)] == [0, 1, 2]


def test_stop_ends_the_workers():
    out = []
    run_tasks(
        tasks(2, steps=10**9),
        lambda number, find: out.append(find),
        workers=2,
        deadline=time.perf_counter() + 60,
        in_order=False,
        stop=lambda: bool(out),
    )
    assert len(out) == 1


def test_a_worker_that_dies_takes_nothing_with_it():
    work = tasks(2)
    broken = Anneal(**{**{f: getattr(work[0], f) for f in work[0].__dataclass_fields__}, "sequence": [10**9]})
    out = heard([broken, work[1]], 2)
    assert [number for number, find in out if isinstance(find, Proof)] == [1]


def test_nothing_to_do():
    assert heard([], 2) == []
