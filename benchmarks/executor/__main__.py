"""`python -m benchmarks.executor [--quick] [--json]`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import torch

from benchmarks.executor import overhead, peak, steps
from benchmarks.executor.figures import machine
from benchmarks.split import memory


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.executor", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer turns of each; under 50 s")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    quick, began = arguments.quick, time.perf_counter()
    before = machine()
    # first, as its processes are forked from this one and nothing may have started threads yet
    rows, barrier = steps.run(
        rounds=2 if quick else 9, barrier_rounds=1 if quick else 3, barrier_steps=4 if quick else 6
    )
    found = {
        "steps": rows,
        "overhead": overhead.run(rounds=40 if quick else 300, split_rounds=40 if quick else 300),
        "memory": memory(256, 2, 128),
        "peak": peak.run(),
        "barrier": barrier,
        "machine": {"before": before, "after": machine(), "torch": torch.__version__},
        "seconds": round(time.perf_counter() - began, 1),
    }
    if arguments.json:
        print(json.dumps(found, indent=1))
    else:
        _show(found)


def _show(found: dict[str, Any]) -> None:
    print(
        f"{'schedule':<12} {'runtime':<13} {'predicted':>10} {'measured':>10} {'ratio':>8}   lowest - highest    CPU/op"
    )
    for row in found["steps"]:
        range_ = f"{row['spread']['lowest']:.0f} - {row['spread']['highest']:.0f} ms"
        print(
            f"{row['schedule']:<12} {row['runtime']:<13} {row['predicted_ms']:>7.0f} ms {row['measured_ms']:>7.0f} ms "
            f"{row['ratio']:>8.3f}   {range_:<18} {row['cpu_us_per_operation']:>5.0f} us"
        )
    print(f"\n{'runtime':<8} {'us per action':>14} {'CPU us':>8} {'(B + W) / backward - 1':>24}")
    for row in found["overhead"]:
        print(
            f"{row['runtime']:<8} {row['us_per_action']:>14.1f} {row['cpu_us_per_action']:>8.1f} "
            f"{row['split_over_backward']:>24.3f}"
        )
    print("\nbytes held after            F            B            W")
    for row in found["memory"]:
        held = (row[f"after_{what}_bytes"] for what in ("forward", "backward_input", "backward_weight"))
        print(f"{row['runtime']:<20}" + "".join(f"{value:>13,}" for value in held))
    ratios = [row["ratio"] for row in found["peak"]]
    schedules = dict.fromkeys(row["schedule"] for row in found["peak"])
    print(
        f"\nbytes at the peak over the prediction, every rank of {', '.join(schedules)}: "
        f"{min(ratios):.3f} to {max(ratios):.3f}"
    )
    barrier = found["barrier"]
    print(
        f"\n{barrier['schedule']}, steps in a row: {barrier['with_ms']:.0f} ms with a barrier at the optimizer "
        f"(predicted {barrier['predicted_with_ms']:.0f}), {barrier['without_ms']:.0f} ms with post-validation "
        f"(predicted {barrier['predicted_without_ms']:.0f})"
    )
    then, now = found["machine"]["before"], found["machine"]["after"]
    print(
        f"{now['cores']} cores, load {then['load']} before and {now['load']} after; a sleep of 20 ms "
        f"took {now['sleep_of_20_ms']['median']} ms; {found['seconds']} s"
    )


if __name__ == "__main__":
    sys.exit(main())
