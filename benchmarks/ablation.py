"""What each arm of the search and each bound contributes.

Run as ``python -m benchmarks.ablation [--time-limit 20] [--only TEXT] [--seed 0] [--json]``: a few hard rows are
solved with all arms, then without each, and every bound that applies is set beside the best one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from benchmarks.solver import SUITES, problem_of, read_suite
from zbsolve.bounds import lower_bounds
from zbsolve.solver.director import ARMS
from zbsolve.solver.driver import solve_without

HARD = (
    ("profiled-8stage", 4960),
    ("profiled-8stage", 3720),
    ("paper-1.5B-p8-m24", "0.75x"),
    ("paper-1.5B-p8-m24", "1.5x"),
    ("paper-6.2B-p8-m64", "0.9x"),
    ("random25pct_s0_p8", "0.75x"),
    ("unit-p8-m24", "0.9x"),
)
"""Rows whose memory or costs leave something to search for and to prove."""


def rows(*, only: str, time_limit_s: float, seed: int) -> Iterator[dict[str, Any]]:
    """One row a problem: values and bounds with everything and without each arm, and the analytic bounds."""
    instances = {each["name"]: each for suite in SUITES for each in read_suite(suite)}
    for name, memory in HARD:
        if only not in name:
            continue
        problem = problem_of(instances[name], memory)
        runs = {}
        for left_out in ("nothing", *ARMS):
            without = frozenset({left_out} & set(ARMS))
            solution = solve_without(without, problem, time_limit_s=time_limit_s, seed=seed)
            runs[left_out] = {"period_ns": solution.value_ns, "lower_bound_ns": solution.lower_bound_ns}
        yield {
            "instance": name,
            "memory": str(memory),
            "without": runs,
            "bounds": {bound.name: bound.value_ns for bound in lower_bounds(problem)},
        }


def show(row: dict[str, Any]) -> str:
    """A row as text: how much worse the value and the bound get, in percent of those with everything."""
    best = row["without"]["nothing"]
    lines = [f"{row['instance']} {row['memory']}: {best['period_ns']} ns, bound {best['lower_bound_ns']} ns"]
    for name, run in row["without"].items():
        if name != "nothing":
            longer = run["period_ns"] / best["period_ns"] - 1
            weaker = 1 - run["lower_bound_ns"] / best["lower_bound_ns"]
            lines.append(f"  without {name:<38} value {longer:+7.2%}  bound {-weaker:+7.2%}")
    for name, value in row["bounds"].items():
        lines.append(f"  bound   {name:<38} {value / best['lower_bound_ns'] - 1:+7.2%}")
    return "\n".join(lines)


def main() -> None:
    """Read the command line, solve, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ablation", description=__doc__)
    parser.add_argument("--only", default="", help="only instances whose name contains this")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds for each solve (default: 20)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    given = parser.parse_args()
    done = []
    for row in rows(only=given.only, time_limit_s=given.time_limit, seed=given.seed):
        done.append(row)
        if not given.json:
            print(show(row), flush=True)
    if given.json:
        print(json.dumps({"rows": done}, indent=1))


if __name__ == "__main__":
    main()
