"""The rules of a timetable a third time, and optima by a model that shares nothing with the solver's.

Costs are read from the profile alone. The model has a truth value for each two operations of a rank, the
choice between split and fused, and memory as a sum along the row: no microbatch order, no rounding, no
relaxation, no formula. It is slow, and meant to be so plain that it is right.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.profile import StageCost
from zbsolve.timetable import Order

__all__ = ["Found", "Reading", "best_within"]

LETTERS = {Kind.FORWARD: "F", Kind.BACKWARD_INPUT: "B", Kind.BACKWARD_WEIGHT: "W", Kind.BACKWARD: "D"}
KINDS = {letter: kind for kind, letter in LETTERS.items()}

Name = tuple[str, int, int]
"""Letter, stage, microbatch; in small letters what a link carries of a stage: f its output, b its gradient onwards."""

Rows = list[list[Name]]


class Reading:
    """A problem as this module reads it."""

    def __init__(self, problem: Problem) -> None:
        self.profile = problem.profile.stages
        self.forwards_alone = problem.forward_only
        self.sizes = [Fraction(f) for f in problem.microbatch_factors or [1] * problem.microbatches]
        self.routes = problem.placement.routes
        self.microbatches = problem.microbatches
        self.slices = problem.slices
        self.stages = len(self.profile)
        self.ranks = 1 + max(rank for route in self.routes for rank in route)
        self.route_of = problem.route_of
        self.limits = problem.limit_bytes
        self.periodic = problem.objective == "period"
        self.may_split, self.may_fuse = "split" in problem.allow, "fused" in problem.allow
        self.link = problem.profile.link
        slowness = [Fraction(f) for f in problem.rank_factors or [1] * self.ranks]
        self.costs = {
            (s, j): _scaled(self.profile[s], slowness[self.rank(s, j)], self.sizes[j])
            for s in range(self.stages)
            for j in range(self.microbatches)
        }
        self.static = [
            sum(c.static_bytes for s, c in enumerate(self.profile) if any(route[s] == r for route in self.routes))
            for r in range(self.ranks)
        ]

    @property
    def letters(self) -> str:
        """The parts that each microbatch has on each stage."""
        return "F" if self.forwards_alone else "FBW"

    def alike(self, j: int) -> tuple[int, tuple[Fraction, ...], int]:
        """Equal for microbatches that may trade places, of sequences all slices at once."""
        place = j % self.slices
        return self.route_of[j], tuple(self.sizes[j - place : j - place + self.slices]), place

    def rank(self, stage: int, microbatch: int) -> int:
        """The rank of a stage of a microbatch."""
        return self.routes[self.route_of[microbatch]][stage]

    def lag(self, a: int, b: int, size: int) -> int:
        """From rank to rank."""
        if a == b:
            return 0
        link = self.between(a, b)
        speed = link.bytes_per_second
        return int(link.latency_ns + (0 if speed is None else math.ceil(Fraction(size * 10**9, speed))))

    def between(self, a: int, b: int) -> Any:
        """The link from rank to rank."""
        own = [other for other in self.link.overrides if (other.sender, other.receiver) == (a, b)]
        return own[0] if own else self.link

    def sends(self, name: Name) -> tuple[Name, tuple[int, ...], int] | None:
        """What an operation sends over a link on which transfers queue: its name, the link, the latency."""
        letter, s, j = name
        to = s + 1 if letter == "F" else s - 1
        if letter == "W" or not 0 <= to < self.stages:
            return None
        a, b = self.rank(s, j), self.rank(to, j)
        link = self.between(a, b)
        if a == b or link.queueing is None:
            return None
        return ("f" if letter == "F" else "b", s, j), (a,) if link.queueing == "sender" else (a, b), link.latency_ns

    def carried(self, rows: Rows) -> dict[tuple[int, ...], list[Name]]:
        """By link what it carries, in the order of its sender's row."""
        links: dict[tuple[int, ...], list[Name]] = {}
        for row in rows:
            for sent in filter(None, map(self.sends, row)):
                links.setdefault(sent[1], []).append(sent[0])
        return links

    def duration(self, name: Name) -> int:
        """In ns."""
        if name[0] in "fb":
            letter, s, j = name
            boundary, down = (s, True) if letter == "f" else (s - 1, False)
            sent = self.sends((letter.upper(), s, j))
            assert sent is not None
            return self.boundary(boundary, j, down=down) - sent[2]
        cost = self.costs[name[1:]]
        return {
            "F": cost.forward_ns,
            "B": cost.backward_input_ns,
            "W": cost.backward_weight_ns,
            "D": cost.backward_ns,
        }[name[0]]

    def memory(self, name: Name) -> tuple[int, int]:
        """What an operation adds while it runs, and what it leaves."""
        cost = self.costs[name[1:]]
        held, keep = cost.activation_bytes, cost.backward_weight_bytes
        change = {"F": held, "B": keep - held, "W": -keep, "D": -held}[name[0]]
        return max(0, change) + cost.workspace_bytes, 0 if self.forwards_alone else change

    def rows(self, order: Order) -> Rows:
        """An order as this module writes it."""
        return [[(LETTERS[op.kind], op.stage, op.microbatch or 0) for op in row] for row in order.rows]

    def order(self, rows: Rows) -> Order:
        """The same back."""
        return Order(tuple(tuple(Op(KINDS[letter], stage, j) for letter, stage, j in row) for row in rows))

    def serial(self) -> Rows:
        """One microbatch after the other, as poor an order as there is; split where that is allowed."""
        rows: Rows = [[] for _ in range(self.ranks)]
        for first in range(0, self.microbatches, self.slices):
            sequence = range(first, first + self.slices)
            for j, s in itertools.product(sequence, range(self.stages)):
                rows[self.rank(s, j)].append(("F", s, j))
            for j, s in itertools.product(reversed(sequence), reversed(range(self.stages))):
                if not self.forwards_alone:
                    rows[self.rank(s, j)] += [("B", s, j), ("W", s, j)] if self.may_split else [("D", s, j)]
        return rows

    def peaks(self, rows: Rows) -> list[int]:
        """The most bytes of each rank."""
        peaks = []
        for static, row in zip(self.static, rows, strict=True):
            most = level = static
            for name in row:
                during, change = self.memory(name)
                most, level = max(most, level + during), level + change
            peaks.append(most)
        return peaks

    def waits(self, rows: Rows) -> dict[Name, list[tuple[Name, int]]]:
        """What each operation waits for, and how long after its end."""
        there = {name for row in rows for name in row}
        waits: dict[Name, list[tuple[Name, int]]] = {}
        for row in rows:
            for before, name in zip([None, *row], row, strict=False):
                letter, s, j = name
                needs: list[tuple[Name, int]] = [] if before is None else [(before, 0)]
                if letter == "F" and j % self.slices:
                    needs.append((("F", s, j - 1), 0))
                if letter in "BD" and (j + 1) % self.slices:
                    needs.append((("D" if ("D", s, j + 1) in there else "B", s, j + 1), 0))
                if letter == "F" and s:
                    needs.append(self._handed(("F", s - 1, j), s - 1, j, down=True))
                if letter == "W":
                    needs.append((("B", s, j), 0))
                if letter in "BD":
                    needs.append((("F", s, j), 0))
                    if s < self.stages - 1:
                        after = ("D", s + 1, j) if ("D", s + 1, j) in there else ("B", s + 1, j)
                        needs.append(self._handed(after, s, j, down=False))
                waits[name] = needs
        giver = {sent[0]: name for name in waits if (sent := self.sends(name)) is not None}
        for line in self.carried(rows).values():
            for ahead, sent_name in zip([None, *line], line, strict=False):
                waits[sent_name] = [(giver[sent_name], 0)] + ([] if ahead is None else [(ahead, 0)])
        return waits

    def _handed(self, giver: Name, stage: int, j: int, *, down: bool) -> tuple[Name, int]:
        """What is waited for over a boundary: the operation and its lag, or what it sends over a queueing link."""
        sent = self.sends(giver)
        return (giver, self.boundary(stage, j, down=down)) if sent is None else (sent[0], sent[2])

    def boundary(self, stage: int, j: int, *, down: bool) -> int:
        """The lag over the boundary after a stage, of an output or of a gradient."""
        a, b = self.rank(stage, j), self.rank(stage + 1, j)
        return self.lag(*((a, b) if down else (b, a)), self.costs[stage, j].output_bytes)

    def fault(self, rows: Rows) -> str:
        """What is wrong with an order; nothing if it is allowed."""
        parts: list[Name] = []
        for r, row in enumerate(rows):
            for letter, s, j in row:
                if (letter in "BW" and not self.may_split) or (letter == "D" and not self.may_fuse):
                    return "not allowed"
                if self.rank(s, j) != r:
                    return "on the wrong rank"
                parts += [(part, s, j) for part in ("BW" if letter == "D" else letter)]
        if sorted(parts) != sorted(itertools.product(self.letters, range(self.stages), range(self.microbatches))):
            return "not every operation once"
        if any(limit is not None and peak > limit for peak, limit in zip(self.peaks(rows), self.limits, strict=True)):
            return "too much memory"
        return "" if self._sorted(self.waits(rows)) is not None else "never ends"

    @staticmethod
    def _sorted(waits: dict[Name, list[tuple[Name, int]]]) -> list[Name] | None:
        done: dict[Name, None] = {}
        left = list(waits)
        while left:
            ready = [name for name in left if all(need in done for need, _ in waits[name])]
            if not ready:
                return None
            done.update(dict.fromkeys(ready))
            left = [name for name in left if name not in done]
        return list(done)

    def exact(self, rows: Rows) -> Fraction:
        """The objective of an order; a period may be a fraction."""
        waits = self.waits(rows)
        names = self._sorted(waits)
        assert names is not None
        if not self.periodic:
            return Fraction(max(self._ends(names, waits, None).values()))
        busy = [row for row in (*rows, *self.carried(rows).values()) if row]
        longest: dict[tuple[int, int], int] = {}
        for a, row in enumerate(busy):
            ends = self._ends(names, waits, row[0])
            longest |= {(a, b): ends[other[-1]] for b, other in enumerate(busy) if other[-1] in ends}
        best = Fraction(0)
        for size in range(1, len(busy) + 1):
            for cycle in itertools.permutations(range(len(busy)), size):
                steps = list(zip(cycle, cycle[1:] + cycle[:1], strict=True))
                if all(step in longest for step in steps):
                    best = max(best, Fraction(sum(longest[step] for step in steps), size))
        return best

    def _ends(
        self, names: Iterable[Name], waits: dict[Name, list[tuple[Name, int]]], first: Name | None
    ) -> dict[Name, int]:
        """Earliest ends; only of what hangs on one operation, counted from its start, if that is given."""
        ends: dict[Name, int] = {}
        for name in names:
            at = [ends[need] + lag for need, lag in waits[name] if need in ends]
            if at or first in {None, name}:
                ends[name] = max([0, *at]) + self.duration(name)
        return ends

    def value(self, rows: Rows) -> int:
        """The objective in whole ns, rounded up."""
        return math.ceil(self.exact(rows))


def _scaled(cost: StageCost, slowness: Fraction, size: Fraction) -> StageCost:
    """Times by both factors and bytes by the size, each rounded half up."""
    times = [cost.forward_ns, cost.backward_input_ns, cost.backward_weight_ns, cost.backward_ns]
    forward, back, weight, whole = (math.floor(time * slowness * size + Fraction(1, 2)) for time in times)
    if times[3] == times[1] + times[2]:
        whole = back + weight
    names = ("activation_bytes", "backward_weight_bytes", "workspace_bytes", "output_bytes")
    sizes = {name: math.floor(getattr(cost, name) * size + Fraction(1, 2)) for name in names}
    return replace(
        cost, forward_ns=forward, backward_input_ns=back, backward_weight_ns=weight, backward_ns=whole, **sizes
    )


@dataclass(frozen=True, slots=True)
class Found:
    """What was found: rows of the least value in whole ns, none if there are none, and whether that is certain."""

    certain: bool
    rows: Rows | None
    value_ns: int = 0


def best_within(
    reading: Reading,
    most: int,
    *,
    seconds: float,
    any_turn: bool = False,
    stretch: tuple[Name, Sequence[Name]] | None = None,
) -> Found:
    """The best order with a value of at most `most`.

    Parameters
    ----------
    reading
        What is asked.
    most
        Only smaller values, and this, are of interest.
    seconds
        Wall time.
    any_turn
        Whether microbatches that are alike may overtake each other. To forbid it loses nothing and is faster.
    stretch
        Minimise the time from the start of the first to the latest end of the others, whatever the objective.
    """
    from ortools.sat.python import cp_model

    if any(limit is not None and limit < static for limit, static in zip(reading.limits, reading.static, strict=True)):
        return Found(True, None)
    model = cp_model.CpModel()
    stages, microbatches = range(reading.stages), range(reading.microbatches)
    own: list[Name] = list(itertools.product(reading.letters, stages, microbatches))
    sent = {name: there for name in own if (there := reading.sends(name)) is not None}
    names = [*own, *(there[0] for there in sent.values())]
    fused: dict[tuple[int, int], Any] = {
        (s, j): model.new_bool_var("") if reading.may_split and reading.may_fuse else int(reading.may_fuse)
        for s in stages
        for j in microbatches
    }
    horizon = 1 + sum(
        c.forward_ns + max(c.backward_input_ns + c.backward_weight_ns, c.backward_ns) for c in reading.costs.values()
    )
    horizon += sum(
        reading.boundary(s, j, down=down) for s in stages[:-1] for j in microbatches for down in (True, False)
    )
    horizon = min(horizon, reading.ranks * (most + 1) + horizon)
    start = {name: model.new_int_var(0, horizon, "") for name in names}
    length: dict[Name, Any] = {}
    for letter, s, j in names:
        apart, whole = reading.duration((letter, s, j)), reading.duration(("D", s, j)) if letter == "B" else 0
        length[letter, s, j] = apart if letter in "Ffb" else apart + fused[s, j] * (whole - apart)
    end = {name: start[name] + length[name] for name in names}
    # where everything takes time, times alone order the rows
    timeless = any(reading.duration((letter, s, j)) == 0 for letter in "FBWD" for s in stages for j in microbatches)
    timeless |= any(reading.duration(there[0]) == 0 for there in sent.values())
    place = {name: model.new_int_var(0, len(names), "") for name in names} if timeless else {}

    def after(name: Name, before: Name, lag: int = 0, when: Any = None) -> None:
        waits = [model.add(start[name] >= end[before] + lag)]
        if timeless:
            waits.append(model.add(place[name] >= place[before] + 1))
        if when is not None:
            for wait in waits:
                wait.only_enforce_if(when)

    for name, there in sent.items():
        after(there[0], name)

    def over(name: Name, before: Name, stage: int, *, down: bool) -> None:
        if before in sent:
            after(name, sent[before][0], sent[before][2])
        else:
            after(name, before, reading.boundary(stage, name[2], down=down))

    for s, j in itertools.product(stages, microbatches):
        if j % reading.slices:
            after(("F", s, j), ("F", s, j - 1))
            if not reading.forwards_alone:
                after(("B", s, j - 1), ("B", s, j))
        if s:
            over(("F", s, j), ("F", s - 1, j), s - 1, down=True)
        if reading.forwards_alone:
            continue
        after(("B", s, j), ("F", s, j))
        after(("W", s, j), ("B", s, j))
        if isinstance(fused[s, j], int):
            if fused[s, j]:
                model.add(start["W", s, j] == end["B", s, j])
        else:
            model.add(start["W", s, j] == end["B", s, j]).only_enforce_if(fused[s, j])
        if s:
            over(("B", s - 1, j), ("B", s, j), s - 1, down=False)
    for kind in dict.fromkeys(reading.alike(j) for j in microbatches):
        alike = [j for j in microbatches if reading.alike(j) == kind]
        for a, b in itertools.pairwise(alike):
            if a % reading.slices == 0:
                after(("F", 0, b), ("F", 0, a))  # which is called which is free
            if not any_turn:
                for s in stages:
                    after(("F", s, b), ("F", s, a))
                    if not reading.forwards_alone:
                        after(("B", s, b), ("B", s, a))
    value = model.new_int_var(0, most, "")
    for r in range(reading.ranks):
        mine = [name for name in own if reading.rank(name[1], name[2]) == r]
        _rank(reading, model, mine, r, fused, after, sent)
        spans = [] if stretch else itertools.product(mine, mine if reading.periodic else mine[:1])
        for a, b in spans:
            model.add(value >= end[a] - (start[b] if reading.periodic else 0))
    for link in {there[1] for there in sent.values()} if reading.periodic and not stretch else ():
        line = [there[0] for there in sent.values() if there[1] == link]
        for a, b in itertools.product(line, line):
            model.add(value >= end[a] - start[b])
    for name in stretch[1] if stretch else ():
        model.add(value >= end[name] - start[stretch[0]])
    model.minimize(value)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = seconds
    status = solver.solve(model)
    if status not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
        return Found(status == cp_model.INFEASIBLE, None)
    rows: Rows = [[] for _ in range(reading.ranks)]
    for letter, s, j in sorted(own, key=lambda n: solver.value(place[n]) if timeless else solver.value(start[n])):
        whole = bool(solver.value(fused[s, j]))
        if not (letter == "W" and whole):
            rows[reading.rank(s, j)].append(("D" if letter == "B" and whole else letter, s, j))
    return Found(status == cp_model.OPTIMAL, rows, int(solver.value(value)))


def _rank(
    reading: Reading,
    model: Any,
    own: list[Name],
    rank: int,
    fused: dict[tuple[int, int], Any],
    after: Any,
    sent: dict[Name, tuple[Name, tuple[int, ...], int]],
) -> None:
    """One operation at a time, so its messages on a link too, and memory as a sum over what stands ahead of each."""
    ahead: dict[tuple[Name, Name], Any] = {}
    for a, b in itertools.combinations(own, 2):
        first = model.new_bool_var("")
        ahead[a, b], ahead[b, a] = first, first.negated()
        after(b, a, 0, first)
        after(a, b, 0, first.negated())
        if a in sent and b in sent and sent[a][1] == sent[b][1]:
            after(sent[b][0], sent[a][0], 0, first)
            after(sent[a][0], sent[b][0], 0, first.negated())
    limit = reading.limits[rank]
    if limit is None:
        return
    for name in own:
        terms = []
        for other in own:
            if other == name:
                continue
            letter, s, j = other
            apart = reading.memory(other)[1]
            whole = {"F": apart, "B": -reading.costs[s, j].activation_bytes, "W": 0}[letter]
            is_ahead = ahead[other, name]
            if isinstance(fused[s, j], int):
                terms.append((whole if fused[s, j] else apart) * is_ahead)
                continue
            both = model.new_bool_var("")
            model.add_bool_and([is_ahead, fused[s, j]]).only_enforce_if(both)
            model.add_bool_or([is_ahead.negated(), fused[s, j].negated(), both])
            terms.append(apart * is_ahead + (whole - apart) * both)
        letter, s, j = name
        apart = reading.memory(name)[0]
        whole = {"F": apart, "B": reading.memory(("D", s, j))[0], "W": 0}[letter]
        during = apart + fused[s, j] * (whole - apart)
        model.add(sum(terms) + during <= limit - reading.static[rank])
