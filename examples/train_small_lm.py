"""Training a small language model by a timetable: no barrier, a checkpoint, and the proof that nothing changes.

All ranks as threads of one process, or one rank a process; the script is the same::

    python examples/train_small_lm.py
    torchrun --nproc-per-node 4 examples/train_small_lm.py --timetable solved.json

It trains a transformer on the bytes of a text, saves a checkpoint half way, starts again from that
checkpoint with other weights, and trains the same model once more as one module in one process. All three
loss curves have the same bits (only a clipped step would part the last one from the others, by rounding, as it adds
up the norm in another order). Lines marked (1) to (4) are about the pipeline; all else is your training loop.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib.resources import files
from pathlib import Path

import torch
from torch import nn

from zbsolve.catalog import baseline
from zbsolve.demo.model import STAGES, build, next_byte_loss
from zbsolve.executor.runtime import Pipeline
from zbsolve.files import read_timetable
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Profile
from zbsolve.simulate import simulate
from zbsolve.timetable import Timetable

WIDTH, LENGTH, SEQUENCES = 64, 32, 2
MAX_GRAD_NORM = 10.0
RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
Losses = dict[int, torch.Tensor]
TEXT = torch.tensor(list(files("zbsolve.demo").joinpath("text.txt").read_bytes()))


def zb_h1() -> Timetable:
    """Four equal stages on four ranks, eight microbatches."""
    profile = Profile.uniform(STAGES, forward_ns=1, backward_input_ns=1, backward_weight_ns=1)
    problem = Problem(profile=profile, placement=Placement.linear(STAGES), microbatches=8)
    return simulate(problem, baseline("zb-h1", problem))


def stages(seed: int) -> Sequence[nn.Module]:
    """The model in four parts; every process makes the same."""
    return build(seed=seed, width=WIDTH, length=LENGTH, dtype="float32")[0]


def data(step: int, microbatches: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch of a step: random windows of the text, and the bytes one further."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(TEXT) - LENGTH - 1, (microbatches * SEQUENCES, 1), generator=generator)
    windows = TEXT[starts + torch.arange(LENGTH + 1)]
    return windows[:, :-1], windows[:, 1:]


def make_optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Any optimizer of torch does."""
    return torch.optim.AdamW(parameters, lr=2e-3)


def train(
    timetable: Timetable, steps: range, seed: int, *, say: Callable[[str], object], load: str = "", save: str = ""
) -> Losses:
    """Train by the timetable; the losses, on the process that has the last stage."""
    losses: Losses = {}
    with Pipeline(  # (1) by default threads, under torchrun processes
        timetable, stages(seed), next_byte_loss, optimizer=make_optimizer, max_grad_norm=MAX_GRAD_NORM
    ) as pipe:
        if load:
            pipe.load_state_dict(torch.load(load, weights_only=True))  # (2)
        for step in steps:
            loss = pipe.step(*data(step, timetable.problem.microbatches))  # (3) forward, backward, clip, update
            if loss is not None:
                losses[step] = loss
                if step % 20 == 0 or step == steps[-1]:
                    say(f"  step {step:>3}: loss {loss.item():.4f}")
            if save and step == steps[len(steps) // 2 - 1]:
                torch.save(pipe.state_dict(), save)  # (4) what this process holds
        pipe.flush()  # the last step is settled only when every rank knows of all the others
        if losses:
            clipped = sum(validation.norm > MAX_GRAD_NORM for validation in pipe.validations)
            undone = sum(validation.rerun for validation in pipe.validations)
            say(f"  of the last {len(pipe.validations)} steps {clipped} were clipped and {undone} were undone for that")
    return losses


def train_in_one_process(steps: range, seed: int, microbatches: int) -> Losses:
    """The same without any pipeline: gradients accumulate over the microbatches."""
    model = nn.Sequential(*stages(seed))
    parameters = list(model.parameters())
    optimizer = make_optimizer(parameters)
    losses: Losses = {}
    for step in steps:
        optimizer.zero_grad()
        parts = []
        for inputs, target in zip(*(t.chunk(microbatches) for t in data(step, microbatches)), strict=True):
            loss = next_byte_loss(model(inputs), target)
            (loss / microbatches).backward()
            parts.append(loss.detach())
        losses[step] = torch.stack(parts).sum() / microbatches
        nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM)
        optimizer.step()
    return losses


def same(found: Losses, wanted: Losses) -> bool:
    """Whether the losses are equal bit by bit."""
    return all(torch.equal(loss, wanted[step]) for step, loss in found.items())


def main(steps: int, timetable: Timetable, directory: Path) -> int:
    """Train three times and compare; the exit code."""
    torch.set_num_threads(1)

    def say(text: str) -> None:
        print(text, flush=True)

    checkpoint = str(directory / f"checkpoint-{RANK}.pt")
    whole = range(steps)
    losses = train(timetable, whole, seed=0, say=say, save=checkpoint)
    rest = train(timetable, range(steps // 2, steps), seed=1, say=lambda _: None, load=checkpoint)
    if not losses:
        return 0  # the last stage is elsewhere
    resumed = same(rest, losses)
    say(f"resumed from the checkpoint of step {steps // 2}: the losses {'have the same bits' if resumed else 'DIFFER'}")
    plain = train_in_one_process(whole, seed=0, microbatches=timetable.problem.microbatches)
    equal = same(losses, plain)
    furthest = max(abs(loss.item() - plain[step].item()) for step, loss in losses.items())
    say(f"one process, no pipeline: the losses {'have the same bits' if equal else f'DIFFER by up to {furthest:.1e}'}")
    return 0 if resumed and equal else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="at least 2")
    parser.add_argument("--timetable", help="a file of zbsolve solve for four stages; default: ZB-H1")
    parser.add_argument("--directory", type=Path, help="where checkpoints go; default: one that is removed")
    options = parser.parse_args()
    where = nullcontext(options.directory) if options.directory else tempfile.TemporaryDirectory()
    if options.directory:
        options.directory.mkdir(parents=True, exist_ok=True)
    with where as folder:
        table = read_timetable(options.timetable) if options.timetable else zb_h1()
        sys.exit(main(options.steps, table, Path(folder)))
