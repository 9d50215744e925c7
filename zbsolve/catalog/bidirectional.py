"""Chimera, DualPipe, DualPipeV: two streams of microbatches that fill each other's bubbles.

Every rank holds a stage near the start of one stream and a stage near the end of the other. In
Chimera and DualPipe the streams are two routes in opposite directions over replicated stages, whose
gradients are summed before the optimizer. DualPipeV is DualPipe cut in half: a V on half the ranks
has the same rows without a replica, its streams being the way down and the way back.

    chimera, p = 4, m = 4         F0 .. F2 f1 b1 f3 b3 B0 .. B2      lower case: the other direction
                                  .. F0 f1 F2 f3 b1 B0 b3 B2 ..

DualPipe runs a forward and a backward as one paired operation that hides the communication of
both: so do these, where the profile says what the two take together and the problem allows it.
Without such pairs they run the two one after the other; the order is the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from zbsolve.catalog.conditions import require_bidirectional, require_split, require_v
from zbsolve.catalog.schedule import Member, Schedule, backward, ordered
from zbsolve.errors import ScheduleConditionError
from zbsolve.ops import Kind, Op
from zbsolve.problem import Problem
from zbsolve.timetable import Order

__all__ = ["MEMBERS"]


# ---------------------------------------------------------------------------------- chimera


def chimera(problem: Problem) -> Order:
    """Chimera by direct concatenation: units of p microbatches, half in each direction.

    In slots of equal length, one for a forward and one for a whole backward, the j-th microbatch of a
    unit and direction has its forward on stage s in slot 2j + s and its backward in 2j + 2p - 1 - s.
    With p even the directions never meet in a slot, and units fit together every 2p slots: p - 2 slots
    are lost in all. A rank holds at most p microbatches of one stage each.

    Raises
    ------
    ScheduleConditionError
        If there are no two routes in opposite directions over an even number of ranks.
    """
    down = require_bidirectional(problem, "chimera")
    ranks, seen = len(down), [0, 0]
    slots: dict[int, list[tuple[int, tuple[Op, ...]]]] = {rank: [] for rank in down}
    for microbatch, route in enumerate(problem.route_of or ()):
        unit, place = divmod(seen[route], ranks // 2)
        seen[route] += 1
        for stage, rank in enumerate(problem.placement.routes[route]):
            begin = 2 * ranks * unit + 2 * place
            slots[rank].append((begin + stage, (Op(Kind.FORWARD, stage, microbatch),)))
            slots[rank].append((begin + 2 * ranks - 1 - stage, backward(problem, stage, microbatch)))
    return ordered(problem, {rank: [op for _, ops in sorted(row) for op in ops] for rank, row in slots.items()})


# --------------------------------------------------------------------------------- dualpipe


class _DualRow:
    """The row of one rank in DualPipe: two streams, each first in first out, and W's that were put off.

    Parameters
    ----------
    stages
        The rank's stage in each stream; stream 0 is the one that reaches it first.
    microbatches
        Those of each stream, in order.
    """

    def __init__(self, problem: Problem, stages: Sequence[int], microbatches: Sequence[Sequence[int]]) -> None:
        self.problem, self.stages = problem, stages
        self.to_forward = [deque(stream) for stream in microbatches]
        self.to_backward = [deque(stream) for stream in microbatches]
        self.put_off: deque[Op] = deque()
        self.ops: list[Op] = []

    def forward(self, stream: int) -> None:
        self.ops.append(Op(Kind.FORWARD, self.stages[stream], self.to_forward[stream].popleft()))

    def backward(self, stream: int, *, split: bool) -> None:
        stage, microbatch = self.stages[stream], self.to_backward[stream].popleft()
        if split:
            self.ops.append(Op(Kind.BACKWARD_INPUT, stage, microbatch))
            self.put_off.append(Op(Kind.BACKWARD_WEIGHT, stage, microbatch))
        else:
            self.ops += backward(self.problem, stage, microbatch)

    def together(self, stream: int) -> None:
        """The next forward of a stream with the next backward of the other, in one where that was measured."""
        forward = Op(Kind.FORWARD, self.stages[stream], self.to_forward[stream][0])
        back = Op(Kind.BACKWARD, self.stages[1 - stream], self.to_backward[1 - stream][0])
        pair = Op(forward.kind, forward.stage, forward.microbatch, back)
        if {"paired", "fused"} <= self.problem.allow and self.problem.overlap_ns(pair) is not None:
            self.ops.append(pair)
            self.to_forward[stream].popleft()
            self.to_backward[1 - stream].popleft()
        else:
            self.forward(stream)
            self.backward(1 - stream, split=False)

    def weight(self) -> None:
        if self.put_off:
            self.ops.append(self.put_off.popleft())

    def run(self, ranks: int, place: int) -> list[Op]:
        """The eight steps, on the rank at `place` of a V of `ranks`."""
        below, above = ranks - 1 - place, place + 1
        steady = len(self.to_forward[0]) - 2 * ranks + above
        for _ in range(2 * below):
            self.forward(0)
        for _ in range(above):
            self.forward(0)
            self.forward(1)
        for _ in range(below):
            self.backward(1, split=True)
            self.weight()
            self.forward(1)
        for k in range(steady):
            if k == 0 and below == 0:
                # the first two of the middle rank stay apart, so that the gradient sets out sooner
                self.forward(0)
                self.backward(1, split=False)
            else:
                self.together(0)
            self.together(1)
        for _ in range(below):
            self.backward(1, split=False)
            self.together(1)
        # in the second half of these backwards the input gradients are hurried on
        for k in range(above):
            self.backward(1, split=2 * k >= above)
            self.backward(0, split=2 * k + 1 >= above)
        for _ in range(below):
            self.weight()
            self.backward(0, split=True)
        while self.put_off:
            self.weight()
        return self.ops


def dualpipe(problem: Problem) -> Order:
    """DualPipe: two directions, input gradients ahead of weight passes in the ramps.

    Bubble time (p/2-1)(F&B + (B+W) - 3W), F&B being a paired forward and backward (`Profile.overlaps`); where
    the profile or the problem has no pairs it is their sum. At most p+1 microbatches of one stage each are held,
    and parameters twice.

    Raises
    ------
    ScheduleConditionError
        If there are no two routes in opposite directions over an even number of ranks, if they do not
        take as many microbatches each or fewer than 2p in all, or B and W may not stand apart.
    """
    require_split(problem, "dualpipe")
    down = require_bidirectional(problem, "dualpipe")
    ranks = len(down)
    taken = [[j for j, route in enumerate(problem.route_of or ()) if route == way] for way in (0, 1)]
    if len(taken[0]) != len(taken[1]) or problem.microbatches < 2 * ranks:
        raise ScheduleConditionError(
            f"dualpipe needs as many microbatches in each direction and at least 2 x ranks = {2 * ranks} in all, "
            f"but they take {len(taken[0])} and {len(taken[1])}; change the number of microbatches, or use chimera"
        )
    rows = {}
    for stage, rank in enumerate(down):
        way = 0 if stage < ranks // 2 else 1
        stages = (stage, ranks - 1 - stage)
        row = _DualRow(problem, (stages[way], stages[1 - way]), (taken[way], taken[1 - way]))
        rows[rank] = row.run(ranks // 2, min(stages))
    return ordered(problem, rows)


def dualpipe_v(problem: Problem) -> Order:
    """DualPipeV: the rows of DualPipe for twice the ranks, on a V without replicas.

    The order of torch's ``ScheduleDualPipeV``, pairs included where they are allowed and measured, else one
    after the other.
    Bubble time (p-1)(F&B + (B+W) - 3W), costs being those of one chunk.

    Raises
    ------
    ScheduleConditionError
        If the placement is no V, there are fewer than 2p microbatches, or B and W may not stand apart.
    """
    require_split(problem, "dualpipe-v")
    down = require_v(problem, "dualpipe-v")
    ranks, microbatches = len(down), range(problem.microbatches)
    if len(microbatches) < 2 * ranks:
        raise ScheduleConditionError(
            f"dualpipe-v needs at least 2 x ranks = {2 * ranks} microbatches, got {len(microbatches)}; "
            "use more, or zb-v"
        )
    rows = {}
    for place, rank in enumerate(down):
        row = _DualRow(problem, (place, 2 * ranks - 1 - place), (microbatches, microbatches))
        rows[rank] = row.run(ranks, place)
    return ordered(problem, rows)


MEMBERS = (
    Member(
        Schedule(
            name="chimera",
            family="bidirectional",
            placement="bidirectional",
            source="Chimera, arXiv 2107.06925",
            needs="two routes in opposite directions over an even number of ranks; parameters twice",
        ),
        chimera,
    ),
    Member(
        Schedule(
            name="dualpipe",
            family="bidirectional",
            placement="bidirectional",
            source="DualPipe, DeepSeek-V3, arXiv 2412.19437",
            needs="two routes in opposite directions over an even number of ranks, as many microbatches on each, "
            "at least 2p in all; B and W apart; parameters twice; pairs where the profile has overlaps",
        ),
        dualpipe,
    ),
    Member(
        Schedule(
            name="dualpipe-v",
            family="bidirectional",
            placement="v",
            source="DualPipeV, after DeepSeek-V3, arXiv 2412.19437; as torch's ScheduleDualPipeV",
            needs="a V, at least 2p microbatches; B and W apart; pairs where the profile has overlaps",
        ),
        dualpipe_v,
    ),
)
