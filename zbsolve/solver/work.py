"""A crew kept at work by a director until proof or budget ends it."""

from __future__ import annotations

import time
from types import TracebackType

from zbsolve.solver.crew import Crew, Processes
from zbsolve.solver.director import Director, Pending
from zbsolve.solver.tasks import Done, Warm

__all__ = ["Work"]

_PATIENCE_S, _PATIENCE_A_NODE_S = 60.0, 2e-3
"""Seconds, and seconds an operation, after which a worker that builds a published schedule is given up."""

_LISTEN_S = 1.0
"""Seconds between two looks at what is still to be done whatever the time."""


class Work:
    """Hands tasks out and takes finds in; a context that ends the crew.

    Parameters
    ----------
    director
        Says what is next.
    crew
        Does it. The first of its processes loads the compiled kernels, or compiles them where no run before
        has; the others do meanwhile what needs none, and load them then.

    Attributes
    ----------
    warm
        False if the kernels have to be compiled.
    """

    def __init__(self, director: Director, crew: Crew) -> None:
        self.director = director
        self.crew = crew
        self.warm = True
        self._pending: dict[int, Pending] = {}
        self._warming: int | None = None
        self._cold = False
        if isinstance(crew, Processes):
            self.warm = crew.compiled
            director.proposals.warm = False
            self._cold = True
            if self.warm or not director.opening:
                self._warm_up()

    def _warm_up(self) -> None:
        """Where kernels must be compiled, that waits until what opens the search is handed out."""
        self._cold = False
        self._warming = self.crew.submit(Warm(), self.director.budget.deadline)

    def __enter__(self) -> Work:
        self._hand_out()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.crew.end()

    def _hand_out(self) -> None:
        director = self.director
        patience = _PATIENCE_S + _PATIENCE_A_NODE_S * director.pool.case.nodes
        while len(self._pending) < max(1, self.crew.size - (self._warming is not None)):
            if director.budget.over and not director.opening:
                return
            task = director.next()
            if task is None:
                return
            until = director.budget.deadline
            if task.opens:
                until = max(until, time.perf_counter() + patience)
            self._pending[self.crew.submit(task.task, until)] = task
            if self._cold and not director.opening:
                self._warm_up()

    @property
    def _opening(self) -> bool:
        """True while something is to be done whatever the time."""
        return bool(self.director.opening) or any(task.opens for task in self._pending.values())

    def go_on(self) -> None:
        """Work until proof, budget, or nothing left to do; what opens the search is done whatever the budget."""
        budget, incumbent = self.director.budget, self.director.pool.incumbent
        if not self.warm:
            incumbent.tell("compiling the search kernels, once on this machine")
        while not incumbent.done and (self._opening or not budget.over):
            self._hand_out()
            if self._warming is None and not self._pending:
                return
            heard = self.crew.hear(_LISTEN_S if self._opening else budget.seconds_left)
            if heard is None:
                continue
            number, find = heard
            if number == self._warming:
                if isinstance(find, Done) and find.lost:
                    incumbent.miss("loading the search kernels", find.why)
                self._warming, self.director.proposals.warm = None, True
                if isinstance(self.crew, Processes):
                    self.crew.compiled = True
                continue
            self.director.absorb(self._pending[number], find)
            if isinstance(find, Done):
                del self._pending[number]
