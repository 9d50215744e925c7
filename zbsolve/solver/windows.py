"""Bounds from stretches of few microbatches: short ones are proven first, longer ones from them.

Let m microbatches run first in, first out, on one route. With the F's of one stage as marks,

- P(h), the *prefix* of h, is the least time from the start of its F number j to that of F number j + h,
- S(h), the *suffix* of h, the least time from the start of F of the last h microbatches to the end of the
  iteration: on the first rank for the period, on all ranks for the makespan,

each with all other microbatches left out, so that it holds of every stretch. Hence

    value >= way from the first rank to the marked one + P(h1) + P(h2) + ... + S(h)      for h1 + h2 + ... + h = m.

Each P and S is found by CP-SAT on a model of h microbatches that is told all the shorter ones. That is
what makes it work: where memory is tight, ranks block each other when one microbatch comes down as
another goes up, and this shows in stretches of a few more microbatches than fit at once; a solver that
sees only the whole finds it out anew at every place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from zbsolve.solver.line import Line
from zbsolve.solver.line_answers import Limits, refute
from zbsolve.solver.line_model import Question

__all__ = ["Windows", "climb"]

_FIRST_STEP = 200
"""What part of the least it is first tried to raise it by."""

_FIRST_PATIENCE = 0.1
"""Deterministic time for one question in the first round."""


@dataclass(eq=False)
class Windows:
    """Proven prefixes and suffixes of one line, by size, and which of them are final.

    Parameters
    ----------
    line
        The line.
    value
        A value that some timetable has, in units; stretches that take longer are of no interest.
    kept
        The stages to keep exactly.
    mark
        The stage whose F's are counted.
    """

    line: Line
    value: int
    kept: tuple[int, ...]
    mark: int = 0
    prefixes: dict[int, int] = field(default_factory=dict)
    suffixes: dict[int, int] = field(default_factory=dict)
    final: set[tuple[str, int]] = field(default_factory=set)
    strides: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def _ahead(self) -> int:
        """Least time from the first F of all to the first of the marked stage."""
        return self.line.down(0, self.mark)

    def steps(self, longest: int, longest_suffix: int) -> Iterator[tuple[Literal["prefix", "suffix"], int]]:
        """The questions up to these sizes that are not final yet, short ones first."""
        for size in range(1, longest + 1):
            if size < self.line.microbatches and ("prefix", size) not in self.final:
                yield "prefix", size
            if size <= longest_suffix and ("suffix", size) not in self.final:
                yield "suffix", size

    def prove(self, kind: Literal["prefix", "suffix"], size: int, limits: Limits) -> tuple[bool, float]:
        """Work on one question; returns whether it is final now, and the deterministic time spent."""
        known = self.prefixes if kind == "prefix" else self.suffixes
        least = max(known.get(size, 0), self._sum(kind, size))
        answer, self.strides[kind, size] = refute(
            self.line,
            Question(
                kind=kind,
                microbatches=size,
                kept=self.kept,
                mark=self.mark,
                prefixes={h: least for h, least in self.prefixes.items() if h < size},
                suffixes={h: least for h, least in self.suffixes.items() if h < size},
                least=least,
                most=self.value,
            ),
            limits,
            self.strides.get((kind, size), 1 + least // _FIRST_STEP),
        )
        known[size] = max(known.get(size, 0), min(answer.least, self.value))
        if answer.final:
            self.final.add((kind, size))
        return answer.final, answer.work

    def _sum(self, kind: str, size: int) -> int:
        """What the shorter ones say."""
        rest = self.prefixes if kind == "prefix" else self.suffixes
        return max((self.prefixes.get(h, 0) + rest.get(size - h, 0) for h in range(1, size)), default=0)

    def total(self, sizes: Sequence[int]) -> int:
        """What is proven of prefixes of these sizes and, last, a suffix; in units."""
        return self._ahead + sum(self.prefixes.get(h, 0) for h in sizes[:-1]) + self.suffixes.get(sizes[-1], 0)

    def best(self) -> tuple[int, tuple[int, ...]]:
        """The best sum for all microbatches, in units, and the sizes it is made of, the suffix last."""
        microbatches = self.line.microbatches
        totals: list[tuple[int, tuple[int, ...]]] = [(0, ())]
        for size in range(1, microbatches):
            options = [
                (totals[size - h][0] + least, (h, *totals[size - h][1]))
                for h, least in self.prefixes.items()
                if h <= size
            ]
            totals.append(max(options, default=(0, (size,)), key=lambda option: (option[0], -len(option[1]))))
        options = [
            (self._ahead + totals[microbatches - h][0] + least, (*totals[microbatches - h][1], h))
            for h, least in self.suffixes.items()
        ]
        return max(options, default=(0, ()), key=lambda option: (option[0], -len(option[1])))


def climb(windows: Windows, *, longest: int, limits: Callable[[float], Limits]) -> Iterator[float]:
    """Prove windows up to a size, in rounds of growing patience; yields the work of each question.

    Parameters
    ----------
    longest
        The greatest size.
    limits
        Gives the limits of a question, from the deterministic time that the round grants it.
    """
    patience, in_flight = _FIRST_PATIENCE, windows.line.stages[windows.mark].in_flight
    longest_suffix = min(longest, in_flight)  # a sum has many prefixes and one suffix
    while True:
        failures = asked = 0
        for kind, size in windows.steps(longest, longest_suffix):
            final, work = windows.prove(kind, size, limits(patience))
            asked += 1
            failures = 0 if final else failures + 1
            yield work
            if failures > in_flight:
                break
        if not asked and longest_suffix == longest:
            return
        patience, longest_suffix = 4 * patience, min(longest, longest_suffix + in_flight)
