"""Other problems of which something follows, and the same one again."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from benchmarks.fuzz.oracle import Reading, Rows
from benchmarks.fuzz.trial import Trial
from zbsolve.bounds import smallest_limits
from zbsolve.check import violations
from zbsolve.problem import Problem
from zbsolve.profile import Profile
from zbsolve.simulate import simulate
from zbsolve.solution import Solution
from zbsolve.timetable import Order

__all__ = ["choose"]

_BYTES = ("activation_bytes", "backward_weight_bytes", "workspace_bytes", "static_bytes", "output_bytes")

_TIMES = ("forward_ns", "backward_input_ns", "backward_weight_ns", "backward_ns")


def choose(trial: Trial, solution: Solution) -> None:
    """One of these."""
    trial.rng.choice([_again, _from_a_start, _more_memory, _scaled_costs, _fewer_choices])(trial, solution)


def _again(trial: Trial, solution: Solution) -> None:
    if trial.options["work_limit"] is None:
        return
    again = trial.solve()
    same = (again.timetable.order, again.value_ns, again.lower_bound_ns, again.bound)
    expected = (solution.timetable.order, solution.value_ns, solution.lower_bound_ns, solution.bound)
    trial.report.expect(same == expected, "a work limit makes it repeat", trial.options)


def _from_a_start(trial: Trial, solution: Solution) -> None:
    again = trial.solve(start=_relabelled(trial.reading, trial.rows, trial.rng))
    trial.report.expect(again.value_ns <= trial.value_ns, "a start is never lost", trial.options)
    trial.report.expect(again.value_ns == trial.value_ns or not trial.optimal, "a start makes nothing impossible")


def _more_memory(trial: Trial, solution: Solution) -> None:
    report, rng = trial.report, trial.rng
    limits = tuple(None if v is None or rng.random() < 0.2 else v + rng.randint(0, 4) for v in trial.reading.limits)
    loose = replace(trial.problem, memory_limit=limits)
    more = trial.solve(loose, start=trial.reading.order(trial.rows))
    report.expect(more.value_ns <= trial.value_ns, "more memory with a start is never worse")
    for other in (more, trial.solve(loose)):
        report.expect(other.lower_bound_ns <= trial.value_ns, "a bound for more memory holds for less", other.bound)


def _scaled_costs(trial: Trial, solution: Solution) -> None:
    report, reading, rng = trial.report, trial.reading, trial.rng
    if trial.problem.rank_factors or trial.problem.microbatch_factors:
        return  # their products are rounded
    if any(link.bytes_per_second is not None for link in (reading.link, *reading.link.overrides)):
        return
    longest = max(reading.duration((letter, s, j)) for letter in "FBWD" for s, j in reading.costs)
    factor = rng.choice([2, 3, 10, 1_000, 10**13 if longest <= 10_000 else 100])  # sums must stay below 2^62
    size = rng.choice([1, 3, 1_000, 10**14])
    problem = _scaled(trial.problem, factor, size)
    scaled = trial.solve(problem)
    exact = reading.exact(trial.rows) * factor
    report.expect(scaled.lower_bound_ns <= math.ceil(exact), "a bound scales", scaled.bound, factor, size)
    report.expect(Reading(problem).value(trial.rows) == math.ceil(exact), "a value scales", factor)
    simulated = simulate(problem, reading.order(trial.rows))
    value = simulated.period_ns if reading.periodic else simulated.makespan_ns
    report.expect(value == math.ceil(exact), "a simulated value scales", value, factor)
    found = violations(problem, scaled.timetable, claimed_ns=scaled.value_ns)
    report.expect(not found, "the answer to scaled costs passes the check", found[:1])
    if trial.optimal:
        report.expect(scaled.value_ns > factor * (trial.value_ns - 1), "an optimum scales", factor, size)


def _fewer_choices(trial: Trial, solution: Solution) -> None:
    for allow in ({"split"}, {"fused"}):
        if not allow < trial.problem.allow:
            continue
        fewer = replace(trial.problem, allow=frozenset(allow))
        pairs = zip(trial.reading.limits, smallest_limits(fewer), strict=True)
        if all(limit is None or limit >= least for limit, least in pairs):
            value = trial.solve(fewer).value_ns
            trial.report.expect(solution.lower_bound_ns <= value, "a bound holds for fewer choices", allow)


def _scaled(problem: Problem, factor: int, size: int) -> Problem:
    """All times and all bytes by a factor; only for links without a bandwidth, where nothing is rounded up."""
    profile = problem.profile
    by = dict.fromkeys(_TIMES, factor) | dict.fromkeys(_BYTES, size)
    stages = tuple(replace(c, **{name: getattr(c, name) * k for name, k in by.items()}) for c in profile.stages)
    limits = tuple(None if limit is None else limit * size for limit in problem.limit_bytes)
    overrides = tuple(replace(o, latency_ns=o.latency_ns * factor) for o in profile.link.overrides)
    link = replace(profile.link, latency_ns=profile.link.latency_ns * factor, overrides=overrides)
    return replace(problem, profile=Profile(stages=stages, link=link), memory_limit=limits)


def _relabelled(reading: Reading, rows: Rows, rng: random.Random) -> Order:
    """The same order with microbatches that may trade places traded, as far as it stays allowed."""
    for _ in range(5):
        names = list(range(reading.microbatches))
        rng.shuffle(names)
        if any(reading.alike(a) != reading.alike(b) for a, b in enumerate(names)):
            continue
        letters = rng.choice(["FBWD", "F", "W", "B"])
        traded = [[(n[0], n[1], names[n[2]] if n[0] in letters else n[2]) for n in row] for row in rows]
        if not reading.fault(traded) and reading.value(traded) <= reading.value(rows):
            return reading.order(traded)
    return reading.order(rows)
