"""What must hold of an answer: the rules, its own figures, and that nothing is better than what is called optimal."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner

from benchmarks.fuzz.oracle import best_within
from benchmarks.fuzz.trial import ORACLE_OPERATIONS, Trial
from zbsolve.catalog import baseline, schedules
from zbsolve.check import violations
from zbsolve.cli import main as cli
from zbsolve.errors import ScheduleConditionError
from zbsolve.files import timetable_bytes
from zbsolve.metrics import metrics
from zbsolve.simulate import simulate
from zbsolve.solution import Solution

__all__ = ["better", "files", "itself", "published"]


def itself(trial: Trial, solution: Solution) -> None:
    """The answer by itself."""
    report, reading, rows = trial.report, trial.reading, trial.rows
    report.expect(not reading.fault(rows), "the order is allowed", reading.fault(rows))
    found = violations(trial.problem, solution.timetable, claimed_ns=solution.value_ns)
    report.expect(not found, "the answer passes the check", found[:1])
    report.expect(solution.value_ns == trial.value_ns, "the value is the order's", solution.value_ns, trial.value_ns)
    report.expect(list(solution.metrics.peak_bytes) == reading.peaks(rows), "the peaks are the order's")
    report.expect(solution.lower_bound_ns <= solution.value_ns, "the bound is at most the value")
    met = solution.lower_bound_ns == solution.value_ns
    report.expect((solution.status == "optimal") == met, "optimal means that value and bound meet")


def published(trial: Trial, solution: Solution) -> None:
    """Schedules of the catalog that fit: none is better than an answer that was given the steps to time them."""
    thorough = not trial.options["gap"] and (trial.options["work_limit"] or 0) >= 1_000
    for schedule in schedules():
        try:
            rows = trial.reading.rows(baseline(schedule.name, trial.problem))
        except ScheduleConditionError:
            continue
        if not trial.reading.fault(rows):
            if thorough:
                value = trial.reading.value(rows)
                trial.report.expect(solution.value_ns <= value, "no published schedule is better", schedule.name)
            trial.know(rows)


def better(trial: Trial) -> None:
    """Ask the oracle for anything better than the best known."""
    report, reading = trial.report, trial.reading
    if trial.value_ns == 0:
        trial.optimal = True
        return
    if trial.operations > ORACLE_OPERATIONS:
        report.counts["too large for the oracle"] += 1
        return
    any_turn = trial.operations <= 27 and trial.rng.random() < 0.5
    found = best_within(reading, trial.value_ns - 1, seconds=trial.seconds, any_turn=any_turn)
    report.counts["oracle asked"] += 1
    if found.rows is not None:
        right = reading.value(found.rows) < trial.value_ns and not reading.fault(found.rows)
        report.expect(right, "the oracle is right", reading.fault(found.rows))
        trial.know(found.rows)
    trial.optimal = found.certain


def files(trial: Trial, solution: Solution) -> None:
    """`zbsolve check --bound` on the answer's file, and on one of a poor order that claims more than the optimum."""
    report = trial.report
    code, verdict = _check(solution)
    report.expect(code == 0 and verdict != "wrong", "check --bound accepts the answer's file", code, verdict)
    rows, false_ns = trial.reading.serial(), trial.value_ns + 1
    poor = simulate(trial.problem, trial.reading.order(rows))
    figures = metrics(poor)
    value = figures.period_ns if trial.problem.objective == "period" else figures.makespan_ns
    if value < false_ns or trial.reading.fault(rows):
        return
    false = replace(
        solution,
        timetable=poor,
        metrics=figures,
        value_ns=value,
        lower_bound_ns=false_ns,
        status="optimal" if value == false_ns else "feasible",
        gap=value / false_ns - 1,
    )
    code, verdict = _check(false)
    report.expect(verdict != "verified", "check --bound verifies no false claim", solution.bound, false_ns)
    report.counts[f"false claims in files: {verdict}"] += 1


def _check(given: Solution) -> tuple[int, str]:
    """Exit code, and the verdict on the bound."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.json")
        path.write_bytes(timetable_bytes(given))
        done = CliRunner().invoke(cli, ["check", str(path), "--bound", "--bound-time", "2", "--json"])
    return done.exit_code, json.loads(done.stdout).get("verdict", "")
