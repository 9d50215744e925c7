"""The numbers that stand for kinds of operations, and the arrays of the graph."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zbsolve.ops import Kind

Int8 = NDArray[np.int8]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

KINDS: tuple[Kind, ...] = (
    Kind.FORWARD,
    Kind.BACKWARD_INPUT,
    Kind.BACKWARD_WEIGHT,
    Kind.BACKWARD,
    Kind.RECOMPUTE,
    Kind.OFFLOAD,
    Kind.RELEASE,
    Kind.RELOAD,
    Kind.REDUCE_GRADIENT,
    Kind.OPTIMIZER,
)
"""What the numbers in `OpGraph.kind` mean."""

F, B, W, BW, AGAIN, OFFLOAD, RELEASE, RELOAD, REDUCE, OPTIMIZER = range(len(KINDS))
MICROBATCH_KINDS = 8
CODE = {kind: code for code, kind in enumerate(KINDS)}
DONE_BY = (
    (Kind.FORWARD, (F,)),
    (Kind.BACKWARD_INPUT, (B, BW)),
    (Kind.BACKWARD_WEIGHT, (W, BW)),
    (Kind.RECOMPUTE, (AGAIN,)),
    (Kind.OFFLOAD, (OFFLOAD,)),
    (Kind.RELEASE, (RELEASE,)),
    (Kind.RELOAD, (RELOAD,)),
)
OPTIONAL = frozenset({Kind.RECOMPUTE, Kind.OFFLOAD, Kind.RELEASE, Kind.RELOAD})
"""Done at most once, the others exactly once."""

ABSENT = -1
