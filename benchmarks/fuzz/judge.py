"""Solve a problem and look at everything about it."""

from __future__ import annotations

import functools
import itertools
import random
import traceback
from typing import Any

from benchmarks.fuzz import answers, bounds, related
from benchmarks.fuzz.oracle import Reading, Rows
from benchmarks.fuzz.trial import Report, Trial
from zbsolve.errors import Infeasible, NothingFound
from zbsolve.problem import Problem

__all__ = ["judge"]

_IN_THIS_PROCESS = 19_000
"""A solve with a work limit below 20 000 starts no worker processes; nor does one of less than two seconds."""


def judge(problem: Problem, rng: random.Random, *, seconds: float, deep: float) -> Report:
    """Solve a problem and hold everything about it against the rules and the optimum.

    Parameters
    ----------
    problem
        What is asked.
    rng
        Decides which configurations and which relaxations are tried.
    seconds
        For one question to the oracle.
    deep
        How often relaxations, their stretches and CP-SAT are looked at by themselves as well, which is slow.
    """
    options: dict[str, Any] = {
        "work_limit": rng.choice([1, 100, 1_000, 5_000, _IN_THIS_PROCESS]),
        "workers": rng.choice([1, 1, 2]),
        "seed": rng.randrange(1000),
        "gap": rng.choice([0.0, 0.0, 0.0, 0.03]),
    }
    if rng.random() < deep / 2:
        options |= {"work_limit": None, "time_limit_s": rng.choice([0.02, 0.2, 1.0])}
    report = Report()
    try:
        _judge(Trial(problem, Reading(problem), rng, options, seconds, report), deep)
    except Exception:
        report.faults.append("crashed: " + traceback.format_exc()[-1500:])
    return report


def _judge(trial: Trial, deep: float) -> None:
    report, reading, options = trial.report, trial.reading, trial.options
    least = _one_at_a_time(reading)
    fits = all(limit is None or limit >= need for limit, need in zip(reading.limits, least, strict=True))
    try:
        solution = trial.solve()
    except Infeasible as error:
        report.expect(not fits, "infeasible only where nothing fits")
        report.expect(list(error.smallest_limit_bytes) == least, "the smallest limits are named")
        return
    except NothingFound:
        report.expect(False, "something is found where something fits", options)
        return
    report.expect(fits, "nothing is solved that does not fit")
    trial.know(reading.rows(solution.timetable.order))
    answers.itself(trial, solution)
    answers.published(trial, solution)
    answers.better(trial)
    report.expect(solution.lower_bound_ns <= trial.value_ns, "the bound of the answer holds", solution.bound, options)
    if solution.status == "optimal":
        report.expect(solution.value_ns == trial.value_ns, "what is called optimal is", solution.bound, options)
    if trial.optimal:
        report.counts["optimum known"] += 1
        report.counts["optimum found"] += solution.value_ns == trial.value_ns
        report.counts["optimum proven"] += solution.status == "optimal"
        if solution.value_ns > trial.value_ns:
            more = trial.solve(work_limit=_IN_THIS_PROCESS, gap=0.0, time_limit_s=60.0)
            report.counts["optimum found with more work"] += more.value_ns == trial.value_ns
    bounds.formulas(trial)
    bounds.certificates(trial, solution)
    related.choose(trial, solution)
    if trial.rng.random() < deep / 2:
        answers.files(trial, solution)
    if trial.rng.random() < deep:
        bounds.by_themselves(trial)


def _sequence_at_a_time(reading: Reading, first: int, rank: int, ways: list[str]) -> int:
    """The bytes that a rank needs for one sequence in slices: the best of all ways back through its stages."""
    stages = [s for s in range(reading.stages) if reading.rank(s, first) == rank]

    def level(left: tuple[int, ...]) -> int:
        return sum(reading.memory(("F", s, first + i))[1] for s, n in zip(stages, left, strict=True) for i in range(n))

    def during(way: str, s: int, j: int) -> int:
        held, most = 0, 0
        for letter in way:
            more, change = reading.memory((letter, s, j))
            most, held = max(most, held + more), held + change
        return most

    @functools.cache
    def back(left: tuple[int, ...]) -> int:
        if not any(left):
            return 0
        options = []
        for at, (s, n) in enumerate(zip(stages, left, strict=True)):
            if n and (at + 1 == len(left) or left[at + 1] < n):
                peak = level(left) + min(during(way, s, first + n - 1) for way in ways)
                options.append(max(peak, back((*left[:at], n - 1, *left[at + 1 :]))))
        return min(options)

    forwards = [reading.memory(("F", s, first + i))[0] for s in stages for i in range(reading.slices)]
    if reading.forwards_alone:
        return max(forwards, default=0)
    return back((reading.slices,) * len(stages))


def _one_at_a_time(reading: Reading) -> list[int]:
    """The bytes that each rank needs for one microbatch after the other."""
    ways = (
        [""]
        if reading.forwards_alone
        else [way for way, may in (("BW", reading.may_split), ("D", reading.may_fuse)) if may]
    )
    need = list(reading.static)
    if reading.slices > 1:
        firsts = range(0, reading.microbatches, reading.slices)
        return [
            static + max(_sequence_at_a_time(reading, first, r, ways) for first in firsts)
            for r, static in enumerate(reading.static)
        ]
    for j, r in itertools.product(range(reading.microbatches), range(reading.ranks)):
        mine = [s for s in range(reading.stages) if reading.rank(s, j) == r]
        peaks = []
        for choice in itertools.product(ways, repeat=len(mine)):
            rows: Rows = [[] for _ in range(reading.ranks)]
            rows[r] = [("F", s, j) for s in mine]
            rows[r] += [(letter, s, j) for s, way in zip(reversed(mine), choice, strict=True) for letter in way]
            peaks.append(reading.peaks(rows)[r])
        need[r] = max(need[r], min(peaks))
    return need
