"""What splitting the backward costs and saves: `python -m benchmarks.split [--json]`.

Transformer blocks on the CPU, one thread. Each round runs plain autograd, our B and W, our fused
backward, and torch's I and W one after the other, so that whatever else the machine does falls on
all of them alike; medians over rounds. The bytes are those of the storages alive.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from zbsolve.executor.split import SplitStage
from zbsolve.executor.split.held import Watch, storages

SHAPES = ((64, 2, 1, 32), (64, 8, 1, 32), (64, 4, 4, 64), (128, 4, 2, 64), (256, 2, 2, 64))
"""Width, blocks, batch, time."""


class Block(nn.Module):
    """A pre-norm transformer block with four heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, time, width) to the same."""
        b, t, d = x.shape
        q, k, v = self.qkv(self.first(x)).view(b, t, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, d))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds of this thread, and the result."""
    start = time.thread_time_ns()
    result = action()
    return (time.thread_time_ns() - start) / 1e6, result


def overhead(width: int, blocks: int, batch: int, length: int, rounds: int) -> dict[str, Any]:
    """Medians of one shape, in milliseconds, and what split and fused cost over plain autograd."""
    torch.manual_seed(0)
    plain = nn.Sequential(*[Block(width) for _ in range(blocks)])
    stage, theirs = SplitStage(copy.deepcopy(plain)), copy.deepcopy(plain)
    x, dy = torch.randn(batch, length, width), torch.randn(batch, length, width)
    for module in (plain, stage.module, theirs):
        for parameter in module.parameters():
            parameter.grad = torch.zeros_like(parameter)
    times: dict[str, list[float]] = {}

    def note(name: str, action: Callable[[], Any]) -> Any:
        spent, result = timed(action)
        times.setdefault(name, []).append(spent)
        return result

    def one_round() -> None:
        """Each backward also lets go of its graph, so the last reference to it is handed over in a list."""
        leaf = x.clone().requires_grad_()
        held = [note("forward", lambda: plain(leaf))]
        note("backward", lambda: torch.autograd.backward(held.pop(), dy))
        note("split forward", lambda: stage.forward(0, x, requires_grad=[True]))
        note("B", lambda: stage.backward_input(0, [dy]))
        note("W", lambda: stage.backward_weight(0))
        stage.forward(0, x, requires_grad=[True], split=False)
        note("fused", lambda: stage.backward(0, [dy]))
        other = x.clone().requires_grad_()
        parameters = list(theirs.parameters())
        # times 1: torch detaches its outputs in place, which a view refuses
        held = [theirs(other) * 1.0]
        groups = note("torch I", lambda: stage_backward_input([held.pop()], [dy], [other], iter(parameters))[1])
        note("torch W", lambda: stage_backward_weight(iter(parameters), groups))

    for _ in range(rounds):
        one_round()
    skip = rounds // 10
    median = {name: statistics.median(values[skip:]) for name, values in times.items()}

    def over(*names: str) -> float:
        sums = [sum(parts) for parts in zip(*(times[n][skip:] for n in names), strict=True)]
        return statistics.median(s / p for s, p in zip(sums, times["backward"][skip:], strict=True)) - 1

    return {
        "width": width,
        "blocks": blocks,
        "positions": batch * length,
        "ms": {name: round(value, 3) for name, value in median.items()},
        "split_over_backward": round(over("B", "W"), 3),
        "fused_over_backward": round(over("fused"), 3),
        "torch_over_backward": round(over("torch I", "torch W"), 3),
    }


def memory(width: int, batch: int, length: int) -> list[dict[str, Any]]:
    """Bytes alive of one block after each operation; inputs, outputs and their gradients apart."""
    block = Block(width)
    x, dy = torch.randn(batch, length, width), torch.randn(batch, length, width)
    known = storages([*block.parameters(), x, dy])
    watch = Watch()

    def alive() -> int:
        return sum(size for key, size in watch.made.alive().items() if key not in known)

    with watch:
        leaf = x.detach().requires_grad_()
        y = block(leaf)
        known |= storages([y])
        theirs = [alive()]
        _, groups = stage_backward_input([y], [dy], [leaf], block.parameters())
        known |= storages([leaf.grad])
    theirs.append(alive())
    stage_backward_weight(block.parameters(), groups)
    del groups, y, leaf
    block.zero_grad()
    known |= storages(p.grad for p in block.parameters() if p.grad is not None)
    theirs.append(alive())

    def ours(norms_wait: bool) -> list[int]:
        stage = SplitStage(block, watch=True, norms_wait=norms_wait)
        held = []
        for step in (
            lambda: stage.forward(0, x, requires_grad=[True]),
            lambda: stage.backward_input(0, [dy]),
            lambda: stage.backward_weight(0),
        ):
            step()
            bytes_held = stage.held_bytes()
            held.append(bytes_held.total - (bytes_held.inputs or 0))
        block.zero_grad()
        return held

    names = ("after_forward_bytes", "after_backward_input_bytes", "after_backward_weight_bytes")
    rows = (("torch", theirs), ("zbsolve", ours(False)), ("zbsolve, norms wait", ours(True)))
    return [{"runtime": name, **dict(zip(names, held, strict=True))} for name, held in rows]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=40, help="rounds of each shape")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    gc.disable()
    results = {
        "overhead": [overhead(*shape, rounds=arguments.rounds) for shape in SHAPES],
        "memory": memory(256, 2, 128),
    }
    if arguments.json:
        print(json.dumps(results, indent=1))
        return
    for row in results["overhead"]:
        over = {k: f"{row[k]:+.1%}" for k in ("split_over_backward", "fused_over_backward", "torch_over_backward")}
        print(row["width"], row["blocks"], row["positions"], over, row["ms"])
    for row in results["memory"]:
        print(row)


if __name__ == "__main__":
    main()
