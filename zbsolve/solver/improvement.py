"""Improving the pool: annealing from many of its orders, then longer from the best, and CP-SAT between."""

from __future__ import annotations

from zbsolve.solution import Bound
from zbsolve.solver.annealing import Cooling
from zbsolve.solver.budget import STEPS_PER_DETERMINISTIC_SECOND, Budget
from zbsolve.solver.crew import run_tasks
from zbsolve.solver.kernels import rows_of, sequence_of
from zbsolve.solver.node_sets import NodeSets
from zbsolve.solver.pool import Entry, Pool, fits
from zbsolve.solver.tasks import Anneal, Find, Found, Proof, Prove

__all__ = ["Improver"]

_TEMPERATURES = (0.008, 0.015, 0.004, 0.025)
"""Starting temperatures as parts of the value, in the order in which they are tried."""

_STARTS = 24
"""The most short annealing starts."""

_SHORTEST_S, _SHORTEST_STEPS = 0.25, 2_000
"""A short start below this is not worth its set-up."""

_CREW_S = 3.0
"""A phase shorter than this is over before worker processes have paid for their start."""

_CREW_STEPS = 8_000

_CPSAT_NODES = 3_000
"""Beyond this many operations CP-SAT does not get through its preparations."""

_CPSAT_S, _CPSAT_STEPS = 4.0, 5_000
"""In a share below this it does not either."""


class Improver:
    """Improves a pool by annealing and by CP-SAT.

    Parameters
    ----------
    pool
        Where orders come from and go to.
    node_sets
        Tells for which choices a proof holds.
    seed
        Of all runs; each derives its own.
    workers
        Processes, and threads of CP-SAT.
    gap
        A gap at which the search may stop.
    """

    def __init__(self, pool: Pool, node_sets: NodeSets, *, seed: int, workers: int, gap: float) -> None:
        self.pool = pool
        self.node_sets = node_sets
        self.seed = seed
        self.workers = workers
        self.gap = gap
        self._runs = 0

    def short_starts(self, budget: Budget) -> None:
        """Anneal briefly from orders spread over the pool, more of them among the best."""
        steps = budget.steps_left
        count = int(budget.seconds_left * self.workers / _SHORTEST_S) if steps is None else steps // _SHORTEST_STEPS
        count = max(1, min(_STARTS, count))
        entries = self.pool.entries
        picked = [entries[int(len(entries) * (i / count) ** 2)] for i in range(count)]
        self._anneal(picked, budget, "annealing, short start")

    def long_runs(self, budget: Budget, rounds: int) -> None:
        """Anneal again and again from the best few orders."""
        for left in range(rounds, 0, -1):
            if budget.over or self.pool.incumbent.done:
                return
            best = self.pool.entries[:3]
            picked = [best[i % len(best)] for i in range(max(2, self.workers))]
            self._anneal(picked, budget.part(1 / left), "annealing, long run")

    def _anneal(self, picked: list[Entry], budget: Budget, method: str) -> None:
        steps = budget.steps_left
        small = budget.seconds_left < _CREW_S if steps is None else steps < _CREW_STEPS
        workers = 1 if small else min(self.workers, len(picked))
        waves = -(-len(picked) // workers)
        tasks = []
        for entry in picked:
            part = _TEMPERATURES[self._runs % len(_TEMPERATURES)]
            self._runs += 1
            tasks.append(
                Anneal(
                    arrays=entry.arrays,
                    sequence=entry.sequence,
                    objective=self.pool.problem.objective,
                    cooling=Cooling(first_ns=part * entry.value_ns),
                    target_ns=self._target(),
                    seconds=budget.seconds_left / waves if steps is None else None,
                    steps=None if steps is None else max(1, steps // len(picked)),
                    seed=self.seed + 7919 * self._runs,
                    method=method,
                )
            )
        best: dict[int, Found] = {}

        def hand(number: int, find: Find) -> None:
            task = tasks[number]
            if isinstance(find, Found):
                best[number] = find
                entry = Entry(find.value_ns or 0, task.arrays, find.sequence, method)
                self.pool.incumbent.offer(entry.value_ns, lambda: entry.order, method)
            elif isinstance(find, Proof):
                budget.spend(find.steps)

        run_tasks(
            tasks,
            hand,
            workers=workers,
            deadline=budget.deadline,
            in_order=steps is not None,
            stop=lambda: self.pool.incumbent.done,
        )
        for number in sorted(best):
            self.pool.add(tasks[number].arrays, best[number].sequence, method, best[number].value_ns)

    def _target(self) -> int:
        return int(self.pool.incumbent.bound.value_ns * (1 + self.gap))

    def cpsat(self, budget: Budget) -> None:
        """Hand the best order to CP-SAT, in a process of its own."""
        entry = self.pool.entries[0]
        steps = budget.steps_left
        short = budget.seconds_left < _CPSAT_S if steps is None else steps < _CPSAT_STEPS
        if short or len(entry.sequence) > _CPSAT_NODES:
            return
        task = Prove(
            arrays=entry.arrays,
            sequence=entry.sequence,
            objective=self.pool.problem.objective,
            value_ns=entry.value_ns,
            bound_ns=self.pool.incumbent.bound.value_ns,
            seconds=None,
            deterministic=None if steps is None else steps / STEPS_PER_DETERMINISTIC_SECOND,
            workers=self.workers,
            seed=self.seed,
            method="CP-SAT",
        )

        def hand(_: int, find: Find) -> None:
            if isinstance(find, Proof):
                budget.spend(int(find.deterministic * STEPS_PER_DETERMINISTIC_SECOND))
            if not isinstance(find, Found):
                self._prove(task, find.bound_ns)
                return
            sequence = sequence_of(task.arrays, rows_of(task.arrays, find.sequence))
            if sequence is not None and fits(task.arrays, sequence):
                self.pool.add(task.arrays, sequence, task.method)

        run_tasks(
            [task],
            hand,
            workers=1,
            deadline=budget.deadline,
            in_order=steps is not None,
            isolated=True,
            stop=lambda: self.pool.incumbent.done,
        )

    def _prove(self, task: Prove, bound_ns: int) -> None:
        """Take a bound over, if it holds for every choice of fused and split, not for this one's alone."""
        if self.node_sets.speaks_for_all(task.arrays.graph):
            self.pool.incumbent.prove(Bound(bound_ns, "CP-SAT"))
