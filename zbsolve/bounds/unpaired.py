"""A problem in which operations may run together, without that choice: what every timetable of it keeps.

Take any timetable and put the two operations of each pair one after the other into the time of the pair::

    asked      [ F with D, O ns        ]      D: the whole backward, or B alone
    unpaired   [ F' ns ][ D' ns  ] ....       F' + D' <= O for every two that may run together, F' <= F, D' <= D

Both start no earlier than the pair did and end no later, no operation takes longer than it did, and at no moment is
more held: the pair holds what both take from its start to its end. So the rest is a timetable of the problem with the
shorter durations, with a value that is no larger: a bound for that problem is one for what was asked, whatever
runs together.

The shorter durations are a choice. What a rank works is least when every forward runs with the backward that saves
most over all, a matching of greatest weight; by Koenig and Egervary the savings can be shared out between forwards and
backwards so that they sum to just that, and so they are here: forwards keep what they can, since they stand in more
chains than a backward does. Where microbatches differ in size, each operation is shortened in proportion instead.

Where no pair is possible, or none takes less than its two one after the other, nothing is shortened: then the problem
without the choice has the same values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

from zbsolve.problem import Problem

__all__ = ["may_pair", "shares", "unpaired"]

_MOST_STAGES = 64
"""Stages that may run together, beyond which all is taken from the backwards."""


@dataclass(frozen=True, slots=True)
class _Together:
    """What a forward and a backward take together: all of the backward, and the input gradient alone; None: no less."""

    whole: int | None
    into: int | None


def may_pair(problem: Problem) -> bool:
    """Whether running together may be of use: some pair is possible, and takes less than one after the other.

    Notes
    -----
    Of one sequence alone (one microbatch, or one that is all slices) every forward of a stage ends before any
    backward of it starts on the last stage, so nothing runs together. With factors a pair is rounded as a whole and
    its halves by themselves, so it has to be longer by what that may come to before it is sure to be of no use.
    """
    if "paired" not in problem.allow or problem.forward_only or problem.microbatches <= problem.slices:
        return False
    stages, spare = problem.profile.stages, _spare(problem)
    for (f, b), together in _overlaps(problem).items():
        forward, back = stages[f].forward_ns + spare, stages[b]
        whole = max(back.backward_ns, back.backward_input_ns + back.backward_weight_ns)
        if together.whole is not None and together.whole < forward + whole:
            return True
        if together.into is not None and together.into < forward + back.backward_input_ns:
            return True
    return False


def unpaired(problem: Problem) -> Problem:
    """The problem with shorter operations where pairs may be of use, and nothing that runs together."""
    if "paired" not in problem.allow:
        return problem
    if not may_pair(problem):
        return replace(problem, allow=problem.allow - {"paired"})
    found = _overlaps(problem)
    given = _in_proportion(problem, found) if problem.microbatch_factors is not None else _apart(problem, found)
    problem = _shorter(problem, found, given)
    stages = problem.profile.stages
    if not any(cost.forward_ns + cost.backward_input_ns + cost.backward_weight_ns for cost in stages):
        # no profile says that nothing takes any time, but 1 ns on ranks that are fast enough comes to nothing
        stages = (replace(stages[0], forward_ns=1), *stages[1:])
        fast = (Decimal("0.000001") / max(map(Decimal, problem.microbatch_factors or (1,))),) * problem.placement.ranks
        problem = replace(problem, rank_factors=tuple(round(factor, 12) for factor in fast))
    return replace(
        problem,
        profile=replace(problem.profile, stages=stages, overlaps=()),
        memory_limit=problem.limit_bytes,
        allow=problem.allow - {"paired"},
    )


def _overlaps(problem: Problem) -> dict[tuple[int, int], _Together]:
    """What was measured of each forward and backward stage that share a rank, as far as the backward is allowed."""
    found = {}
    for overlap in problem.profile.overlaps:
        f, b = overlap.forward_stage, overlap.backward_stage
        whole = overlap.forward_backward_overlap_ns if "fused" in problem.allow else None
        into = overlap.forward_backward_input_overlap_ns if "split" in problem.allow else None
        shared = set(problem.placement.holders(f)) & set(problem.placement.holders(b))
        if shared and not whole is into is None:
            found[f, b] = _Together(whole, into)
    return found


def _backward(problem: Problem, stage: int) -> int:
    """The least work of a backward that runs alone."""
    cost = problem.profile.stages[stage]
    apart = cost.backward_input_ns + cost.backward_weight_ns
    if "fused" not in problem.allow:
        return apart
    return min(apart, cost.backward_ns) if "split" in problem.allow else cost.backward_ns


def _apart(problem: Problem, found: Mapping[tuple[int, int], _Together]) -> dict[int, int]:
    """What each forward is given, so that with the backwards that are left the work is least saved over all."""
    stages = problem.profile.stages
    saving: dict[tuple[int, int], int] = {}
    for (f, b), together in found.items():
        whole, weight = stages[f].forward_ns + _backward(problem, b), stages[b].backward_weight_ns
        taken = [] if together.whole is None else [together.whole]
        taken += [] if together.into is None else [together.into + weight]
        saving[f, b] = max(0, whole - min(taken))
    given = {f: stages[f].forward_ns for f, _ in found}
    for group in _groups(saving):
        if len(group) <= _MOST_STAGES:
            shared = shares([[saving.get((f, b), 0) for b in group] for f in group])
            for f, share in zip(group, shared, strict=True):
                if f in given:
                    given[f] -= share
    return given


def _groups(pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The stages in sets that have no pair between them."""
    root: dict[int, int] = {}

    def find(stage: int) -> int:
        while root.setdefault(stage, stage) != stage:
            root[stage] = stage = root[root[stage]]
        return stage

    for f, b in pairs:
        root[find(f)] = find(b)
    groups: dict[int, list[int]] = {}
    for stage in sorted(root):
        groups.setdefault(find(stage), []).append(stage)
    return list(groups.values())


def shares(saving: list[list[int]]) -> list[int]:
    """For each row what it bears of the savings, so that with columns that bear the rest all of them sum to the least.

    The dual of the assignment of greatest weight, by shortest augmenting paths with potentials (the Hungarian method;
    Jonker and Volgenant, Computing 38, 1987), with as little as can be on the rows.
    """
    n = len(saving)
    row, column, match = [0] * (n + 1), [0] * (n + 1), [0] * (n + 1)
    for i in range(1, n + 1):
        match[0], at = i, 0
        least: list[float] = [float("inf")] * (n + 1)
        came, used = [0] * (n + 1), [False] * (n + 1)
        while match[at]:
            used[at] = True
            best, to = float("inf"), 0
            for j in range(1, n + 1):
                if not used[j]:
                    cost = -saving[match[at] - 1][j - 1] - row[match[at]] - column[j]
                    if cost < least[j]:
                        least[j], came[j] = cost, at
                    if least[j] < best:
                        best, to = least[j], j
            for j in range(n + 1):
                if used[j]:
                    row[match[j]] += int(best)
                    column[j] -= int(best)
                else:
                    least[j] -= best
            at = to
        while at:
            match[at] = match[came[at]]
            at = came[at]
    borne = [-u for u in row[1:]]
    return [share - min(borne) for share in borne]


def _in_proportion(problem: Problem, found: Mapping[tuple[int, int], _Together]) -> dict[int, int]:
    """What each forward is given where sizes differ: the least part that it has of any pair."""
    stages = problem.profile.stages
    given = {f: stages[f].forward_ns for f, _ in found}
    for (f, b), together in found.items():
        for part in _parts(problem, f, b, together):
            given[f] = min(given[f], int(part * stages[f].forward_ns))
    return given


def _parts(problem: Problem, f: int, b: int, together: _Together) -> tuple[Fraction, Fraction]:
    """What part of one after the other the two take together, at most 1, with all of the backward and with B."""
    forward, back = problem.profile.stages[f], problem.profile.stages[b]
    parts = []
    for taken, gradient in ((together.whole, back.backward_ns), (together.into, back.backward_input_ns)):
        apart = forward.forward_ns + gradient
        parts.append(Fraction(1) if taken is None or not apart else min(Fraction(1), Fraction(taken, apart)))
    return parts[0], parts[1]


def _shorter(problem: Problem, found: Mapping[tuple[int, int], _Together], given: Mapping[int, int]) -> Problem:
    """The problem with forwards of what is given to them, and backwards of what every pair leaves them."""
    stages, spare = problem.profile.stages, _spare(problem)
    forward = dict(given)
    whole = {b: stages[b].backward_ns for _, b in found}
    into = {b: stages[b].backward_input_ns for _, b in found}
    for (f, b), together in found.items():
        for taken in (together.whole, together.into):
            if taken is not None:
                forward[f] = max(0, min(forward[f], taken - spare))
        if problem.microbatch_factors is not None:
            parts = _parts(problem, f, b, together)
            whole[b] = min(whole[b], int(parts[0] * stages[b].backward_ns))
            into[b] = min(into[b], int(parts[1] * stages[b].backward_input_ns))
    for (f, b), together in found.items():
        if problem.microbatch_factors is not None:
            continue
        if together.whole is not None:
            whole[b] = max(0, min(whole[b], together.whole - forward[f] - spare))
        if together.into is not None:
            into[b] = max(0, min(into[b], together.into - forward[f] - spare))
    made = []
    for s, cost in enumerate(stages):
        f, d, b = forward.get(s, cost.forward_ns), whole.get(s, cost.backward_ns), into.get(s, cost.backward_input_ns)
        if spare:
            if problem.microbatch_factors is not None:
                f = f if f == cost.forward_ns else max(0, f - spare)
                b = b if b == cost.backward_input_ns else max(0, b - spare)
            as_sum = b + cost.backward_weight_ns == d and d != cost.backward_input_ns + cost.backward_weight_ns
            if d < cost.backward_ns or as_sum:
                d = max(0, min(d, cost.backward_ns) - spare)
        made.append(replace(cost, forward_ns=f, backward_input_ns=b, backward_ns=d))
    return replace(problem, profile=replace(problem.profile, stages=tuple(made)))


def _spare(problem: Problem) -> int:
    """Whole ns by which durations that are scaled and rounded by themselves may exceed one that is so as a whole."""
    slowest = min((Fraction(f) for f in problem.rank_factors or ()), default=Fraction(1))
    smallest = min((Fraction(f) for f in problem.microbatch_factors or ()), default=Fraction(1))
    if problem.rank_factors is None and problem.microbatch_factors is None:
        return 0
    return -int(-2 / (slowest * smallest) // 1)
