"""How to have your own model measured: a function that returns its stages, a sample and the loss.

Measure it, look at it, and solve it::

    zbsolve profile measure examples/small_transformer.py:stages -o transformer.profile.json
    zbsolve profile show transformer.profile.json
    zbsolve solve transformer.profile.json --microbatches 8 --memory 1.5x -o solved.json
    zbsolve emit solved.json --to torch-csv -o solved.csv

Then train by it with `train_with_csv.py`. In a model of your own, ``stages`` are any modules where
each takes what the one before returns; weights of more than one stage must not be shared, and a
stage must not end in a view (return ``x.clone()`` then), which torch could not split.
"""

from __future__ import annotations

from zbsolve.demo.model import build
from zbsolve.executor.target import Target


def stages() -> Target:
    """``([module of each stage], (inputs, target) of one microbatch, loss_fn)``."""
    return build(dtype="float32", width=128, length=64, sequences=8)


def batch(microbatches: int) -> Target:
    """The same model with a whole batch, for training."""
    return build(dtype="float32", width=128, length=64, sequences=8, microbatches=microbatches)
