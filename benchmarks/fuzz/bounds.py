"""Every bound by itself against the best order known, told nothing of it: an unsound one cannot hide behind it."""

from __future__ import annotations

import time
from typing import Any
from unittest import mock

from benchmarks.fuzz.oracle import best_within
from benchmarks.fuzz.trial import ORACLE_OPERATIONS, Trial
from zbsolve.bounds import lower_bounds
from zbsolve.solution import Bound, Solution
from zbsolve.solver import cpsat, line
from zbsolve.solver.case import Case
from zbsolve.solver.certificate import verify_bound
from zbsolve.solver.compiled import plain
from zbsolve.solver.line_answers import Limits, refute
from zbsolve.solver.line_model import Question
from zbsolve.solver.relaxation import Relaxation, improve_bound
from zbsolve.solver.running import run
from zbsolve.solver.tasks import Bounded, Length, Prove
from zbsolve.solver.windows import Windows, climb

__all__ = ["by_themselves", "certificates", "formulas"]

_WORK = (0.15, 0.15, 0.15, 1.0)
"""CP-SAT's deterministic time for the windows of one problem: one of these."""


def formulas(trial: Trial) -> None:
    """All that `lower_bounds` gives."""
    for bound in lower_bounds(trial.problem):
        _hold(trial, bound.name, bound)


def certificates(trial: Trial, solution: Solution) -> None:
    """The answer's own bound verifies; one above what is attained does not, whatever name it bears."""
    report, rng = trial.report, trial.rng
    verdict = verify_bound(trial.problem, Bound(solution.lower_bound_ns, solution.bound), time_limit_s=3.0)
    report.expect(verdict.status != "wrong", "the answer's bound is not called wrong", solution.bound, verdict.message)
    report.counts[f"own bound: {verdict.status}"] += 1
    above = rng.choice((1, 1, rng.randint(2, 5 + trial.value_ns)))
    name = rng.choice([solution.bound, solution.bound, "load", "counting", "CP-SAT", "?"])
    _not_above(trial, Bound(trial.value_ns + above, name))


def by_themselves(trial: Trial) -> None:
    """CP-SAT on the whole and, where they apply, two relaxations, a prefix and a suffix."""
    if trial.operations <= 2 * ORACLE_OPERATIONS:
        _cpsat(trial)
    if line.reads(trial.problem):
        for prove in trial.rng.sample([_some_ranks, _all_ranks, _windows, _windows, _improved], 2):
            prove(trial)
        if trial.problem.microbatch_factors is None and trial.problem.slices == 1:  # else which F comes first is open
            _stretches(trial)


def _hold(trial: Trial, what: str, bound: Bound) -> None:
    trial.report.expect(bound.value_ns <= trial.value_ns, f"holds: {what}", bound, trial.value_ns, trial.optimal)
    trial.report.counts[f"tight: {what}"] += bound.value_ns == trial.value_ns


def _not_above(trial: Trial, false: Bound) -> None:
    verdict = verify_bound(trial.problem, false, time_limit_s=0.5)
    trial.report.expect(not verdict.ok, "no false bound verifies", false, verdict.message)


def _cpsat(trial: Trial) -> None:
    """The whole problem from a poor order or from a good one, in exact or in rounded times."""
    rng, reading = trial.rng, trial.reading
    case = Case(trial.problem, plain())
    begin = case.read(reading.order(rng.choice([reading.serial(), trial.rows])))
    if begin is None:
        return
    finest = rng.choice([30_000, 30_000, 40, 10])
    found: list[int] = []
    bounds: list[int] = [0]

    def hand(find: Any) -> None:
        if isinstance(find, Bounded):
            bounds.append(find.bound.value_ns)
        else:
            found.append(find.value_ns)

    task = Prove(
        sequence=begin.sequence,
        fused=begin.fused,
        value_ns=begin.value_ns,
        bound_ns=rng.choice([0, 0, trial.value_ns // 2]),
        length=Length(steps=rng.choice([3_000, 30_000])),
        seed=rng.randrange(1000),
    )
    with mock.patch.multiple(cpsat, _FINEST=finest, _ROUNDED=min(finest, 6_000)):
        run(task, case, time.perf_counter() + 30, hand)
    _hold(trial, "CP-SAT" if finest == 30_000 else "CP-SAT, rounded", Bound(max(bounds), "CP-SAT"))
    if trial.optimal and found:
        trial.report.expect(min(found) >= trial.value_ns, "CP-SAT finds nothing below the optimum")


def _limits(trial: Trial) -> Limits:
    return Limits(seconds=10.0, deterministic=trial.rng.choice([0.05, 0.05, 0.5]), seed=trial.rng.randrange(1000))


def _cap(trial: Trial) -> int:
    """A value above the optimum, which is all that a relaxation is told."""
    best = trial.value_ns
    return trial.rng.choice([best + 1, best + 2, 2 * best + 5, 10 * best + 50])


def _unit(trial: Trial) -> int | None:
    """A unit to round to; None for one that rounds nothing."""
    return trial.rng.choice([None, None, 2, 3, max(1, trial.value_ns // trial.rng.randint(3, 30))])


def _some_ranks(trial: Trial) -> None:
    ranks = range(trial.reading.ranks)
    _whole(trial, tuple(trial.rng.sample(ranks, trial.rng.randint(1, len(ranks)))))


def _all_ranks(trial: Trial) -> None:
    _whole(trial, tuple(range(trial.reading.ranks)))


def _whole(trial: Trial, ranks: tuple[int, ...]) -> None:
    given, everything = _unit(trial), len(ranks) == trial.reading.ranks
    unit = given or line.exact_unit(trial.problem)
    most = _cap(trial) // unit
    read = line.read_line(trial.problem, unit)
    kept = frozenset(s for s, stage in enumerate(read.stages) if stage.rank in ranks)
    question = Question(kind="whole", microbatches=trial.problem.microbatches, kept=kept, most=most)
    step = trial.rng.choice([1, 3, max(1, most)])
    answer, _ = refute(read, question, _limits(trial), step)
    kind = "quantised" if given and everything else "rank-subset"
    name = Relaxation(kind=kind, numbers=() if kind == "quantised" else tuple(sorted(ranks)), unit_ns=given).name
    _relaxed(trial, "all ranks" if everything else kind, given, Bound(answer.least * unit, name))


def _climbed(trial: Trial, unit: int, cap: int, mark: int) -> Windows:
    """Windows of all sizes, as far as a little work goes."""
    windows = Windows(line.read_line(trial.problem, unit), cap, tuple(range(trial.reading.stages)), mark)
    work, most = 0.0, trial.rng.choice(_WORK)
    for spent in climb(windows, longest=trial.problem.microbatches, limits=lambda patience: _limits(trial)):
        work += spent
        if work > most:
            break
    return windows


def _windows(trial: Trial) -> None:
    if len(trial.reading.routes) > 1:
        return
    given, route = _unit(trial), trial.problem.placement.routes[0]
    mark = route.index(trial.rng.choice(route))  # a name says the rank, and means its first stage
    unit = given or line.exact_unit(trial.problem)
    least, sizes = _climbed(trial, unit, _cap(trial) // unit, mark).best()
    name = Relaxation(kind="windows", numbers=sizes, at=route[mark], unit_ns=given).name
    _relaxed(trial, "windows", given, Bound(least * unit, name))


def _relaxed(trial: Trial, what: str, unit: int | None, bound: Bound) -> None:
    """A relaxation's bound holds, is proven by its name, and nothing more is."""
    _hold(trial, f"{what}, rounded" if unit else what, bound)
    verdict = verify_bound(trial.problem, bound, time_limit_s=2.0)
    proven = verdict.status != "wrong" or bound.value_ns == 0
    trial.report.expect(proven, "what a relaxation proves is not called wrong", bound, verdict.message)
    _not_above(trial, Bound(trial.value_ns + 1, bound.name))


def _improved(trial: Trial) -> None:
    """All of them as the solver runs them, with few digits now and then."""
    told = [Bound(0, "none")]
    alone = {"time_limit_s": 30.0, "work_limit": trial.rng.choice([0.1, 0.1, 0.5])}
    side_by_side = {"time_limit_s": 0.3, "workers": 2}
    with mock.patch.multiple(line, FINEST=trial.rng.choice([30_000, 20]), _FINE=30, _COARSEST=6):
        improve_bound(
            trial.problem,
            incumbent_ns=_cap(trial),
            best=told[0],
            seed=trial.rng.randrange(1000),
            on_bound=told.append,
            **trial.rng.choice([alone, alone, alone, side_by_side]),
        )
    _hold(trial, "improve_bound", told[-1])
    _not_above(trial, Bound(trial.value_ns + 1, told[-1].name))


def _stretches(trial: Trial) -> None:
    """A prefix and a suffix, held against the least that any order at all makes of such a stretch."""
    reading, rng = trial.reading, trial.rng
    p, m = reading.stages, reading.microbatches
    if m < 2 or len(reading.routes) > 1 or trial.operations > ORACLE_OPERATIONS * 2 // 3:
        return
    route = trial.problem.placement.routes[0]
    on_first = [s for s in range(p) if route[s] == route[0]]
    exact = line.exact_unit(trial.problem)
    unit, mark = rng.choice([exact, exact, 2, 3]), rng.randrange(p)
    windows = _climbed(trial, unit, 2 * line.read_line(trial.problem, unit).serial + 5, mark)
    for kind, known in (("prefix", windows.prefixes), ("suffix", windows.suffixes)):
        sizes = [size for size, least in known.items() if least and size < m]
        if not sizes:
            continue
        size = max(sizes) if rng.random() < 0.5 else rng.choice(sizes)
        if kind == "prefix":  # from the first microbatch on, where no earlier one is in the way, to the start of an F
            begin, until = ("F", mark, 0), [("F", mark, size)]
            more = reading.duration(until[0])
        else:
            everywhere = range(p) if trial.problem.objective == "makespan" else on_first
            begin, until = ("F", mark, m - size), [(c, s, j) for c in "BW" for s in everywhere for j in range(m)]
            more = 0
        claimed = known[size] * unit
        found = best_within(reading, claimed - 1 + more, seconds=trial.seconds, stretch=(begin, until))
        shorter = None if found.rows is None else found.value_ns - more
        trial.report.expect(
            shorter is None, f"holds: {kind} by itself", f"{size} at {mark}, unit {unit}: {claimed}, found {shorter}"
        )
        trial.report.counts[f"certain: {kind} by itself"] += found.certain
