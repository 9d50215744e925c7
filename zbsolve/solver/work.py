"""A crew kept at work by a director until proof or budget ends it."""

from __future__ import annotations

from types import TracebackType

from zbsolve.solver.crew import Crew, Processes
from zbsolve.solver.director import Director, Pending
from zbsolve.solver.tasks import Done, Warm

__all__ = ["Work"]


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
        if isinstance(crew, Processes):
            self.warm = crew.warm
            self._warming = crew.submit(Warm(), director.budget.deadline)
        director.warm = self._warming is None

    def __enter__(self) -> Work:
        self._hand_out()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.crew.end()

    def _hand_out(self) -> None:
        while len(self._pending) < max(1, self.crew.size - (self._warming is not None)):
            task = self.director.next()
            if task is None:
                return
            self._pending[self.crew.submit(task.task, self.director.budget.deadline)] = task

    def go_on(self) -> None:
        """Work until proof, budget, or nothing left to do."""
        budget, incumbent = self.director.budget, self.director.pool.incumbent
        if not self.warm:
            incumbent.tell("compiling the search kernels, once on this machine")
        while not (incumbent.done or budget.over):
            self._hand_out()
            if self._warming is None and not self._pending:
                return
            heard = self.crew.hear(budget.seconds_left)
            if heard is None:
                return
            number, find = heard
            if number == self._warming:
                self._warming, self.director.warm = None, True
                continue
            self.director.absorb(self._pending[number], find)
            if isinstance(find, Done):
                del self._pending[number]
