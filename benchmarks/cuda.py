"""The executor on one CUDA device, in under four minutes: `python -m benchmarks.cuda [--json] [--rehearse]`.

Equality (gradients of split stages and of pipelines whose ranks are threads on streams of their own; weights with
injected overflows), what splitting the backward costs and saves at real sizes (bf16, hidden 4096), and what a
pipeline adds to a plain loop. Where there is no CUDA device it says so and ends with 0. `--rehearse` runs all of
it on the CPU with tiny sizes, to see that the script is in order; its times say nothing.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# bitwise comparisons need cuBLAS to choose the same way every time
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from benchmarks.split import Block
from zbsolve.catalog import baseline
from zbsolve.executor.clock import clock_of
from zbsolve.executor.gradients import largest_relative_error, plain_gradients
from zbsolve.executor.runtime import Pipeline
from zbsolve.executor.split import SplitStage
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Profile
from zbsolve.simulate import simulate
from zbsolve.timetable import Timetable

PLANS = (
    ("gpipe", Placement.linear(4)),
    ("1f1b", Placement.linear(4)),
    ("zb-h1", Placement.linear(4)),
    ("interleaved-1f1b", Placement.looped(4, 2)),
    ("zb-v", Placement.v(4)),
)
MICROBATCHES = 8


@dataclass(frozen=True, slots=True)
class Size:
    """How large everything is."""

    small_width: int
    width: int
    positions: int
    blocks: int
    rounds: int


REAL = Size(small_width=256, width=4096, positions=2048, blocks=2, rounds=20)
TINY = Size(small_width=16, width=32, positions=16, blocks=2, rounds=3)


def timetable(schedule: str, placement: Placement) -> Timetable:
    """Of equal stages."""
    profile = Profile.uniform(placement.stages, forward_ns=1, backward_input_ns=1, backward_weight_ns=1)
    problem = Problem(profile=profile, placement=placement, microbatches=MICROBATCHES)
    return simulate(problem, baseline(schedule, problem))


def loss_fn(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean square, in float32."""
    return ((output.float() - target.float()) ** 2).mean()


def blocks(count: int, width: int, device: torch.device, dtype: torch.dtype) -> list[nn.Module]:
    """Transformer blocks with fixed weights."""
    torch.manual_seed(0)
    return [Block(width).to(device, dtype) for _ in range(count)]


def batch(width: int, device: torch.device, dtype: torch.dtype, length: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of all microbatches."""
    torch.manual_seed(1)
    x, y = (torch.randn(2 * MICROBATCHES, length, width) for _ in range(2))
    return x.to(device, dtype), y.to(device, dtype)


def equality(size: Size, device: torch.device) -> list[dict[str, Any]]:
    """Pipelines of threads against the plain model, on every schedule and in two precisions."""
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        for schedule, placement in PLANS:
            stages = blocks(placement.stages, size.small_width, device, dtype)
            data = batch(size.small_width, device, dtype)
            reference, _ = plain_gradients(copy.deepcopy(stages), data, loss_fn, MICROBATCHES)
            pipe = Pipeline(timetable(schedule, placement), stages, loss_fn)
            pipe.step(*data)
            found = {
                (s, n): p.grad for s, m in enumerate(stages) for n, p in m.named_parameters() if p.grad is not None
            }
            rows.append(
                {
                    "schedule": schedule,
                    "dtype": str(dtype).removeprefix("torch."),
                    "bitwise": all(torch.equal(found[key], wanted) for key, wanted in reference.items()),
                    "largest_relative_error": largest_relative_error(found, reference),
                }
            )
    return rows


def postvalidation(size: Size, device: torch.device) -> dict[str, Any]:
    """Weights after steps with clips and overflows: at once and undone, against a barrier."""
    schedule, placement = PLANS[2]
    weights = []
    for synchronous in (True, False):
        stages = blocks(placement.stages, size.small_width, device, torch.float32)
        pipe = Pipeline(
            timetable(schedule, placement),
            stages,
            loss_fn,
            optimizer=lambda p: torch.optim.AdamW(p, lr=1e-3),
            max_grad_norm=0.05,
            check_overflow=True,
            synchronous=synchronous,
        )
        for step in range(8):
            x, y = batch(size.small_width, device, torch.float32)
            pipe.step(x * (float("inf") if step in (2, 5) else 1 + step), y)
        pipe.flush()
        weights.append([p.detach().clone() for m in stages for p in m.parameters()])
    undone = sum(validation.rerun for validation in pipe.validations)
    return {"bitwise": all(torch.equal(a, b) for a, b in zip(*weights, strict=True)), "steps": 8, "undone": undone}


def split_cost(size: Size, device: torch.device) -> dict[str, Any]:
    """Milliseconds on the device of plain autograd, our B and W, and torch's, in turn."""
    clock = clock_of(device)
    plain = nn.Sequential(*blocks(size.blocks, size.width, device, torch.bfloat16))
    stage, theirs = SplitStage(copy.deepcopy(plain)), copy.deepcopy(plain)
    x, dy = (torch.randn(1, size.positions, size.width).to(device, torch.bfloat16) for _ in range(2))
    laps: dict[str, list[float]] = {}

    def note(name: str, action: Callable[[], Any]) -> Any:
        first = clock.mark()
        result = action()
        last = clock.mark()
        clock.settle()
        laps.setdefault(name, []).append(clock.between(first, last) / 1e6)
        return result

    def one_round() -> None:
        leaf = x.clone().requires_grad_()
        held = [note("forward", lambda: plain(leaf))]
        note("backward", lambda: torch.autograd.backward(held.pop(), dy))
        note("split forward", lambda: stage.forward(0, x, requires_grad=[True]))
        note("B", lambda: stage.backward_input(0, [dy]))
        note("W", lambda: stage.backward_weight(0))
        other = x.clone().requires_grad_()
        held = [theirs(other) * 1.0]
        groups = note("torch I", lambda: stage_backward_input([held.pop()], [dy], [other], theirs.parameters())[1])
        note("torch W", lambda: stage_backward_weight(theirs.parameters(), groups))

    for _ in range(size.rounds + 3):
        one_round()
    kept = {name: values[3:] for name, values in laps.items()}
    exact = [torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), stage.module.parameters(), strict=True)]

    def over(*names: str) -> float:
        sums = (sum(parts) for parts in zip(*(kept[name] for name in names), strict=True))
        return statistics.median(s / b for s, b in zip(sums, kept["backward"], strict=True)) - 1

    return {
        "width": size.width,
        "positions": size.positions,
        "blocks": size.blocks,
        "dtype": "bfloat16",
        "ms": {name: round(statistics.median(values), 3) for name, values in kept.items()},
        "split_over_backward": round(over("B", "W"), 4),
        "torch_over_backward": round(over("torch I", "torch W"), 4),
        "bitwise_as_autograd": all(exact),
        "report": str(stage.report()),
    }


def split_memory(size: Size, device: torch.device) -> list[dict[str, Any]]:
    """Bytes that the allocator holds for one microbatch after F, B and W, gradients of weights being there already."""
    if device.type != "cuda":
        return []
    module = nn.Sequential(*blocks(size.blocks, size.width, device, torch.bfloat16))
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    x, dy = (torch.randn(1, size.positions, size.width).to(device, torch.bfloat16) for _ in range(2))
    rows = []
    for runtime in ("zbsolve", "torch"):
        for _ in range(2):  # workspaces are made in the first round
            held = []

            def note(base: int, held: list[int] = held) -> None:
                torch.cuda.synchronize(device)
                held.append(torch.cuda.memory_allocated(device) - base)

            torch.cuda.synchronize(device)
            base = torch.cuda.memory_allocated(device)
            if runtime == "zbsolve":
                stage = SplitStage(module)
                outputs: Any = stage.forward(0, x, requires_grad=[True])
                note(base)
                gradients: Any = stage.backward_input(0, [dy])
                del outputs, gradients
                note(base)
                stage.backward_weight(0)
                del stage
            else:
                leaf = x.detach().requires_grad_()
                outputs = [module(leaf) * 1.0]
                note(base)
                groups = stage_backward_input([outputs.pop()], [dy], [leaf], module.parameters())[1]
                leaf.grad = None
                note(base)
                stage_backward_weight(module.parameters(), groups)
                del leaf, groups, outputs
            note(base)
        names = ("after_forward_bytes", "after_backward_input_bytes", "after_backward_weight_bytes")
        rows.append({"runtime": runtime, **dict(zip(names, held, strict=True))})
    return rows


def pipeline_cost(size: Size, device: torch.device) -> dict[str, Any]:
    """A step of four ranks sharing the device, against the plain model's loop: what the runtime adds to the work."""
    schedule, placement = PLANS[2]
    stages = blocks(placement.stages, size.width, device, torch.bfloat16)
    plain = nn.Sequential(*copy.deepcopy(stages))
    x, y = (torch.randn(MICROBATCHES, size.positions // 2, size.width).to(device, torch.bfloat16) for _ in range(2))
    pipe = Pipeline(timetable(schedule, placement), stages, loss_fn)

    def loop() -> None:
        for a, b in zip(x.chunk(MICROBATCHES), y.chunk(MICROBATCHES), strict=True):
            (loss_fn(plain(a), b) / MICROBATCHES).backward()

    laps: dict[str, list[float]] = {"pipeline": [], "loop": []}
    clock = clock_of(device)
    for round_ in range(max(size.rounds // 4, 1) + 1):
        for name, run in (("pipeline", lambda: pipe.step(x, y)), ("loop", loop)):
            clock.settle()
            start = time.perf_counter()
            run()
            clock.settle()
            if round_:
                laps[name].append((time.perf_counter() - start) * 1e3)
    median = {f"{name}_ms": round(statistics.median(values), 2) for name, values in laps.items()}
    return {"schedule": schedule, **median, "ratio": round(median["pipeline_ms"] / median["loop_ms"], 4)}


def main() -> int:
    """Run every part, also after one has failed; the exit code tells."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, tiny")
    arguments = parser.parse_args()
    if not arguments.rehearse and not torch.cuda.is_available():
        print(f"no CUDA device (torch {torch.__version__}): nothing measured; --rehearse runs it small on the CPU")
        return 0
    device, size = (torch.device("cpu"), TINY) if arguments.rehearse else (torch.device("cuda", 0), REAL)
    # kernels of attention whose backward adds up in any order are off while bits are compared
    for enable in (torch.backends.cuda.enable_flash_sdp, torch.backends.cuda.enable_mem_efficient_sdp):
        enable(False)
    parts: dict[str, Callable[[Size, torch.device], Any]] = {
        "equality": equality,
        "postvalidation": postvalidation,
        "split": split_cost,
        "memory": split_memory,
        "pipeline": pipeline_cost,
    }
    name = "cpu, rehearsal" if arguments.rehearse else torch.cuda.get_device_name(device)
    found: dict[str, Any] = {"device": name, "torch": torch.__version__}
    failed = []
    for part, run in parts.items():
        start = time.perf_counter()
        if part == "split":
            for enable in (torch.backends.cuda.enable_flash_sdp, torch.backends.cuda.enable_mem_efficient_sdp):
                enable(True)
        try:
            found[part] = run(size, device)
        except Exception as error:
            found[part] = f"FAILED: {type(error).__name__}: {error}"
            failed.append(part)
        found.setdefault("seconds", {})[part] = round(time.perf_counter() - start, 1)
        if not arguments.json:
            print(f"{part} ({found['seconds'][part]} s)")
            for row in found[part] if isinstance(found[part], list) else [found[part]]:
                print(f"  {row}", flush=True)
    if not failed and not all(row["bitwise"] for row in found["equality"] if row["dtype"] == "float32"):
        failed.append("equality: float32 is not bitwise")
    if not failed and not found["postvalidation"]["bitwise"]:
        failed.append("postvalidation: the weights differ")
    found["failed"] = failed
    if arguments.json:
        print(json.dumps(found, indent=1))
    elif failed:
        print("FAILED: " + "; ".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
