"""What must hold of every answer, of every bound by itself, and between answers to related problems."""

from __future__ import annotations

import itertools
import json
import math
import random
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from click.testing import CliRunner

from benchmarks.fuzz.oracle import Reading, Rows, best_within
from zbsolve.bounds import lower_bounds, smallest_limits
from zbsolve.catalog import baseline, schedules
from zbsolve.check import violations
from zbsolve.cli import main as cli
from zbsolve.errors import Infeasible, NothingFound, ScheduleConditionError
from zbsolve.files import timetable_bytes
from zbsolve.metrics import metrics
from zbsolve.problem import Problem
from zbsolve.profile import Profile
from zbsolve.simulate import simulate
from zbsolve.solution import Bound, Solution
from zbsolve.solver import cpsat, line
from zbsolve.solver.certificate import verify_bound
from zbsolve.solver.compiled import plain
from zbsolve.solver.driver import solve
from zbsolve.solver.incumbent import Incumbent
from zbsolve.solver.line_model import Limits, Question, refute
from zbsolve.solver.relaxation import Relaxation, improve_bound
from zbsolve.solver.tasks import Bounded, Case, Length, Prove, run
from zbsolve.solver.windows import Windows, climb
from zbsolve.timetable import Order

__all__ = ["Report", "judge"]

_IN_THIS_PROCESS = 19_000
"""A solve with a work limit below 20 000 starts no worker processes."""

_BYTES = ("activation_bytes", "backward_weight_bytes", "workspace_bytes", "static_bytes", "output_bytes")

_TIMES = ("forward_ns", "backward_input_ns", "backward_weight_ns", "backward_ns")

_ORACLE_OPERATIONS = 60
"""Beyond this many the oracle is not asked."""


@dataclass
class Report:
    """What became of one problem."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def expect(self, holds: bool, what: str, *more: Any) -> None:
        """Count a check, and keep it if it fails."""
        self.counts[what] += 1
        if not holds:
            self.faults.append(" ".join([what, *map(repr, more)]))


@dataclass
class _Known:
    """What is known of one problem's least value: an order, and whether none is better."""

    rows: Rows
    value_ns: int
    optimal: bool = False


def judge(problem: Problem, rng: random.Random, *, seconds: float, deep: float) -> Report:
    """Solve a problem and hold everything about it against the rules and the optimum.

    Parameters
    ----------
    problem
        What is asked.
    rng
        Decides which configurations and which relaxations are tried.
    seconds
        For the oracle.
    deep
        How often relaxations, their stretches and CP-SAT are looked at by themselves as well, which is slow.
    """
    report = Report()
    try:
        _judge(problem, rng, report, seconds, deep)
    except Exception:
        report.faults.append("crashed: " + traceback.format_exc()[-1500:])
    return report


def _judge(problem: Problem, rng: random.Random, report: Report, seconds: float, deep: float) -> None:
    reading = Reading(problem)
    options: dict[str, Any] = {
        "work_limit": rng.choice([1, 100, 1_000, 5_000, _IN_THIS_PROCESS]),
        "workers": rng.choice([1, 1, 2]),
        "seed": rng.randrange(1000),
        "gap": rng.choice([0.0, 0.0, 0.0, 0.03]),
    }
    if rng.random() < deep / 2:
        options |= {"work_limit": None, "time_limit_s": rng.choice([0.02, 0.2, 1.0])}
    fits = all(
        limit is None or limit >= least for limit, least in zip(reading.limits, _one_at_a_time(reading), strict=True)
    )
    try:
        with _no_false_bounds(report):
            solution = solve(problem, **{"time_limit_s": 60.0, **options})
    except Infeasible:
        report.expect(not fits, "infeasible only where nothing fits")
        return
    except NothingFound:
        report.expect(False, "something is found where something fits", options)
        return
    report.expect(fits, "nothing is solved that does not fit")
    rows = reading.rows(solution.timetable.order)
    known = _Known(rows, reading.value(rows))
    _answer(problem, reading, solution, known, report)
    _published(
        problem, reading, solution, known, report, thorough=not options["gap"] and (options["work_limit"] or 0) >= 1_000
    )
    _find_better(reading, known, report, rng, seconds)
    report.expect(solution.lower_bound_ns <= known.value_ns, "the bound of the answer holds", solution.bound, options)
    if solution.status == "optimal":
        report.expect(solution.value_ns == known.value_ns, "what is called optimal is", solution.bound, options)
    if known.optimal:
        report.counts["optimum known"] += 1
        report.counts["optimum found"] += solution.value_ns == known.value_ns
        report.counts["optimum proven"] += solution.status == "optimal"
    _formulas(problem, known, report)
    if rng.random() < deep:
        _cpsat_alone(problem, reading, known, rng, report)
        if line.reads(problem):
            _relaxations(problem, known, rng, report)
            _stretches(problem, reading, rng, report, seconds)
    _certificates(problem, solution, known, rng, report)
    if rng.random() < deep / 2:
        _files(problem, reading, solution, known, report)
    _related(problem, reading, solution, known, rng, options, report)


def _one_at_a_time(reading: Reading) -> list[int]:
    """The bytes that each rank needs for one microbatch after the other."""
    ways = [w for w, may in (("BW", reading.may_split), ("D", reading.may_fuse)) if may]
    need = list(reading.static)
    for j in range(reading.microbatches):
        for r in range(reading.ranks):
            mine = [s for s in range(reading.stages) if reading.rank(s, j) == r]
            peaks = []
            for choice in itertools.product(ways, repeat=len(mine)):
                down = [("F", s, j) for s in mine]
                back = [(letter, s, j) for s, way in reversed(list(zip(mine, choice, strict=True))) for letter in way]
                rows: Rows = [[] for _ in range(reading.ranks)]
                rows[r] = down + back
                peaks.append(reading.peaks(rows)[r])
            need[r] = max(need[r], min(peaks, default=0))
    return need


@contextmanager
def _no_false_bounds(report: Report) -> Iterator[None]:
    """The incumbent passes a bound over that is above an attained value; here it is a fault."""
    true = Incumbent.prove

    def prove(self: Incumbent, bound: Bound) -> None:
        report.expect(bound.value_ns <= self.value_ns, "no arm hands in a bound above what is attained", bound)
        true(self, bound)

    with mock.patch.object(Incumbent, "prove", prove):
        yield


def _answer(problem: Problem, reading: Reading, solution: Solution, known: _Known, report: Report) -> None:
    """The answer by itself."""
    report.expect(not reading.fault(known.rows), "the order is allowed", reading.fault(known.rows))
    found = violations(problem, solution.timetable, claimed_ns=solution.value_ns)
    report.expect(not found, "the answer passes the check", found[:1])
    report.expect(solution.value_ns == known.value_ns, "the value is the order's", solution.value_ns, known.value_ns)
    report.expect(list(solution.metrics.peak_bytes) == reading.peaks(known.rows), "the peaks are the order's")
    report.expect(solution.lower_bound_ns <= solution.value_ns, "the bound is at most the value")
    met = solution.lower_bound_ns == solution.value_ns
    report.expect((solution.status == "optimal") == met, "optimal means that value and bound meet")


def _published(
    problem: Problem, reading: Reading, solution: Solution, known: _Known, report: Report, *, thorough: bool
) -> None:
    """Schedules of the catalog that fit: none is better than an answer that was given the steps to time them."""
    for schedule in schedules():
        try:
            order = baseline(schedule.name, problem)
        except ScheduleConditionError:
            continue
        rows = reading.rows(order)
        if not reading.fault(rows):
            value = reading.value(rows)
            if thorough:
                report.expect(solution.value_ns <= value, "no published schedule is better", schedule.name)
            if value < known.value_ns:
                known.rows, known.value_ns = rows, value


def _find_better(reading: Reading, known: _Known, report: Report, rng: random.Random, seconds: float) -> None:
    """Ask the oracle for anything better."""
    operations = 3 * reading.stages * reading.microbatches
    if operations > _ORACLE_OPERATIONS:
        report.counts["too large for the oracle"] += 1
        return
    if known.value_ns == 0:
        known.optimal = True
        return
    any_turn = operations <= 27 and rng.random() < 0.5
    found = best_within(reading, known.value_ns - 1, seconds=seconds, any_turn=any_turn)
    report.counts["oracle asked"] += 1
    if found.rows is not None:
        value = reading.value(found.rows)
        report.expect(
            value < known.value_ns and not reading.fault(found.rows), "the oracle is right", reading.fault(found.rows)
        )
        known.rows, known.value_ns = found.rows, value
    known.optimal = found.certain


def _formulas(problem: Problem, known: _Known, report: Report) -> None:
    for bound in lower_bounds(problem):
        report.expect(bound.value_ns <= known.value_ns, f"holds: {bound.name}", bound.value_ns, known.value_ns)
        report.counts[f"tight: {bound.name}"] += bound.value_ns == known.value_ns


def _serial(reading: Reading) -> Rows:
    """One microbatch after the other, as poor an order as there is; split where both ways fit."""
    rows: Rows = [[] for _ in range(reading.ranks)]
    for j in range(reading.microbatches):
        for s in range(reading.stages):
            rows[reading.rank(s, j)].append(("F", s, j))
        for s in reversed(range(reading.stages)):
            rows[reading.rank(s, j)] += [("B", s, j), ("W", s, j)] if reading.may_split else [("D", s, j)]
    return rows


def _cpsat_alone(problem: Problem, reading: Reading, known: _Known, rng: random.Random, report: Report) -> None:
    """CP-SAT on the whole, from a poor order and from a good one, in exact and in rounded times."""
    if 3 * reading.stages * reading.microbatches > 2 * _ORACLE_OPERATIONS:
        return
    case = Case(problem, plain())
    begin = case.read(reading.order(rng.choice([_serial(reading), known.rows])))
    if begin is None:
        return
    finest = rng.choice([30_000, 30_000, 40, 10])
    found: list[int] = []
    bounds: list[int] = []

    def hand(find: Any) -> None:
        if isinstance(find, Bounded):
            bounds.append(find.bound.value_ns)
        else:
            found.append(find.value_ns)

    task = Prove(
        sequence=begin.sequence,
        fused=begin.fused,
        value_ns=begin.value_ns,
        bound_ns=rng.choice([0, 0, known.value_ns // 2]),
        length=Length(steps=rng.choice([3_000, 30_000])),
        seed=rng.randrange(1000),
    )
    with mock.patch.multiple(cpsat, _FINEST=finest, _ROUNDED=min(finest, 6_000)):
        run(task, case, time.perf_counter() + 30, hand)
    best = max(bounds, default=0)
    what = "CP-SAT" if finest == 30_000 else "CP-SAT, rounded"
    report.expect(best <= known.value_ns, f"holds: {what}", best, known.value_ns, task)
    report.counts[f"tight: {what}"] += best == known.value_ns
    if known.optimal:
        report.expect(min(found, default=known.value_ns) >= known.value_ns, "CP-SAT finds nothing below the optimum")


def _relaxations(problem: Problem, known: _Known, rng: random.Random, report: Report) -> None:
    """Each kind of relaxation by itself, told nothing of the value."""
    high = rng.choice([known.value_ns + 1, known.value_ns + 2, 2 * known.value_ns + 5, 10 * known.value_ns + 50])
    route = problem.placement.routes[0]
    p, m = len(route), problem.microbatches
    unit = rng.choice([None, None, 2, 3, max(1, known.value_ns // rng.randint(3, 30))])
    tried: list[tuple[str, Callable[[], tuple[int, str]]]] = []

    def whole(kept: tuple[int, ...]) -> tuple[int, str]:
        u = unit or line.exact_unit(problem)
        question = Question(kind="whole", microbatches=m, kept=frozenset(kept), most=high // u)
        answer, _ = refute(line.read_line(problem, u), question, _limits(rng), rng.choice([1, 3, high // u]))
        kind = "quantised" if unit and len(kept) == p else "rank-subset"
        numbers = () if kind == "quantised" else tuple(sorted(route[s] for s in kept))
        return answer.least * u, Relaxation(kind=kind, numbers=numbers, unit_ns=unit).name

    def windows() -> tuple[int, str]:
        u, mark = unit or line.exact_unit(problem), rng.randrange(p)
        proven = Windows(line.read_line(problem, u), high // u, tuple(range(p)), mark)
        work = 0.0
        for done in climb(proven, longest=m, limits=lambda patience: _limits(rng)):
            work += done
            if work > 0.15:
                break
        least, sizes = proven.best()
        return least * u, Relaxation(kind="windows", numbers=sizes, at=route[mark], unit_ns=unit).name

    def improved() -> tuple[int, str]:
        told: list[Bound] = []
        with mock.patch.multiple(line, FINEST=rng.choice([30_000, 20]), _FINE=30, _COARSEST=6):
            improve_bound(
                problem,
                incumbent_ns=high,
                best=Bound(0, "none"),
                time_limit_s=30.0,
                work_limit=0.1,
                seed=rng.randrange(1000),
                on_bound=told.append,
            )
        best = max(told, key=lambda b: b.value_ns, default=Bound(0, "none"))
        return best.value_ns, best.name

    some = tuple(rng.sample(range(p), rng.randint(1, p)))
    tried = [
        ("rank-subset", lambda: whole(some)),
        ("all ranks", lambda: whole(tuple(range(p)))),
        ("windows", windows),
        ("windows", windows),
        ("improve_bound", improved),
    ]
    for name, prove in rng.sample(tried, 2):
        value, said = prove()
        what = f"{name}, rounded" if unit and name != "improve_bound" else name
        report.expect(value <= known.value_ns, f"holds: {what}", value, said, "true", known.value_ns, "told", high)
        report.counts[f"tight: {what}"] += value == known.value_ns
        if value <= known.value_ns:
            verdict = verify_bound(problem, Bound(value, said), time_limit_s=2.0)
            if name != "improve_bound":  # whose units may come from the patched limits
                report.expect(
                    verdict.status != "wrong" or value == 0, "what a relaxation proves is not called wrong", said, value
                )
        verdict = verify_bound(problem, Bound(known.value_ns + 1, said), time_limit_s=0.5)
        report.expect(not verdict.ok, "nothing above the optimum verifies", said, known.value_ns + 1)


def _stretches(problem: Problem, reading: Reading, rng: random.Random, report: Report, seconds: float) -> None:
    """Prefixes and suffixes one by one, held against the least that any order makes of such a stretch."""
    p, m = reading.stages, reading.microbatches
    if m < 2 or 3 * p * m > _ORACLE_OPERATIONS * 2 // 3:
        return
    unit, mark = rng.choice([line.exact_unit(problem), line.exact_unit(problem), 2, 3]), rng.randrange(p)
    read = line.read_line(problem, unit)
    proven = Windows(read, 2 * read.serial + 5, tuple(range(p)), mark)
    work = 0.0
    for done in climb(proven, longest=m, limits=lambda patience: _limits(rng)):
        work += done
        if work > 0.15:
            break
    for kind, known in (("prefix", proven.prefixes), ("suffix", proven.suffixes)):
        sizes = [size for size, least in known.items() if least and size < m]
        if not sizes:
            continue
        size = max(sizes) if rng.random() < 0.5 else rng.choice(sizes)
        first = 0 if kind == "prefix" else m - size  # where the fewest others are in the way
        begin, until = ("F", mark, first), [("F", mark, first + size)]
        last = reading.duration(until[0])  # a prefix ends where that F starts
        if kind == "suffix":
            everywhere = range(p) if problem.objective == "makespan" else [0]
            last, until = 0, [(letter, s, j) for letter in "BW" for s in everywhere for j in range(m)]
        claimed = known[size] * unit
        found = best_within(reading, claimed - 1 + last, seconds=seconds, stretch=(begin, until))
        report.counts[f"{kind} by itself, certain"] += found.certain
        report.expect(found.rows is None, f"holds: {kind} by itself", size, mark, unit, claimed, found.value_ns, first)


def _limits(rng: random.Random) -> Limits:
    return Limits(seconds=10.0, deterministic=0.05, seed=rng.randrange(1000))


def _certificates(problem: Problem, solution: Solution, known: _Known, rng: random.Random, report: Report) -> None:
    """The answer's own bound verifies; one above what is attained does not."""
    verdict = verify_bound(problem, Bound(solution.lower_bound_ns, solution.bound), time_limit_s=3.0)
    report.expect(verdict.status != "wrong", "the answer's bound is not called wrong", solution.bound, verdict.message)
    report.counts[f"own bound: {verdict.status}"] += 1
    for more in [rng.choice((1, 1, rng.randint(2, 5 + known.value_ns)))]:
        false = Bound(
            known.value_ns + more, rng.choice([solution.bound, solution.bound, "load", "counting", "CP-SAT", "?"])
        )
        verdict = verify_bound(problem, false, time_limit_s=0.7)
        report.expect(not verdict.ok, "no false bound verifies", false)


def _files(problem: Problem, reading: Reading, solution: Solution, known: _Known, report: Report) -> None:
    """`zbsolve check --bound` on the answer's file, and on one of a poor order that claims more than the optimum."""

    def check(given: Solution) -> tuple[int, str]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "t.json")
            path.write_bytes(timetable_bytes(given))
            done = CliRunner().invoke(cli, ["check", str(path), "--bound", "--bound-time", "2", "--json"])
        return done.exit_code, json.loads(done.stdout).get("verdict", "")

    code, verdict = check(solution)
    report.expect(code == 0 and verdict != "wrong", "check --bound accepts the answer's file", code, verdict)
    poor = simulate(problem, reading.order(_serial(reading)))
    figures = metrics(poor)
    value = figures.period_ns if problem.objective == "period" else figures.makespan_ns
    if value <= known.value_ns or reading.fault(_serial(reading)):
        return
    false = replace(
        solution,
        timetable=poor,
        metrics=figures,
        value_ns=value,
        lower_bound_ns=known.value_ns + 1,
        status="optimal" if value == known.value_ns + 1 else "feasible",
        gap=value / (known.value_ns + 1) - 1,
    )
    code, verdict = check(false)
    report.expect(verdict != "verified", "check --bound verifies no false claim", solution.bound, known.value_ns + 1)
    report.counts[f"false claims in files: {verdict}"] += 1


def _related(
    problem: Problem,
    reading: Reading,
    solution: Solution,
    known: _Known,
    rng: random.Random,
    options: dict[str, Any],
    report: Report,
) -> None:
    """Other problems of which something follows, and the same one again."""
    choice = rng.randrange(5)
    options = {"time_limit_s": 60.0, **options}
    start = reading.order(known.rows)
    if choice == 0 and options["work_limit"] is not None:
        again = solve(problem, **options)
        same = (again.timetable.order, again.value_ns, again.lower_bound_ns, again.bound)
        expected = (solution.timetable.order, solution.value_ns, solution.lower_bound_ns, solution.bound)
        report.expect(same == expected, "a work limit makes it repeat", options)
    elif choice == 1:
        again = solve(problem, **options, start=_relabelled(reading, known.rows, rng))
        report.expect(again.value_ns <= known.value_ns, "a start is never lost", options)
        report.expect(again.value_ns == known.value_ns or not known.optimal, "a start makes nothing impossible")
    elif choice == 2:
        limits = tuple(None if v is None or rng.random() < 0.2 else v + rng.randint(0, 4) for v in reading.limits)
        loose = replace(problem, memory_limit=limits)
        with _no_false_bounds(report):
            more = solve(loose, **options, start=start)
        report.expect(more.value_ns <= known.value_ns, "more memory with a start is never worse")
        report.expect(more.lower_bound_ns <= known.value_ns, "a bound for more memory holds for less")
        if solution.status == "optimal":
            free = solve(loose, **options)
            report.expect(
                free.lower_bound_ns <= solution.value_ns, "a bound for more memory holds for less", free.bound
            )
    elif choice == 3 and all(e.bytes_per_second is None for e in (reading.link, *reading.link.overrides)):
        factor, size = rng.choice([2, 3, 10, 1_000, 10**13]), rng.choice([1, 3, 1_000, 10**14])
        other = _scaled(problem, factor, size)
        with _no_false_bounds(report):
            scaled = solve(other, **options)
        exact = reading.exact(known.rows) * factor
        report.expect(scaled.lower_bound_ns <= math.ceil(exact), "a bound scales", scaled.bound, factor, size)
        timed = Reading(other).value(known.rows)
        report.expect(timed == math.ceil(exact), "a value scales", timed, factor)
        simulated = simulate(other, start)
        value = simulated.period_ns if reading.periodic else simulated.makespan_ns
        report.expect(value == timed, "a simulated value scales", value, timed, factor)
        found = violations(other, scaled.timetable, claimed_ns=scaled.value_ns)
        report.expect(not found, "the answer to scaled costs passes the check", found[:1])
        if known.optimal:
            report.expect(scaled.value_ns > factor * (known.value_ns - 1), "an optimum scales", factor, size)
    elif choice == 4:
        for allow in ({"split"}, {"fused"}):
            if allow < problem.allow:
                fewer = replace(problem, allow=frozenset(allow))
                if any(
                    limit is not None and limit < least
                    for limit, least in zip(reading.limits, smallest_limits(fewer), strict=True)
                ):
                    continue
                other = solve(fewer, **options)
                report.expect(solution.lower_bound_ns <= other.value_ns, "a bound holds for fewer choices", allow)


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
        if any(reading.route_of[a] != reading.route_of[b] for a, b in enumerate(names)):
            continue
        letters = rng.choice(["FBWD", "F", "W", "B"])
        traded = [[(n[0], n[1], names[n[2]] if n[0] in letters else n[2]) for n in row] for row in rows]
        if not reading.fault(traded) and reading.value(traded) <= reading.value(rows):
            return reading.order(traded)
    return reading.order(rows)
