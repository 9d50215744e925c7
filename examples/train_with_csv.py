"""How to train by an emitted schedule in your own script, under torchrun.

After `small_transformer.py`'s commands::

    torchrun --nproc-per-node 4 examples/train_with_csv.py solved.csv

Only the lines marked with (1) to (4) are about the schedule; all else is your training loop. The
file beside the CSV says which stages each rank holds and how many microbatches there are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

sys.path.insert(0, str(Path(__file__).parent))
from small_transformer import batch

STEPS = 10


def main(csv: str) -> None:
    """Train for a few steps; the rank of the last stage prints the loss."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    about = json.loads(Path(csv + ".json").read_text(encoding="utf-8"))  # (1) what the CSV does not say
    modules, (inputs, target), loss_fn = batch(about["microbatches"])
    own = about["stages_of_rank"][rank]  # (2) this rank's stages, ascending
    stages = [PipelineStage(modules[s], s, len(modules), torch.device("cpu")) for s in own]
    schedule = _PipelineScheduleRuntime(stages, n_microbatches=about["microbatches"], loss_fn=loss_fn)
    schedule._load_csv(csv, format="compute_only")  # (3) the emitted schedule

    optimizer = torch.optim.AdamW([p for s in own for p in modules[s].parameters()], lr=1e-3)
    first, last = 0 in own, len(modules) - 1 in own
    for step in range(STEPS):
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        options = {"target": target, "losses": losses} if last else {}
        schedule.step(*((inputs,) if first else ()), **options)  # (4) one iteration
        optimizer.step()
        if last:
            print(f"step {step}: loss {torch.stack(losses).mean().item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: torchrun --nproc-per-node RANKS {sys.argv[0]} SCHEDULE.csv")
    main(sys.argv[1])
