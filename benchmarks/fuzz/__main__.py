"""Is every answer valid, and every bound true? `python -m benchmarks.fuzz [--problems N] [--seed S]`.

Draws random small problems of every shape, solves each, and holds values and bounds against the rules and
against optima found by another model. Counts what was checked; the exit code is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.fuzz.judge import judge
from benchmarks.fuzz.oracle import Reading
from benchmarks.fuzz.shapes import KINDS, draw


def one(seed: int, number: int, kinds: list[str], seconds: float, deep: float) -> dict[str, Any]:
    """Draw and judge problem `number`; the same again for the same seed and number."""
    rng = random.Random(f"{seed} {number}")
    kind = kinds[number % len(kinds)]
    problem = draw(kind, rng)
    began = time.process_time()
    report = judge(problem, rng, seconds=seconds, deep=deep)
    return {
        "number": number,
        "kind": kind,
        "cpu_s": round(time.process_time() - began, 3),
        "counts": dict(report.counts),
        "faults": report.faults,
        **({"problem": repr(problem)} if report.faults else {}),
        "operations": 3 * Reading(problem).stages * problem.microbatches,
    }


def summary(lines: list[dict[str, Any]], most_shown: int = 5) -> str:
    """Counts by kind and by check, and the first faults in full."""
    text = [
        f"{'kind':<30} {'problems':>8} {'optimum known':>14} {'found':>7} {'with more work':>15} "
        f"{'proven':>7} {'faults':>7}"
    ]
    for kind in KINDS:
        mine = [line for line in lines if line["kind"] == kind]
        total = sum((Counter(line["counts"]) for line in mine), Counter[str]())
        known, found, more, proven = (
            total[f"optimum {word}"] for word in ("known", "found", "found with more work", "proven")
        )
        faults = sum(len(line["faults"]) for line in mine)
        text.append(f"{kind:<30} {len(mine):>8} {known:>14} {found:>7} {found + more:>15} {proven:>7} {faults:>7}")
    total = sum((Counter(line["counts"]) for line in lines), Counter[str]())
    text += ["", *(f"{count:>9}  {what}" for what, count in sorted(total.items()))]
    faulty = [line for line in lines if line["faults"]]
    for line in faulty[:most_shown]:
        text += ["", f"problem {line['number']} ({line['kind']})", *line["faults"], line["problem"]]
    seconds = sum(line["cpu_s"] for line in lines)
    text += ["", f"{len(lines)} problems, {len(faulty)} with faults, {seconds:.0f} s of processor time"]
    return "\n".join(text)


def main() -> int:
    """Read the command line, judge, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("--problems", type=int, default=200, help="how many (default: 200)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first problem (default: 0)")
    parser.add_argument("--only", default="", help="only kinds whose name contains this")
    parser.add_argument("--oracle-seconds", type=float, default=3.0, help="for one optimum (default: 3)")
    parser.add_argument("--deep", type=float, default=0.3, help="of how many to look at each relaxation (default: 0.3)")
    parser.add_argument("--log", type=Path, help="a file with a line a problem; what stands there is not done again")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    given = parser.parse_args()
    kinds = [kind for kind in KINDS if given.only in kind]
    if not kinds:
        parser.error(f"no kind has {given.only!r} in its name; there are: {', '.join(KINDS)}")
    lines: list[dict[str, Any]] = []
    if given.log is not None and given.log.exists():
        lines = [json.loads(text) for text in given.log.read_text().splitlines()]
    done = {line["number"] for line in lines}
    for number in range(given.first, given.first + given.problems):
        if number in done:
            continue
        line = one(given.seed, number, kinds, given.oracle_seconds, given.deep)
        lines.append(line)
        if given.log is not None:
            with given.log.open("a") as log:
                log.write(json.dumps(line) + "\n")
        if line["faults"]:
            print(f"problem {number} ({line['kind']}): {line['faults'][0][:300]}", file=sys.stderr, flush=True)
    print(json.dumps({"problems": lines}) if given.json else summary(lines))
    return 1 if any(line["faults"] for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
